"""What TensorRT reports while it compiles: steps of nested phases, and messages.

Its interfaces are classes to derive from that exist only once the module is imported, hence the
two factories.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rich.progress import Progress, TaskID

_MAX_ERRORS = 3
_MAX_CHARACTERS = 300


def make_logger(trt: Any) -> Any:
    """An ILogger that keeps errors in `errors` and drops the rest."""

    class ErrorLog(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)

    return ErrorLog()


def shorten(errors: Sequence[str]) -> str:
    """The first messages on one line: later ones only follow from them."""
    lines = [" ".join(error.split()) for error in errors[:_MAX_ERRORS]]
    return "; ".join(lines)[:_MAX_CHARACTERS] or "it gives no reason"


class Interrupt:
    """Notes Ctrl-C instead of raising it: an exception in one of TensorRT's callbacks, whichever
    it happens to be in, is swallowed there."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interrupt:
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def make_monitor(trt: Any, progress: Progress, title: str, interrupt: Interrupt) -> Any:
    """An IProgressMonitor: one bar for the whole build, and one for each phase inside it.

    Asks TensorRT to stop once an interrupt was noted.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self._tasks: dict[str, TaskID] = {}
            self._whole: TaskID | None = None

        def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
            if self._whole is None:
                self._whole = progress.add_task(title, total=num_steps)
                self._tasks[name] = self._whole
            else:
                self._tasks[name] = progress.add_task(f"  {name.lower()}", total=num_steps)

        def step_complete(self, name: str, step: int) -> bool:
            progress.update(self._tasks[name], completed=step + 1)
            return not interrupt.requested

        def phase_finish(self, name: str) -> None:
            task = self._tasks.pop(name)
            if task == self._whole:
                progress.update(task, total=1, completed=1)
            else:
                progress.remove_task(task)

    return Monitor()
