"""Plans a head's passes: rows of ragged sequences -> the arrays of its graph. Pure functions.

    cache of a slot   [ committed rows | rows of this call: carry, then tokens of the tree ]
                                         each sees the committed ones, its ancestors and itself

Beside what a decoder's pass has (batch.py), every row has a source: features of the target, or the
hidden state that the row before it on its path had.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np

from specdec.decoder import batch
from specdec.decoder.batch import Batch, Ints, Share
from specdec.decoder.head_vocabulary import Bools, Floats
from specdec.types import Features


class Row(NamedTuple):
    """A row of the head's own: it goes on with the hidden state of the row before it."""

    token_id: int
    before: tuple[int, ...]  # cache places of its ancestors behind the committed rows
    hidden: Floats  # [H]


class HeadShare(NamedTuple):
    """One sequence's part of a pass: committed rows with features, or rows of its own."""

    slot: int
    num_committed: int  # rows of the cache that every row of its own sees
    start: int  # cache place of the first row
    token_ids: Seq[int]
    num_outputs: int
    features: Features | None = None  # [num_tokens, feature_size]
    rows: Seq[Row] = ()  # [num_tokens], where there are no features

    @property
    def plain(self) -> Share:
        return Share(self.slot, self.start, self.token_ids, self.num_outputs)


class HeadBatch(NamedTuple):
    """The arrays of one pass; see export/head_graph.py."""

    base: Batch
    features: Features  # [P, feature_size]
    hidden: Floats  # [Q, H]
    source: Ints  # [N]
    extra_ids: Ints  # [M]
    allowed: Bools  # [R, M] which of those are the row's to propose
    width: Ints  # [1] the likeliest that are wanted of a row

    @property
    def first(self) -> int:
        return self.base.first

    @property
    def last(self) -> int:
        return self.base.last

    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The graph's inputs by name, the cache aside."""
        return {**self.base.inputs(), **dict(zip(INPUTS, self[1:], strict=True))}


INPUTS = HeadBatch._fields[1:]


def build(
    shares: Seq[HeadShare],
    lengths: Seq[int],
    *,
    length: int,
    max_position: int,
    feature_size: int,
    hidden_size: int,
    extra_ids: Ints,
    allowed: Bools,
    width: int,
) -> HeadBatch:
    """Arrays of one pass; see `batch.build`.

    Args:
        allowed: see `HeadBatch`, of the shares' outputs; a pass without any has one all the same.
    """
    base = batch.build(
        [s.plain for s in shares], lengths, length=length, min_rows=1, max_position=max_position
    )
    for share in shares:
        for number, row in enumerate(share.rows):
            b = share.slot - base.first
            mask = base.attention_mask[b, 0, number]
            mask[:] = np.arange(length) < share.num_committed
            mask[[*row.before, share.start + number]] = True
            position = share.num_committed + len(row.before)
            base.position_ids[b, number] = min(position, max_position - 1)
    features = [s.features for s in shares if s.features is not None]
    hidden = [row.hidden for s in shares for row in s.rows]
    # Rows that read features are numbered from 0, the others behind them.
    is_own = np.repeat([s.features is None for s in shares], [len(s.token_ids) for s in shares])
    num_features = int((~is_own).sum())
    source = np.where(is_own, num_features + np.cumsum(is_own), np.cumsum(~is_own)) - 1
    return HeadBatch(
        base,
        np.concatenate(features) if features else np.zeros((0, feature_size), np.float16),
        np.stack(hidden) if hidden else np.zeros((0, hidden_size), np.float32),
        source,
        extra_ids,
        allowed if len(allowed) else np.zeros((len(base.output_rows), len(extra_ids)), np.bool_),
        np.array([width]),
    )
