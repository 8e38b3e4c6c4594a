"""What training commands show: bars on stderr, a table of acceptance, an outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from specdec.errors import SpecdecError

if TYPE_CHECKING:
    from rich.progress import Progress

    from specdec.export.training.evaluation import Evaluation


def bars() -> Progress:
    """Bars on stderr."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Note(ProgressColumn):
        """What a stage says of itself; some stages say nothing."""

        def render(self, task: Task) -> Text:
            return Text(task.fields.get("note", ""), style="dim")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        Note(),
        console=Console(stderr=True),
    )


@contextmanager
def counted(progress: Progress, name: str, total: int | None) -> Iterator[Any]:
    """A bar of texts, with the speed at which their tokens come."""
    import time

    task = progress.add_task(name, total=total)
    began, tokens = time.monotonic(), 0

    def count(text: Any) -> None:
        nonlocal tokens
        tokens += len(text.likeliest)
        speed = tokens / (time.monotonic() - began)
        progress.update(task, advance=1, note=f"{tokens:,} tokens, {speed:,.0f} tok/s")

    yield count
    progress.update(task, total=total or 1, completed=total or 1)


@contextmanager
def ended_in_a_line() -> Iterator[None]:
    """What goes wrong inside is one line, and an exit code: 2, or 130 after Ctrl-C."""
    try:
        yield
    except (SpecdecError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("interrupted: run the same command to go on", err=True)
        raise typer.Exit(130) from None


def print_table(evaluation: Evaluation, title: str, *, with_request: bool) -> None:
    """Acceptance by position, sources down.

    Args:
        with_request: whether ids of the request join the static ones, as a head has them; the
            vocabulary of a stand-alone draft is its graph's.
    """
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left")
    grid.add_column("source")
    for position in range(evaluation.num_steps):
        grid.add_column(str(position), justify="right")
    grid.add_column("tokens per pass", justify="right")
    sources = evaluation.with_request if with_request else evaluation.static_only
    parts = dict(sorted(sources.items()))
    parts["overall"] = evaluation.total(with_request=with_request)
    for source, part in parts.items():
        rates = (f"{rate:.2f}" for rate in part.rates)
        grid.add_row(source, *rates, f"{part.acceptance_length:.2f}")
    Console().print(grid)
