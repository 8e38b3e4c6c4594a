"""SIGINT and SIGTERM as a flag that loops look at, so that no handler interrupts a clean-up."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Asked to stop by the first signal, to hurry by the second.

    Without `with` it never fires by itself: `request()` sets it, which is what tests do.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._previous: dict[signal.Signals, Any] = {}
        self.number: int | None = None  # of the first signal
        self.hurry = False

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, number: int = signal.SIGTERM, _frame: FrameType | None = None) -> None:
        if self.number is None:
            self.number = number
        else:
            self.hurry = True
        self._event.set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    def __enter__(self) -> StopSignal:
        """Install the handlers; the caller must be the main thread."""
        self._previous = {s: signal.signal(s, self.request) for s in _SIGNALS}
        return self

    def __exit__(
        self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
