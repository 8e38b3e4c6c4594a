"""`specdec export head`: the command line around `head_exporter.export_head`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.errors import InvalidRequest
from specdec.export.options import Force, Json, OfTarget, Output
from specdec.export.quantize import Precision
from specdec.export.report import columns, run

if TYPE_CHECKING:
    from specdec.artifact import Artifact
    from specdec.export.exporter import Exported

Trained = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="The folder that `specdec train` wrote.",
        show_default="the one that is shipped for the target",
    ),
]
IfShipped = Annotated[
    bool,
    typer.Option("--if-shipped", help="Without --model: where none is shipped, do nothing."),
]
# A pass of a head is many reads of its weights and little else: at int8 it takes half of the time,
# a third once they are in the cache, and what it proposes is checked anyway.
HeadPrecision = Annotated[
    Precision, typer.Option("--precision", help="How the head's matrices are stored.")
]


def head(
    *,
    model: Trained = None,
    if_shipped: IfShipped = False,
    target: OfTarget = Path("model_repository/target"),
    output: Output = Path("model_repository/eagle"),
    precision: HeadPrecision = Precision.int8,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Export a trained head, which drafts from the target's hidden states.

    A head of your own that fits the target is not replaced by the shipped one, but with --force.
    """

    def export(console: Any) -> Exported:
        from rich.progress import Progress

        from specdec.artifact import Artifact
        from specdec.export.exporter import VERSION_DIRECTORY, Exported
        from specdec.export.head_exporter import export_head
        from specdec.export.shipped import own_head

        of_target, trained = target / VERSION_DIRECTORY, model
        if trained is None:
            described = Artifact.read(of_target)
            trained, directory = _shipped(described, if_shipped), output / VERSION_DIRECTORY
            own = None if force else own_head(directory, described, trained)
            if own is not None:
                typer.echo(f"kept: {own.source}; --force puts the shipped head there", err=True)
                return Exported(own, directory, True, None)
        with Progress(*columns(), console=console) as progress:
            return export_head(
                trained, of_target, output, precision=precision, progress=progress, force=force
            )

    run("head", export, as_json=as_json)


def _shipped(target: Artifact, if_shipped: bool) -> Path:
    """Raises `InvalidRequest`, or ends the command quietly: there is none for this target."""
    from specdec.export.shipped import shipped_for

    found = shipped_for(target)
    if found is not None:
        return found
    message = f"no head is shipped for {target.source}"
    if if_shipped:
        typer.echo(f"{message}: drafts come without one", err=True)
        raise typer.Exit
    raise InvalidRequest(
        f"{message}: train one with `specdec train eagle`, or name it with --model"
    )
