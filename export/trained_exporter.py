"""One export of what was trained: its folder and the exported target -> graph and description.

What a head and a draft have in common; `head_exporter` and `draft_exporter` say what is their own.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.progress import Progress

from specdec.artifact import Artifact, head_source
from specdec.errors import UnsupportedModel
from specdec.export import graph, tokenizer
from specdec.export.exporter import (
    VERSION_DIRECTORY,
    Exported,
    partial_directory,
    publish,
    up_to_date,
    write_config,
)
from specdec.export.forms import draft_form
from specdec.export.head_source import TargetTables, TrainedHead, identity
from specdec.export.quantize import Precision
from specdec.export.shipped import label_of
from specdec.export.trained_graph import TrainedArchitecture


class Role(Protocol):
    """What a trained folder becomes."""

    version: int  # of its graph: raise it when the same weights would give another one
    has_tokenizer: bool  # whether its artifact has the target's tokenizer files too
    architecture: type[TrainedArchitecture]

    def feature_layers(self, target: Artifact) -> tuple[int, ...]:
        """Of its artifact."""
        ...

    def describe(self, trained: TrainedHead, target: Artifact) -> Artifact:
        """The artifact, but for what every export fills in.

        Raises `InvalidArtifact`, `UnsupportedModel`: it is none of this kind, or does not fit.
        """
        ...


def export_trained(
    role: Role,
    trained: Path,
    target: Path,
    output: Path,
    *,
    precision: Precision,
    progress: Progress,
    force: bool,
) -> Exported:
    """Export into `output`/1, and write `output`/config.pbtxt if there is none.

    What is there and was made from the same weights, target and precision is kept unless `force`.

    Args:
        trained: the folder that training wrote.
        target: the version directory of the exported target.

    Raises:
        InvalidArtifact, UnsupportedModel: about what was trained, or the target.
        InvalidRequest: `output` cannot be written.
    """
    of_target = Artifact.read(target)
    directory = output / VERSION_DIRECTORY
    provenance = {
        "specdec.source": f"{identity(trained)} for {of_target.weights_sha256}",
        "specdec.precision": precision.value,
        "specdec.exporter": f"{graph.VERSION}.{role.version}",  # either may change
    }
    found = None if force else up_to_date(directory, provenance)
    if role.has_tokenizer and not (directory / tokenizer.TOKENIZER).is_file():
        found = None
    layers = role.feature_layers(of_target)
    if found is not None and found == _described(found, of_target, layers):
        write_config(output)
        return Exported(found, directory, True, None)
    head = TrainedHead.read(trained)
    described = replace(
        role.describe(head, of_target),
        runtime="onnxruntime",
        precision=precision.value,
        num_layers=head.num_blocks,
        num_key_value_heads=head.shape.num_key_value_heads,
        head_size=head.shape.head_size,
        hidden_size=head.shape.hidden_size,
        source=head_source(label_of(trained), of_target),
    )
    with partial_directory(output) as partial:
        task = progress.add_task("read the target's tables", total=None)
        tables = TargetTables.read(target)
        progress.update(task, total=1, completed=1)
        _check_fit(head, tables)
        task = progress.add_task(f"write {precision.value}", total=None)
        architecture = role.architecture(head, tables)
        sha256 = _write_graph(architecture, partial, precision=precision, metadata=provenance)
        progress.update(task, total=1, completed=1)
        for name in tokenizer.FILES if role.has_tokenizer else ():
            if (target / name).is_file():
                shutil.copyfile(target / name, partial / name)
        made = replace(described, weights_sha256=sha256)
        made.write(partial)
        publish(partial, directory)
    write_config(output)
    return Exported(made, directory, False, None)


def _write_graph(
    architecture: TrainedArchitecture,
    directory: Path,
    *,
    precision: Precision,
    metadata: dict[str, str],
) -> str:
    """Returns the SHA-256 of the weights file."""
    writer = architecture.writer(directory, draft_form(precision))
    try:
        architecture.write(writer)
        return writer.finish(
            vocab_size=architecture.columns, metadata={**metadata, **architecture.metadata}
        )
    finally:
        writer.close()


def _described(found: Artifact, target: Artifact, feature_layers: tuple[int, ...]) -> Artifact:
    """`found` with all that it shares with the target: the same weights may have another name now,
    other tokens, or give out other layers."""
    name = found.source.removesuffix(head_source("", target))
    return replace(
        found,
        feature_layers=feature_layers,
        vocab_size=target.vocab_size,
        num_tokens=target.num_tokens,
        max_position_embeddings=target.max_position_embeddings,
        end_ids=target.end_ids,
        vocabulary_sha256=target.vocabulary_sha256,
        source=head_source(name, target),
    )


def _check_fit(head: TrainedHead, tables: TargetTables) -> None:
    """Raises `UnsupportedModel` when it was trained for another target."""
    vocab_size, hidden_size = tables.embedding.shape
    if hidden_size != head.shape.hidden_size:
        raise UnsupportedModel(
            f"the hidden size is {head.shape.hidden_size}, the target's {hidden_size}"
        )
    if head.static_ids.min() < 0 or head.static_ids.max() >= vocab_size:
        raise UnsupportedModel(
            f"it proposes ids up to {head.static_ids.max()}: the target has {vocab_size}"
        )
