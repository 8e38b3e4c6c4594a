"""`specdec export head`: the command line around `head_exporter.export_head`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.export.options import Force, Json, Output
from specdec.export.quantize import Precision
from specdec.export.report import columns, run

if TYPE_CHECKING:
    from specdec.export.exporter import Exported

Trained = Annotated[
    Path,
    typer.Option("--model", help="The folder that `specdec train` wrote.", show_default=False),
]
OfTarget = Annotated[
    Path,
    typer.Option("--target", help="The exported target it was trained for: whose tables it takes."),
]
# A pass of a head is many reads of its weights and little else: at int8 it takes a third of the
# time, and what it proposes is checked anyway.
HeadPrecision = Annotated[
    Precision, typer.Option("--precision", help="How the head's matrices are stored.")
]


def head(
    *,
    model: Trained,
    target: OfTarget = Path("model_repository/target"),
    output: Output = Path("model_repository/eagle"),
    precision: HeadPrecision = Precision.int8,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Export a trained head, which drafts from the target's hidden states."""

    def export(console: Any) -> Exported:
        from rich.progress import Progress

        from specdec.export.exporter import VERSION_DIRECTORY
        from specdec.export.head_exporter import export_head

        with Progress(*columns(), console=console) as progress:
            return export_head(
                model,
                target / VERSION_DIRECTORY,
                output,
                precision=precision,
                progress=progress,
                force=force,
            )

    run("head", export, as_json=as_json)
