"""Padding to few shapes changes no row, no place and nothing anyone sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.decoder.batch import Share, build
from specdec.decoder.buckets import bucket, pad

LENGTH = 512


def test_sizes():
    assert [bucket(n, 1000) for n in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]
    assert bucket(100, 110) == 110
    assert len({bucket(n, 512) for n in range(1, 513)}) == 18
    with pytest.raises(AssertionError):
        bucket(9, 8)


def make(shares, lengths, length=256):
    return build(shares, lengths, length=length, min_rows=2, max_position=4096)


def test_the_worked_example():
    batch = make([Share(0, 5, [10, 11, 12, 13, 14], 2), Share(1, 0, [20], 1)], [5, 0])
    arrays = pad(batch, cache_length=LENGTH, max_rows=128)
    assert arrays["row_index"].tolist() == [[0, 1, 2, 3, 4, 4], [5] * 6]
    assert arrays["input_ids"].tolist() == [10, 11, 12, 13, 14, 20]
    assert arrays["flat_index"].tolist() == [0, 1, 2, 3, 4, 6]
    assert arrays["position_ids"].tolist() == [[5, 6, 7, 8, 9, 9], [0, 1, 2, 3, 4, 4]]
    assert arrays["output_rows"].tolist() == [3, 4, 5]
    mask = arrays["attention_mask"]
    assert mask.shape == (2, 1, 6, LENGTH)
    assert mask[0, 0].sum(-1).tolist() == [6, 7, 8, 9, 10, 10]
    assert not mask[..., 256:].any()


def test_places_are_not_padded_behind_the_end_of_the_cache():
    batch = make([Share(0, 251, [1] * 5, 1)], [251])
    assert pad(batch, cache_length=256, max_rows=128)["row_index"].shape == (1, 5)
    assert pad(batch, cache_length=257, max_rows=128)["row_index"].shape == (1, 6)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(0, 100))
def test_every_row_finds_its_place_again(sizes, start):
    shares = [Share(i, start + i, list(range(3, 3 + n)), n) for i, n in enumerate(sizes)]
    batch = make(shares, [start + i for i in range(len(sizes))])
    arrays = pad(batch, cache_length=LENGTH, max_rows=128)
    num_rows = sum(sizes)
    places = arrays["row_index"].reshape(-1)[arrays["flat_index"][:num_rows]]
    assert places.tolist() == list(range(num_rows))
    positions = arrays["position_ids"].reshape(-1)[arrays["flat_index"][:num_rows]]
    seen = arrays["attention_mask"].reshape(-1, LENGTH)[arrays["flat_index"][:num_rows]]
    assert (seen.sum(-1) == positions + 1).all()
    assert (arrays["row_index"] < arrays["input_ids"].size).all()
    assert arrays["attention_mask"].any(-1).all()
    assert np.array_equal(arrays["output_rows"][: batch.output_rows.size], batch.output_rows)
