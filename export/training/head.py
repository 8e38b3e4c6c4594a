"""The draft: features of the target -> blocks -> a reduced LM head. EAGLE-3, arXiv 2503.01840.

    f_i (some layers)  --norm each, fc-->  g_i  --block(s)-->  h_i  --norm, projection-->  z_i
    t_(i+1) --embedding--------------------------^                 logits = z_i . rows of the head

An EAGLE head `reads_token`: it gets the sampled token beside the features and continues on its own
hidden state (`h` in place of `g`), so that step j of a draft costs one block and no target. Without
that, blocks go on with the one stream they are given: a decoder on the target's embeddings (layer
0), or an exit from its first layers.

The rows of the target's LM head stay as they are, so any of them can be gathered when a request
needs them; what they would learn, the projection [H, H] before them does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from specdec.export.training.batches import Batch
from specdec.export.training.block import Block, BlockShape, Layout, Past, Rotary
from specdec.export.training.norms import RMSNorm, normalised
from specdec.export.training.target import Target


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What a head looks like, beside the target's sizes."""

    feature_layers: tuple[int, ...]  # without `reads_token` exactly one
    num_blocks: int = 1
    reads_token: bool = True

    def __post_init__(self) -> None:
        if not self.reads_token and len(self.feature_layers) != 1:
            raise ValueError(f"a draft without fusion reads one layer, not {self.feature_layers}")

    @property
    def is_standalone(self) -> bool:
        """Whether nothing of the target is read but its embedding: served with static ids alone."""
        return not self.reads_token and self.feature_layers == (0,)

    @property
    def ahead(self) -> int:
        """How far the newest token the head reads is beyond its features."""
        return 1 if self.reads_token else 0


class Head(nn.Module):
    """Trainable parts only; embedding, LM head and angles are the target's, passed in."""

    def __init__(self, config: HeadConfig, shape: BlockShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        hidden, num = shape.hidden_size, len(config.feature_layers)
        if config.reads_token:
            # Not trained: a scale before a matrix is the matrix's to learn. It evens out columns.
            self.register_buffer("feature_scale", torch.ones(num * hidden))
            self.fc = nn.Linear(num * hidden, hidden, bias=False)
        self.layers = nn.ModuleList(
            Block(shape, reads_token=config.reads_token and number == 0)
            for number in range(config.num_blocks)
        )
        self.norm = RMSNorm(hidden, shape.rms_norm_eps)
        self.projection = nn.Linear(hidden, hidden, bias=False)

    def fuse(self, features: Tensor) -> Tensor:
        """features [M, layers * H] of any float type -> g float32 [M, H]."""
        if not self.config.reads_token:
            return features.float()
        fused: Tensor = self.fc(self.normalise(features) * self.feature_scale)
        return fused.float()

    def normalise(self, features: Tensor) -> Tensor:
        """Each layer's stream by its own root mean square: float32 [M, layers * H]."""
        parts = features.unflatten(-1, (-1, self.shape.hidden_size))
        return normalised(parts, self.shape.rms_norm_eps).flatten(-2)

    def unroll(self, batch: Inputs, target: Target, num_steps: int) -> Iterator[Tensor]:
        """What the head's rows are multiplied with, z [Q, H], step after step.

        Tokens are the text's own: a draft is only served further while it agrees with them.
        """
        assert num_steps == 1 or self.config.reads_token, "it cannot go on without its target"
        pasts = [Past() for _ in self.layers]
        x = self.fuse(batch.features)
        positions, ids = batch.positions, batch.next_ids
        for step in range(num_steps):  # in step 0 every row, then the scored ones
            token = target.unit_embedding[ids] if self.config.reads_token else None
            rotary = Rotary(target.cos[positions][:, None], target.sin[positions][:, None])
            for block, past in zip(self.layers, pasts, strict=True):
                is_last = block is self.layers[-1]
                layout = batch.layout if is_last else batch.layout_of_all
                x = block(x, token, past, rotary, layout)
            yield self.projection(self.norm(x))
            positions = batch.positions[batch.layout.queries] + step + 1
            ids = batch.ids_ahead[step + 1]


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A `Batch` as tensors on the head's device."""

    features: Tensor  # float16 [M, layers * H], the head's layers only
    final_feature: Tensor  # float16 [M, H] what enters the target's final norm
    positions: Tensor
    next_ids: Tensor
    ids_ahead: Tensor
    valid: Tensor
    teacher_rows: Tensor
    layout: Layout  # queries: the scored rows
    layout_of_all: Layout  # queries: every row

    @classmethod
    def of(
        cls,
        batch: Batch,
        *,
        config: HeadConfig,
        corpus_layers: tuple[int, ...],
        hidden_size: int,
        device: torch.device,
    ) -> Inputs:
        """`corpus_layers`: which layers the batch's features are of; the last one's are final."""
        names = ("positions", "next_ids", "ids_ahead", "valid", "teacher_rows")
        moved = {name: torch.from_numpy(getattr(batch, name)).to(device) for name in names}
        features = torch.from_numpy(batch.features).to(device)
        features = features.view(-1, len(corpus_layers), hidden_size)
        wanted = [corpus_layers.index(layer) for layer in config.feature_layers]
        picked = features if len(wanted) == len(corpus_layers) else features[:, wanted]
        layout, layout_of_all = layouts(batch, device)
        return cls(
            features=picked.flatten(1),
            final_feature=features[:, -1],
            layout=layout,
            layout_of_all=layout_of_all,
            **moved,
        )


def layouts(batch: Batch, device: torch.device) -> tuple[Layout, Layout]:
    """For a block that scores, and for one whose every row is needed by the next block."""
    columns = torch.arange(batch.num_columns, device=device)
    places = torch.from_numpy(batch.places).to(device)
    first = torch.from_numpy(batch.first_scored).to(device)
    last_seen = first[:, None] + torch.arange(batch.num_query_columns, device=device)  # [B, K]
    scored = Layout(
        batch.num_texts,
        batch.num_columns,
        batch.num_query_columns,
        places,
        torch.from_numpy(batch.scored).to(device),
        torch.from_numpy(batch.query_places).to(device),
        (columns <= last_seen[..., None])[:, None, None],
    )
    causal = (columns <= columns[:, None]).expand(batch.num_texts, 1, 1, -1, -1)
    every = torch.arange(len(batch.positions), device=device)
    whole = Layout(
        batch.num_texts, batch.num_columns, batch.num_columns, places, every, places, causal
    )
    return scored, whole


def shape_of(target: Target) -> BlockShape:
    """The target's own sizes."""
    return BlockShape(
        hidden_size=target.hidden_size,
        num_heads=target.num_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_size=target.head_size,
        intermediate_size=target.config.intermediate_size,
        rms_norm_eps=target.config.rms_norm_eps,
    )


def describe(config: HeadConfig, shape: BlockShape) -> dict[str, object]:
    """Plain data, for a checkpoint."""
    return {"config": asdict(config), "shape": asdict(shape)}
