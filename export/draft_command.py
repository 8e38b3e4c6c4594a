"""`specdec export draft`, of what was trained: the way from options to `export_draft`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specdec.artifact import Artifact
from specdec.errors import InvalidRequest
from specdec.export.model_command import precision_of
from specdec.export.options import Runtime
from specdec.export.quantize import Precision
from specdec.export.report import columns, run

if TYPE_CHECKING:
    from specdec.export.exporter import Exported


def run_trained_draft(*, as_json: bool, **options: Any) -> None:
    """Options are those of `specdec export draft`."""
    run("draft", partial(_export_trained, **options), as_json=as_json)


def _export_trained(
    console: Any,
    *,
    model: str | None,
    target: Path,
    output: Path,
    runtime: Runtime,
    precision: str | None,
    check: bool,
    force: bool,
    **tensorrt: Any,
) -> Exported:
    """`model`: a folder that training wrote; None: what is shipped for the target."""
    from rich.progress import Progress

    from specdec.export.draft_exporter import export_draft
    from specdec.export.exporter import VERSION_DIRECTORY, Exported
    from specdec.export.shipped import own_draft

    if runtime is not Runtime.onnxruntime or check:
        option = "--check" if check else f"--runtime {runtime.value}"
        raise InvalidRequest(
            f"{option} needs a whole model: pass the folder `model` in what `specdec train draft` "
            f"wrote, or another small model"
        )
    stored = precision_of(precision, tensorrt) or Precision.int8
    of_target, directory = target / VERSION_DIRECTORY, output / VERSION_DIRECTORY
    if model is None:
        described = Artifact.read(of_target)
        trained = _shipped_draft(described)
        own = None if force else own_draft(directory, described, trained)
        if own is not None:
            typer.echo(f"kept: {own.source}; --force puts the shipped draft there", err=True)
            return Exported(own, directory, True, None)
    else:
        trained = Path(model)
    with Progress(*columns(), console=console) as progress:
        return export_draft(
            trained, of_target, output, precision=stored, progress=progress, force=force
        )


def _shipped_draft(target: Artifact) -> Path:
    """Raises `InvalidRequest`: there is none for this target."""
    from specdec.export.shipped import DRAFT, shipped_for

    found = shipped_for(target, DRAFT)
    if found is None:
        raise InvalidRequest(
            f"no draft is shipped for {target.source}: name a small model of its family with "
            f"--model, or train one with `specdec train draft`"
        )
    return found
