"""One decoder layer of a draft, over flat rows, unrolled as training-time test asks.

Step 0 runs over every row: its keys are causal. In step j >= 1 each scored row continues its own
draft: it sees step 0's keys up to itself, and what steps 1 ... j put at the same row.

    keys of step 0   f_0 f_1 f_2 f_3      row 2 in step 2 sees  x x x .   of step 0
    step 1           h_0 h_1 h_2 h_3                            . . x .   of step 1
    step 2           h_0 h_1 h_2 h_3                            . . x .   of step 2
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdec.export.training.norms import RMSNorm


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes of one block, all from the target's config."""

    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    intermediate_size: int
    rms_norm_eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where a batch's rows stand, for attention. M rows, Q queries, B texts; see `Batch`."""

    num_texts: int
    num_columns: int  # L
    num_query_columns: int  # K
    places: Tensor  # [M] of rows among B * L
    queries: Tensor  # [Q] rows that are queries
    query_places: Tensor  # [Q] of queries among B * K
    visible: Tensor  # bool [B, 1, 1, K, L]


@dataclass(slots=True, eq=False)
class Rotary:
    """cos and sin of rows: [N, 1, D/2]."""

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor) -> Tensor:
        """Rotate x [N, heads, D], halves paired as transformers pairs them."""
        left, right = x.float().chunk(2, dim=-1)
        return torch.cat(
            [left * self.cos - right * self.sin, right * self.cos + left * self.sin], dim=-1
        )


@dataclass(slots=True, eq=False)
class Past:
    """Keys and values that one block has made in this unrolling."""

    causal: tuple[Tensor, Tensor] | None = None  # [B, Hkv, L, D] each
    own: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # [B, Hkv, 1, K, D] each


class Block(nn.Module):
    """Attention with a residual, then a gated MLP with one; names are those of transformers."""

    def __init__(self, shape: BlockShape, *, reads_token: bool) -> None:
        """`reads_token`: the input is a token's embedding and a hidden state side by side."""
        super().__init__()
        self.shape = shape
        hidden, size = shape.hidden_size, shape.head_size
        width = 2 * hidden if reads_token else hidden
        linear = partial(nn.Linear, bias=False)
        self.reads_token = reads_token
        self.hidden_norm = RMSNorm(hidden, shape.rms_norm_eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": linear(width, shape.num_heads * size),
                "k_proj": linear(width, shape.num_key_value_heads * size),
                "v_proj": linear(width, shape.num_key_value_heads * size),
                "o_proj": linear(shape.num_heads * size, hidden),
            }
        )
        self.post_attention_layernorm = RMSNorm(hidden, shape.rms_norm_eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": linear(hidden, shape.intermediate_size),
                "up_proj": linear(hidden, shape.intermediate_size),
                "down_proj": linear(shape.intermediate_size, hidden),
            }
        )

    def forward(
        self, x: Tensor, token: Tensor | None, past: Past, rotary: Rotary, layout: Layout
    ) -> Tensor:
        """One step. The first call takes all M rows, later ones the Q queries only.

        Args:
            x: [M or Q, H] the stream, which gets the residuals.
            token: [M or Q, H] normalised embeddings, for a block that reads them.

        Returns:
            [Q, H].
        """
        y = self.hidden_norm(x)
        if self.reads_token:
            assert token is not None, "this block reads a token's embedding"
            y = torch.cat([token, y.to(token.dtype)], dim=-1)
        is_first = past.causal is None
        self._remember(y, past, rotary, layout)
        if is_first and len(layout.queries) < len(y):
            x, y, cos, sin = (
                t.index_select(0, layout.queries) for t in (x, y, rotary.cos, rotary.sin)
            )
            rotary = Rotary(cos, sin)
        x = x + self._attend(y, past, rotary, layout)
        y = self.post_attention_layernorm(x)
        y = functional.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y)
        return x + self.mlp["down_proj"](y)

    def _remember(self, y: Tensor, past: Past, rotary: Rotary, layout: Layout) -> None:
        heads, size = self.shape.num_key_value_heads, self.shape.head_size
        key = rotary.turn(self.self_attn["k_proj"](y).view(-1, heads, size))
        value = self.self_attn["v_proj"](y).view(-1, heads, size)
        if past.causal is None:
            places, columns = layout.places, layout.num_columns
        else:
            places, columns = layout.query_places, layout.num_query_columns
        pair = [
            _pad(t.to(value.dtype), places, layout.num_texts, columns).transpose(1, 2)
            for t in (key, value)
        ]
        if past.causal is None:
            past.causal = (pair[0], pair[1])
        else:
            past.own.append((pair[0][:, :, None], pair[1][:, :, None]))

    def _attend(self, y: Tensor, past: Past, rotary: Rotary, layout: Layout) -> Tensor:
        """y [Q, width] -> [Q, H]."""
        shape, texts, columns = self.shape, layout.num_texts, layout.num_query_columns
        kv_heads = shape.num_key_value_heads
        group = shape.num_heads // kv_heads
        assert past.causal is not None
        keys, values = past.causal
        query = self.self_attn["q_proj"](y).view(-1, shape.num_heads, shape.head_size)
        query = rotary.turn(query) * shape.head_size**-0.5
        query = _pad(query.to(keys.dtype), layout.query_places, texts, columns)
        query = query.view(texts, columns, kv_heads, group, -1).permute(0, 2, 3, 1, 4)
        scores = query.reshape(texts, kv_heads, group * columns, -1) @ keys.transpose(-1, -2)
        scores = scores.view(texts, kv_heads, group, columns, -1)
        scores = scores.masked_fill(~layout.visible, float("-inf"))
        if past.own:
            extra = [(query * key).sum(-1, keepdim=True) for key, _ in past.own]
            scores = torch.cat([scores, *extra], dim=-1)
        shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
        mixed = shares[..., : layout.num_columns].reshape(texts, kv_heads, group * columns, -1)
        out = (mixed @ values).view(texts, kv_heads, group, columns, -1)
        for number, (_, value) in enumerate(past.own, start=layout.num_columns):
            out = out + shares[..., number, None] * value
        out = out.permute(0, 3, 1, 2, 4).reshape(texts * columns, -1)
        attended: Tensor = self.self_attn["o_proj"](out.index_select(0, layout.query_places))
        return attended


def _pad(rows: Tensor, places: Tensor, num_texts: int, num_columns: int) -> Tensor:
    """rows [N, ...] at their places: [B, columns, ...], zeros elsewhere."""
    table = rows.new_zeros(num_texts * num_columns, *rows.shape[1:])
    return table.index_copy(0, places, rows).view(num_texts, num_columns, *rows.shape[1:])
