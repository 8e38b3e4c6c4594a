"""What an export command says, and how it ends: one line per outcome, exit code 2 for a fault."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specdec.errors import SpecdecError

if TYPE_CHECKING:
    from specdec.export.exporter import Exported


def run(role: str, export: Callable[[Any], Exported], *, as_json: bool) -> None:
    """Export and say what came of it.

    Args:
        export: given the console that progress is shown on.
    """
    from rich.console import Console

    console = Console(stderr=True)
    begin = time.monotonic()
    try:
        exported = export(console)
    except (SpecdecError, OSError) as error:  # a full disk is the environment's fault
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(_summary(exported, time.monotonic() - begin)))
        return
    if exported.comparison is not None:
        typer.echo(f"check: {exported.comparison}")
    typer.echo(_final_line(role, exported))


def columns() -> tuple[Any, ...]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )


def _summary(exported: Exported, seconds: float) -> dict[str, Any]:
    comparison = exported.comparison
    return {
        "directory": str(exported.directory),
        "reused": exported.reused,
        "num_bytes": exported.num_bytes,
        "precision": exported.artifact.precision,
        "architecture": exported.artifact.architecture,
        "weights_sha256": exported.artifact.weights_sha256,
        "feature_layers": exported.artifact.feature_layers,
        "check": comparison._asdict() if comparison is not None else None,
        "seconds": round(seconds, 3),
    }


def _final_line(role: str, exported: Exported) -> str:
    """Path, size, and what to do next."""
    size = f"{exported.num_bytes / 1e6:,.0f} MB"
    state = "up to date" if exported.reused else "exported"
    name = exported.directory.parent.name
    settings = "the speculative model's config.pbtxt"
    is_found = exported.directory.parent == Path("model_repository/draft")  # by `specdec serve`
    named = f'set draft_model_name to "{name}" in {settings}'
    next_step = {
        "target": "next: specdec serve",
        "draft": f"next: {'specdec serve --drafter draft_model' if is_found else named}",
        "head": "next: specdec serve",
    }[role]
    precision = exported.artifact.precision
    return f"{state}: {exported.directory} ({precision}, {size}); {next_step}"
