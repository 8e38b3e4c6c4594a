"""Pads a pass to one of a few shapes, so that a card sees the same ones again. Pure functions.

    T  2 -> 2   3 -> 3   5 -> 6   9 -> 12      sizes are 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

CUDA graphs and TensorRT's choice of kernels belong to a shape; unpadded, a ragged batch would
bring a new one with nearly every pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec.decoder.batch import Batch

Array = np.ndarray[Any, Any]


def bucket(size: int, limit: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, ... that holds `size`, at most `limit`."""
    assert 1 <= size <= limit, (size, limit)
    power = 1 << (size - 1).bit_length()
    middle = power // 4 * 3
    return min(middle if size <= middle else power, limit)


def pad(batch: Batch, *, cache_length: int, max_rows: int) -> dict[str, Array]:
    """The graph's inputs by name, N, T and R padded; logits rows keep their order and place.

    Args:
        batch: planned for caches of at most `cache_length` positions.
        cache_length: S of the graph: the mask is false behind the batch's own.
        max_rows: the largest N, T and R.
    """
    num_sequences, places = batch.row_index.shape
    wide = bucket(places, max_rows)
    # Padding is written behind every sequence's last place: only where the cache goes on.
    if int(batch.write_index.max()) + wide > cache_length:
        wide = places
    more = ((0, 0), (0, wide - places))
    sequence, place = np.divmod(batch.flat_index, places)
    mask = np.zeros((num_sequences, 1, wide, cache_length), np.bool_)
    length = batch.attention_mask.shape[-1]
    mask[:, :, :places, :length] = batch.attention_mask
    mask[:, :, places:] = mask[:, :, places - 1 : places]
    num_rows = bucket(batch.input_ids.size, max_rows)
    num_outputs = bucket(batch.output_rows.size, max_rows)
    return {
        "input_ids": _extend(batch.input_ids, num_rows),
        "row_index": np.pad(batch.row_index, more, mode="edge"),
        "flat_index": _extend(sequence * wide + place, num_rows),
        "position_ids": np.pad(batch.position_ids, more, mode="edge"),
        "write_index": batch.write_index,
        "attention_mask": mask,
        "output_rows": _extend(batch.output_rows, num_outputs),
    }


def _extend(values: Array, size: int) -> Array:
    """Zeros behind: a token, row or place that exists and that nobody reads."""
    return np.pad(values, (0, size - values.size))
