"""`specdec export target` and `draft`, of a whole model: the way from options to `export`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec.errors import InvalidRequest
from specdec.export.options import Runtime
from specdec.export.quantize import Precision
from specdec.export.report import columns, run

if TYPE_CHECKING:
    from rich.progress import Progress

    from specdec.export.check import Comparison
    from specdec.export.exporter import Exported
    from specdec.export.sources import Source


def run_model(role: str, *, as_json: bool, **options: Any) -> None:
    """Options are those of `specdec export target`."""
    run(role, partial(_export, **options), as_json=as_json)


def _export(
    console: Any,
    *,
    model: str,
    output: Path,
    runtime: Runtime,
    precision: str | None,
    features: str,
    check: bool,
    force: bool,
    **tensorrt: Any,
) -> Exported:
    from rich.progress import Progress

    from specdec.export.exporter import export
    from specdec.export.features import Features
    from specdec.export.sources import resolve

    wanted = Features.parse(features)

    with Progress(*columns(), console=console) as progress:
        form = form_of(runtime, precision, check, tensorrt, progress)
        source = resolve(model, progress)
        quiet_libraries()
        verify = partial(_verify, source, progress, form.get("precision")) if check else None
        return export(
            source,
            output,
            progress=progress,
            force=force,
            verify=verify,
            features=wanted,
            **form,
        )


def form_of(
    runtime: Runtime,
    precision: str | None,
    check: bool,
    tensorrt: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """The arguments of `export` that say what is made."""
    if runtime is Runtime.onnxruntime:
        return {"precision": precision_of(precision, tensorrt) or Precision.fp32}
    if check:
        raise InvalidRequest(
            "--check runs the graph on this processor, a plan needs its card: leave it out, and "
            "run `make test-gpu` there"
        )
    from specdec.export.tensorrt_options import Options, make_compiler

    options = Options(**_named(tensorrt))
    return {"compiler": make_compiler(runtime.value, precision, options, progress.console.print)}


def precision_of(precision: str | None, tensorrt: dict[str, Any]) -> Precision | None:
    """Of a graph for ONNX Runtime; None: none was named.

    Raises `InvalidRequest`: there is none such, or options of TensorRT were named too.
    """
    allowed = [p.value for p in Precision]
    if precision not in (None, *allowed):
        raise InvalidRequest(f"--precision {precision}: ONNX Runtime allows {', '.join(allowed)}")
    if _named(tensorrt):
        option = next(iter(_named(tensorrt))).replace("_", "-")
        raise InvalidRequest(f"--{option} is for --runtime tensorrt and tensorrt-rtx")
    return Precision(precision) if precision else None


def _named(tensorrt: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in tensorrt.items() if value not in (None, [])}


def _verify(
    source: Source, progress: Progress, precision: Precision, directory: Path
) -> Comparison:
    from specdec.export.check import check

    task = progress.add_task("check against transformers", total=None)
    result = check(directory, source.reference, precision)
    progress.update(task, total=1, completed=1)
    return result


def prepared(model: str, progress: Progress) -> Source:
    """The source that `--model` names, on this machine. Raises `InvalidRequest`."""
    from specdec.export.sources import resolve

    source = resolve(model, progress)
    quiet_libraries()
    source.prepare()
    return source


def quiet_libraries() -> None:
    """Keep transformers' own bars and advice out of ours; must run before it is imported."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
