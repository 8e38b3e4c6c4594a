"""One export of a head: trained folder and exported target -> graph and description.

The draft's static ids, in the order of the logits' first columns, are in the graph's metadata.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from specdec.artifact import HEAD, STATIC_IDS, Artifact, head_source, why_unfit
from specdec.errors import InvalidArtifact, UnsupportedModel
from specdec.export import graph, head_graph
from specdec.export.exporter import (
    VERSION_DIRECTORY,
    Exported,
    partial_directory,
    publish,
    up_to_date,
    write_config,
)
from specdec.export.forms import head_form
from specdec.export.head_graph import HeadArchitecture, HeadWriter
from specdec.export.head_source import TargetTables, TrainedHead, identity
from specdec.export.quantize import Precision
from specdec.export.shipped import head_label


def export_head(
    trained: Path,
    target: Path,
    output: Path,
    *,
    precision: Precision = Precision.fp32,
    progress: Progress,
    force: bool = False,
) -> Exported:
    """Export into `output`/1, and write `output`/config.pbtxt if there is none.

    What is there and was made from the same head, target and precision is kept unless `force`.

    Args:
        trained: the folder that training wrote.
        target: the version directory of the exported target.

    Raises:
        InvalidArtifact, UnsupportedModel: about the head or the target.
        InvalidRequest: `output` cannot be written.
    """
    of_target = Artifact.read(target)
    directory = output / VERSION_DIRECTORY
    provenance = {
        "specdec.source": f"{identity(trained)} for {of_target.weights_sha256}",
        "specdec.precision": precision.value,
        "specdec.exporter": f"{graph.VERSION}.{head_graph.VERSION}",  # either may change
    }
    found = None if force else up_to_date(directory, provenance)
    # The same weights may have another name now, or give out other layers.
    if found is not None and not why_unfit(found, of_target):
        write_config(output)
        return Exported(found, directory, True, None)
    head = TrainedHead.read(trained)
    _check_features(head, of_target, target)
    with partial_directory(output) as partial:
        sha256 = _write_graph(
            head, target, partial, precision=precision, provenance=provenance, progress=progress
        )
        made = replace(
            of_target,  # whose tokens, positions and ends it shares
            architecture=HEAD,
            runtime="onnxruntime",
            precision=precision.value,
            num_layers=head.num_blocks,
            num_key_value_heads=head.shape.num_key_value_heads,
            head_size=head.shape.head_size,
            hidden_size=head.shape.hidden_size,
            feature_layers=head.feature_layers,
            weights_sha256=sha256,
            source=head_source(head_label(trained), of_target),
        )
        made.write(partial)
        publish(partial, directory)
    write_config(output)
    return Exported(made, directory, False, None)


def _write_graph(
    head: TrainedHead,
    target: Path,
    directory: Path,
    *,
    precision: Precision,
    provenance: dict[str, str],
    progress: Progress,
) -> str:
    """Returns the SHA-256 of the weights file."""
    task = progress.add_task("read the target's tables", total=None)
    tables = TargetTables.read(target)
    progress.update(task, total=1, completed=1)
    _check_fit(head, tables)
    task = progress.add_task(f"write {precision.value}", total=None)
    writer = HeadWriter(
        directory,
        form=head_form(precision),
        feature_size=head.feature_size,
        hidden_size=head.shape.hidden_size,
    )
    try:
        HeadArchitecture(head, tables).write(writer)
        ids = json.dumps(head.static_ids.tolist())
        sha256 = writer.finish(vocab_size="C + M", metadata={**provenance, STATIC_IDS: ids})
    finally:
        writer.close()
    progress.update(task, total=1, completed=1)
    return sha256


def _check_features(head: TrainedHead, of_target: Artifact, target: Path) -> None:
    """Raises `InvalidArtifact`: the target does not give out what the head reads."""
    if of_target.feature_layers != head.feature_layers:
        wanted = ",".join(map(str, head.feature_layers))
        given = ",".join(map(str, of_target.feature_layers)) or "none"
        raise InvalidArtifact(
            f"the head reads layers {wanted}, the target in {target} gives out {given}: export "
            f"the target with --features {wanted}"
        )


def _check_fit(head: TrainedHead, tables: TargetTables) -> None:
    """Raises `UnsupportedModel` when the head was trained for another target."""
    vocab_size, hidden_size = tables.embedding.shape
    if hidden_size != head.shape.hidden_size:
        raise UnsupportedModel(
            f"the head's hidden size is {head.shape.hidden_size}, the target's {hidden_size}"
        )
    if head.static_ids.min() < 0 or head.static_ids.max() >= vocab_size:
        raise UnsupportedModel(
            f"the head proposes ids up to {head.static_ids.max()}: the target has {vocab_size}"
        )
