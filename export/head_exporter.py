"""One export of a head: trained folder and exported target -> graph and description.

The draft's static ids, in the order of the logits' first columns, are in the graph's metadata.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from specdec.artifact import HEAD, Artifact
from specdec.errors import InvalidArtifact, UnsupportedModel
from specdec.export import head_graph
from specdec.export.exporter import Exported
from specdec.export.head_graph import HeadArchitecture
from specdec.export.head_source import TrainedHead
from specdec.export.quantize import Precision
from specdec.export.trained_exporter import export_trained


def export_head(
    trained: Path,
    target: Path,
    output: Path,
    *,
    precision: Precision = Precision.fp32,
    progress: Progress,
    force: bool = False,
) -> Exported:
    """See `export_trained`."""
    return export_trained(
        _Head(), trained, target, output, precision=precision, progress=progress, force=force
    )


class _Head:
    """See `Role`."""

    has_tokenizer = False
    architecture = HeadArchitecture

    @property
    def version(self) -> int:
        return head_graph.VERSION

    def feature_layers(self, target: Artifact) -> tuple[int, ...]:
        """What it was trained on is what the target gives out."""
        return target.feature_layers

    def describe(self, trained: TrainedHead, target: Artifact) -> Artifact:
        """It shares the target's tokens, positions and ends."""
        if not trained.reads_token:
            raise UnsupportedModel(
                "what was trained reads no features: it is no EAGLE head, but what "
                "`specdec export draft` takes"
            )
        if target.feature_layers != trained.feature_layers:
            wanted = ",".join(map(str, trained.feature_layers))
            given = ",".join(map(str, target.feature_layers)) or "none"
            raise InvalidArtifact(
                f"the head reads layers {wanted}, the target gives out {given}: export "
                f"the target with --features {wanted}"
            )
        return replace(target, architecture=HEAD)
