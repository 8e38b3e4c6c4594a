"""What is being measured and how much is left, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich import progress as rich_progress
from rich.console import Console
from rich.markup import escape

from specdec.client.console import ERR


class Progress(Protocol):
    """Told what is done; effort is in answers of one request alone."""

    def begin(self, what: str) -> None: ...

    def advance(self, effort: float) -> None: ...


@contextmanager
def progress_bar(total: float) -> Iterator[Progress]:
    """A bar on a terminal, lines elsewhere; `total` effort is the whole."""
    if not ERR.is_terminal:
        yield _Lines(total)
        return
    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TaskProgressColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("[dim]left[/]"),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    ) as bar:
        yield _Bar(bar, total)


class _Bar:
    def __init__(self, bar: rich_progress.Progress, total: float) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=total)

    def begin(self, what: str) -> None:
        self._bar.update(self._task, description=escape(f"{what:<32.32}"))

    def advance(self, effort: float) -> None:
        self._bar.advance(self._task, effort)


class _Lines:
    """For logs: one line for everything that begins."""

    def __init__(self, total: float) -> None:
        self._total, self._done = total, 0.0

    def begin(self, what: str) -> None:
        ERR.print(f"{min(1.0, self._done / self._total):4.0%}  {what}", markup=False, style="dim")

    def advance(self, effort: float) -> None:
        self._done += effort
