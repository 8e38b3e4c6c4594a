"""One export of a stand-alone draft: trained folder and exported target -> graph and description.

The graph is a decoder's, as any other draft model's: see draft_graph.py for what is its own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from specdec.artifact import Artifact
from specdec.errors import UnsupportedModel
from specdec.export import draft_graph
from specdec.export.draft_graph import DraftArchitecture
from specdec.export.exporter import Exported
from specdec.export.head_source import TrainedHead
from specdec.export.quantize import Precision
from specdec.export.trained_exporter import export_trained

_BLOCKS_ARE = "llama"  # model type of a decoder of such blocks, whatever its target's is


def export_draft(
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
        _Draft(), trained, target, output, precision=precision, progress=progress, force=force
    )


class _Draft:
    """See `Role`."""

    has_tokenizer = True  # a server compares it with the target's
    architecture = DraftArchitecture

    @property
    def version(self) -> int:
        return draft_graph.VERSION

    def feature_layers(self, target: Artifact) -> tuple[int, ...]:
        """It gives out none."""
        return ()

    def describe(self, trained: TrainedHead, target: Artifact) -> Artifact:
        """It shares the target's tokens, positions and ends."""
        if trained.reads_token:
            raise UnsupportedModel(
                "what was trained is an EAGLE head, which drafts from the target's features: "
                "`specdec export head` takes it"
            )
        if trained.feature_layers != (0,):
            raise UnsupportedModel(
                f"what was trained comes behind {trained.feature_layers[0]} layers of its target: "
                f"pass the folder `model` in it, which has those too"
            )
        return replace(target, architecture=_BLOCKS_ARE, feature_layers=())
