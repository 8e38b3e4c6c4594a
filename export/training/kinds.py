"""The kinds of draft that one trainer makes; they differ in a head's config and nothing else."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from specdec.artifact import Artifact
from specdec.errors import InvalidRequest

if TYPE_CHECKING:
    from specdec.export.training.head import HeadConfig


class Kind(str, Enum):
    """What drafts at serving time, and from what."""

    eagle = "eagle"  # one block on the target's own features; continues on its hidden state
    draft = "draft"  # a small decoder of its own, on the target's embedding
    exit = "exit"  # blocks behind the target's first layers, a decoder of its own too


_BLOCKS = {Kind.eagle: 1, Kind.draft: 4, Kind.exit: 1}


def head_config(
    kind: Kind, artifact: Artifact, *, layer: int | None = None, num_blocks: int | None = None
) -> HeadConfig:
    """The head of one kind for an exported target.

    Args:
        layer: for `exit`, how many of the target's layers come before the blocks.
        num_blocks: None: what is usual for the kind.

    Raises `InvalidRequest`: the target's graph does not give out what it reads.
    """
    from specdec.export.training.head import HeadConfig  # torch: not for a mere --help

    num_blocks = num_blocks or _BLOCKS[kind]
    if kind is Kind.eagle:
        return HeadConfig(artifact.feature_layers, num_blocks)
    if kind is Kind.draft:
        layer = 0
    elif layer is None:
        layer = max(1, artifact.num_layers // 6)
    if layer not in artifact.feature_layers:
        raise InvalidRequest(
            f"a draft of kind {kind.value} reads what enters layer {layer}, the target gives out "
            f"{list(artifact.feature_layers)}: export it with "
            f"--features {layer},{artifact.num_layers}"
        )
    return HeadConfig((layer,), num_blocks, reads_token=False)
