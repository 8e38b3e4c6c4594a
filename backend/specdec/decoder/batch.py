"""Plans passes: shares of ragged sequences -> the arrays of the decoder graph. Pure functions.

    share   slot  tokens         flat rows          places [B, T]   (dense layers see the flat
    A       2     a0 a1 a2       a0 a1 a2 c0        a0 a1 a2         rows, only attention sees
    C       4     c0                                -  -  -          places; the last row of a
                                                    c0 c0 c0         sequence is repeated)

Slot 3 stands idle between the two: it gets places too, whose keys and values go behind its valid
content. Knows nothing of runtimes, sampling or prefix reuse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]

# Attention of one pass costs time for every (slot, place, cache position); a pass by itself costs
# as much as this many of them. Measured on 2 AVX-512 cores with a 135M model: 2.3 us each, 25 ms.
_PASS_COST = 11_000
# Rows a sequence may have in a pass it shares: a cache needs this headroom at most behind every
# sequence, because each of them is padded to the longest.
MAX_SHARED_ROWS = 64

# Rows that a thread takes at a time in ONNX Runtime's int4 products: with two threads the last one
# of 129, 257 or 385 rows is evaluated by itself, as if it were the only one.
ROW_BLOCK = 128


class Share(NamedTuple):
    """One sequence's part of a pass: `token_ids` follow its first `start` cache positions."""

    slot: int
    start: int
    token_ids: Seq[int]  # at least one
    num_outputs: int  # logits are wanted for that many of the last rows
    # Cache places that the last tokens follow, the branches of a tree: see tree.py. Every other
    # token follows the one before it.
    parents: Seq[int] = ()

    @property
    def end(self) -> int:
        """Cache positions that are valid after the pass: branches are not."""
        return self.start + len(self.token_ids) - len(self.parents)


class Batch(NamedTuple):
    """The arrays of one pass over slots [first, last); N flat rows, B = last - first."""

    first: int
    last: int
    input_ids: Ints  # [N]
    row_index: Ints  # [B, T] flat row at each place
    flat_index: Ints  # [N] place b * T + t of each flat row
    position_ids: Ints  # [B, T]
    write_index: Ints  # [B] cache position of the first place
    attention_mask: np.ndarray[Any, np.dtype[np.bool_]]  # [B, 1, T, S]
    output_rows: Ints  # [R] flat rows that need logits: the shares' in order, then padding

    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The graph's inputs by name, the cache aside."""
        return dict(zip(INPUTS, self[2:], strict=True))


INPUTS = Batch._fields[2:]


class _Extent(NamedTuple):
    """What decides the cost of a pass: slots [first, last), each padded to `num_rows`."""

    first: int
    last: int
    num_rows: int

    def union(self, other: _Extent) -> _Extent:
        return _Extent(
            min(self.first, other.first),
            max(self.last, other.last),
            max(self.num_rows, other.num_rows),
        )

    def cost(self, length: int) -> float:
        return _PASS_COST + (self.last - self.first) * self.num_rows * length


def _extent(share: Share) -> _Extent:
    return _Extent(share.slot, share.slot + 1, len(share.token_ids))


def cut(shares: Seq[Share], max_rows: int | None) -> list[list[Share]]:
    """Cut shares of more than `max_rows` tokens into rounds that follow one another.

    Outputs stay with the rows they belong to. The branches of a tree, at most `max_rows`, stay
    together: in the cache they would not outlast their pass.
    """
    if max_rows is None or all(len(s.token_ids) <= max_rows for s in shares):
        return [list(shares)]
    rounds: list[list[Share]] = []
    for share in shares:
        size = len(share.token_ids)
        without = size - share.num_outputs  # rows before the first output
        cuts = list(range(0, size - len(share.parents), max_rows))
        if size - cuts[-1] > max_rows:  # the branches do not fit behind the last part
            cuts.append(size - len(share.parents))
        for i, (begin, end) in enumerate(pairwise([*cuts, size])):
            if i == len(rounds):
                rounds.append([])
            part = Share(
                share.slot,
                share.start + begin,
                share.token_ids[begin:end],
                max(0, end - max(without, begin)),
                share.parents if end == size else (),
            )
            rounds[i].append(part)
    return rounds


def plan(shares: Seq[Share], *, length: int, max_rows: int | None = None) -> list[list[Share]]:
    """Group shares into passes.

    Every sequence of a pass is padded to the longest and every slot between the first and the
    last takes part, so sequences of very different row counts, or far apart, go to separate
    passes where that is cheaper (one chunk of 32 rows with 15 single rows: 201 ms together,
    73 + 72 ms apart).

    Args:
        shares: at most one per slot.
        length: cache positions of a slot.
        max_rows: tokens a pass can have.
    """
    alone = [[s] for s in shares if len(s.token_ids) > MAX_SHARED_ROWS]
    shared = [s for s in shares if len(s.token_ids) <= MAX_SHARED_ROWS]
    passes = (_split(shared, length) if shared else []) + alone
    return passes if max_rows is None else [part for p in passes for part in _fit(p, max_rows)]


def _fit(shares: list[Share], max_rows: int) -> list[list[Share]]:
    """Consecutive shares of at most `max_rows` tokens in all."""
    parts: list[list[Share]] = []
    room = 0
    for share in shares:
        if len(share.token_ids) > room:
            parts.append([])
            room = max_rows
        parts[-1].append(share)
        room -= len(share.token_ids)
    return parts


def _split(shares: list[Share], length: int) -> list[list[Share]]:
    """Halve at the cheapest cut in row or slot order while that is cheaper than one pass."""
    best = math.inf
    for ordered in (
        sorted(shares, key=lambda s: len(s.token_ids)),
        sorted(shares, key=lambda s: s.slot),
    ):
        extents = [_extent(s) for s in ordered]
        heads = list(accumulate(extents, _Extent.union))
        tails = list(accumulate(reversed(extents), _Extent.union))[::-1]
        whole = heads[-1].cost(length)
        for i in range(1, len(ordered)):
            cost = heads[i - 1].cost(length) + tails[i].cost(length)
            if cost < min(best, whole):
                best, cut = cost, (ordered[:i], ordered[i:])
    if best == math.inf:
        return [shares]
    return _split(cut[0], length) + _split(cut[1], length)


def num_padded(num_rows: int, min_rows: int) -> int:
    """Rows of a pass that needs `num_rows`, so that no kernel sees fewer than `min_rows` of them:
    also those left over behind whole blocks, which a thread evaluates by themselves."""
    left_over = num_rows % ROW_BLOCK
    if num_rows and not left_over:
        return num_rows
    return num_rows + max(0, min_rows - left_over)


def most_rows(max_rows: int | None, min_rows: int) -> int | None:
    """Rows that a pass may need, padding apart, where a runtime takes `max_rows`; None: any."""
    if max_rows is None or max_rows < ROW_BLOCK or max_rows % ROW_BLOCK >= min_rows:
        return max_rows
    return max_rows - max_rows % ROW_BLOCK


def num_places(shares: Seq[Share], min_rows: int) -> int:
    """T: places of every slot in a pass over these shares."""
    return max(min_rows, *(len(s.token_ids) for s in shares))


def build(
    shares: Seq[Share],
    lengths: Seq[int],
    *,
    length: int,
    min_rows: int,
    max_position: int,
) -> Batch:
    """Arrays of one pass.

    Args:
        shares: one per slot; logits rows come in their order, `num_outputs` each.
        lengths: [num_slots] valid cache positions of every slot: those of idle slots inside the
            range are not written (the caller leaves room: lengths[i] + T <= length).
        length: S, cache positions of a slot.
        min_rows: N, T and R are padded to at least this; N and R as `num_padded` has it.
        max_position: positions of padding are clipped below it.
    """
    first = min(s.slot for s in shares)
    last = max(s.slot for s in shares) + 1
    places = num_places(shares, min_rows)
    steps = np.arange(places)
    row_index = np.zeros((last - first, places), np.int64)
    write_index = np.array(lengths[first:last], np.int64)
    flat_index, output_rows, end = [], [], 0
    for share in shares:
        b, begin, end = share.slot - first, end, end + len(share.token_ids)
        row_index[b] = np.minimum(begin + steps, end - 1)
        flat_index.append(b * places + steps[: end - begin])
        output_rows.append(np.arange(end - share.num_outputs, end))
        write_index[b] = share.start
    assert write_index.max() + places <= length, (write_index, places, length)
    positions = write_index[:, None] + steps
    attention_mask = (np.arange(length) <= positions[..., None])[:, None]
    for share in shares:
        if share.parents:
            b = share.slot - first
            _place_branches(share, attention_mask[b, 0], positions[b])
    return Batch(
        first=first,
        last=last,
        input_ids=_pad([np.asarray(s.token_ids, np.int64) for s in shares], min_rows),
        row_index=row_index,
        flat_index=_pad(flat_index, min_rows),
        position_ids=np.minimum(positions, max_position - 1),
        write_index=write_index,
        attention_mask=attention_mask,
        output_rows=_pad(output_rows, min_rows),
    )


def _place_branches(share: Share, mask: Any, positions: Ints) -> None:
    """Let every branch token see what its parent sees, and itself, one position further on.

    Changes rows of `mask` [T, S] and `positions` [T], which are a chain's.
    """
    first = len(share.token_ids) - len(share.parents)
    for row, parent in enumerate(share.parents, start=first):
        if parent < share.end:  # it stands where a chain has it, in this pass or before
            mask[row] = np.arange(mask.shape[1]) <= parent
            positions[row] = parent + 1
        else:
            mask[row] = mask[parent - share.start]
            positions[row] = positions[parent - share.start] + 1
        mask[row, share.start + row] = True


def _pad(parts: list[Any], min_rows: int) -> Ints:
    """Join and pad with zeros: a token, row or place that exists and that nobody reads."""
    joined: Ints = np.concatenate(parts)
    size = num_padded(joined.size, min_rows)
    if joined.size == size:
        return joined  # nearly always; `np.pad` takes 25 us to find out
    return np.pad(joined, (0, size - joined.size))
