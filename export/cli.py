"""`specdec export target|draft|head`: the command line."""

from __future__ import annotations

from pathlib import Path

import typer

from specdec.export.draft_command import run_trained_draft
from specdec.export.head_command import head
from specdec.export.head_source import is_trained
from specdec.export.model_command import run_model
from specdec.export.options import (
    Beside,
    Capability,
    Card,
    Check,
    DraftModel,
    FeaturesOption,
    Force,
    Json,
    MaxRows,
    MaxSequenceLength,
    MaxSequences,
    MemoryGib,
    Model,
    OfTarget,
    Output,
    PrecisionOption,
    Runtime,
    RuntimeOption,
    TimingCache,
)

app = typer.Typer(
    help="Turn a model into a graph that the server can run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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
    run_model("target", **locals())


@app.command()
def draft(
    *,
    model: DraftModel = None,
    target: OfTarget = Path("model_repository/target"),
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
    """Export a small model that proposes tokens; it must share the target's tokenizer.

    Any small model of the target's family, or what `specdec train draft` wrote: blocks between the
    target's own tables, at int8 if nothing else is said.
    """
    options = {name: value for name, value in locals().items() if name != "target"}
    if model is None or is_trained(Path(model)):
        run_trained_draft(target=target, **options)
    else:
        run_model("draft", features="none", **options)


app.command()(head)
