"""Planning of passes: what is grouped, and the arrays of the graph's table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.decoder.batch import (
    INPUTS,
    MAX_SHARED_ROWS,
    ROW_BLOCK,
    Share,
    build,
    cut,
    most_rows,
    num_padded,
    plan,
)


def make(shares, lengths, *, length=256, min_rows=2, max_position=4096):
    return build(shares, lengths, length=length, min_rows=min_rows, max_position=max_position)


def test_the_example_of_the_module():
    """A: three rows in slot 2; C: one row in slot 4; slot 3 idle with 7 valid positions."""
    batch = make([Share(2, 5, [10, 11, 12], 2), Share(4, 0, [20], 1)], [0, 0, 5, 7, 0, 9])
    assert (batch.first, batch.last) == (2, 5)
    assert batch.input_ids.tolist() == [10, 11, 12, 20]
    assert batch.row_index.tolist() == [[0, 1, 2], [0, 0, 0], [3, 3, 3]]
    assert batch.flat_index.tolist() == [0, 1, 2, 6]
    assert batch.position_ids.tolist() == [[5, 6, 7], [7, 8, 9], [0, 1, 2]]
    assert batch.write_index.tolist() == [5, 7, 0]
    assert batch.output_rows.tolist() == [1, 2, 3]
    seen = batch.attention_mask.sum(axis=-1)[:, 0].tolist()
    assert seen == [[6, 7, 8], [8, 9, 10], [1, 2, 3]]
    assert batch.attention_mask[0, 0, 1, :7].all()


def test_inputs_carry_the_names_and_types_of_the_graph():
    inputs = make([Share(0, 0, [1, 2], 1)], [0]).inputs()
    assert tuple(inputs) == INPUTS
    assert {a.dtype.name for n, a in inputs.items() if n != "attention_mask"} == {"int64"}
    assert inputs["attention_mask"].dtype == np.bool_


@pytest.mark.parametrize("min_rows", [1, 2, 4, 16])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 127, 128, 129, 131, 143, 145, 256, 257, 400])
def test_what_is_left_behind_whole_blocks_is_padded_too(num_rows, min_rows):
    batch = make([Share(0, 0, [9] * num_rows, num_rows)], [0], min_rows=min_rows, length=512)
    size = len(batch.input_ids)
    assert size == len(batch.flat_index) == len(batch.output_rows)
    assert num_rows <= size < num_rows + min_rows
    assert size % ROW_BLOCK == 0 or size % ROW_BLOCK >= min_rows
    if num_rows % ROW_BLOCK >= min_rows or num_rows == 2 * ROW_BLOCK:
        assert size == num_rows


@pytest.mark.parametrize("min_rows", [1, 2, 4, 16])
def test_a_padded_pass_has_no_more_rows_than_a_runtime_takes(min_rows):
    for max_rows in range(16, 600):
        most = most_rows(max_rows, min_rows)
        assert max(num_padded(n, min_rows) for n in range(1, most + 1)) <= max_rows
        assert max_rows - min_rows < most <= max_rows
    assert most_rows(None, min_rows) is None


@pytest.mark.parametrize("min_rows", [1, 2, 4, 16])
def test_everything_is_padded_to_min_rows(min_rows):
    batch = make([Share(0, 3, [9], 0)], [3], min_rows=min_rows)
    assert len(batch.input_ids) == min_rows
    assert batch.row_index.shape == (1, min_rows)
    assert len(batch.output_rows) == min_rows
    assert len(batch.flat_index) == min_rows
    assert set(batch.row_index[0]) == {0}


def test_positions_of_padding_are_clipped():
    batch = make([Share(0, 30, [1, 2], 1)], [30], min_rows=4, max_position=32)
    assert batch.position_ids.tolist() == [[30, 31, 31, 31]]


def test_writing_beyond_the_cache_is_our_bug():
    with pytest.raises(AssertionError):
        make([Share(0, 255, [1], 1)], [255])


shares_strategy = st.lists(
    st.tuples(st.integers(1, 100), st.integers(0, 100)), min_size=1, max_size=16
).flatmap(
    lambda sizes: st.permutations(range(16)).map(
        lambda slots: [
            Share(slot, start, list(range(n)), min(n, 3))
            for slot, (n, start) in zip(slots, sizes, strict=False)
        ]
    )
)


@given(shares_strategy, st.sampled_from([256, 2112]))
def test_plan_keeps_every_share_once_and_pads_little(shares, length):
    groups = plan(shares, length=length)
    assert sorted(s.slot for g in groups for s in g) == sorted(s.slot for s in shares)
    for group in groups:
        longest = max(len(s.token_ids) for s in group)
        assert len(group) == 1 or longest <= MAX_SHARED_ROWS


@given(shares_strategy, st.sampled_from([1, 2, 8]))
def test_arrays_agree_with_each_other(shares, min_rows):
    lengths = [11] * 16
    batch = make(shares, lengths, length=512, min_rows=min_rows)
    num_places = batch.row_index.shape[1]
    flat = 0
    for share in shares:
        lengths[share.slot] = share.start
        for t, token in enumerate(share.token_ids):
            place = int(batch.flat_index[flat])
            assert divmod(place, num_places) == (share.slot - batch.first, t)
            assert batch.row_index.ravel()[place] == flat
            assert batch.input_ids[flat] == token
            assert batch.position_ids.ravel()[place] == share.start + t
            flat += 1
    expected = []
    end = 0
    for share in shares:
        end += len(share.token_ids)
        expected += range(end - share.num_outputs, end)
    assert batch.output_rows[: len(expected)].tolist() == expected
    assert batch.write_index.tolist() == lengths[batch.first : batch.last]
    assert batch.attention_mask.any(axis=-1).all()
    sees = batch.attention_mask[:, 0].sum(axis=-1)
    assert np.array_equal(sees, batch.write_index[:, None] + np.arange(num_places) + 1)


def counts(groups) -> list[list[int]]:
    return sorted([sorted(len(s.token_ids) for s in g) for g in groups])


def test_equal_sequences_share_one_pass():
    shares = [Share(i, 50, [1] * 6, 6) for i in range(16)]
    assert len(plan(shares, length=256)) == 1


def test_a_prefill_chunk_does_not_pad_the_decoding_rows():
    shares = [Share(i, 50, [1], 1) for i in range(15)] + [Share(15, 0, [1] * 32, 0)]
    assert counts(plan(shares, length=256)) == [[1] * 15, [32]]


def test_two_chunks_in_neighbouring_slots_share_a_pass():
    shares = [Share(0, 0, [1] * 16, 0), Share(1, 0, [1] * 16, 0)]
    assert len(plan(shares, length=256)) == 1


def test_a_little_raggedness_is_cheaper_than_a_second_pass():
    shares = [Share(i, 50, [1] * (6 if i % 2 else 1), 1) for i in range(4)]
    assert len(plan(shares, length=256)) == 1


def test_much_padding_is_dearer_than_a_second_pass():
    shares = [Share(i, 50, [1] * (17 if i == 0 else 1), 1) for i in range(16)]
    assert counts(plan(shares, length=2112)) == [[1] * 15, [17]]


def test_distant_slots_of_a_long_cache_are_separate_passes():
    shares = [Share(0, 50, [1] * 2, 1), Share(15, 50, [1] * 2, 1)]
    assert len(plan(shares, length=2112)) == 2
    assert len(plan(shares, length=256)) == 1


def test_a_long_chunk_is_alone():
    shares = [Share(i, 0, [1] * (MAX_SHARED_ROWS + 1), 0) for i in range(2)]
    assert len(plan(shares, length=256)) == 2


def test_cut_keeps_tokens_in_order_and_outputs_with_their_rows():
    long, short = Share(0, 10, list(range(10)), 4), Share(1, 0, [7, 8], 2)
    assert cut([long, short], None) == [[long, short]]
    assert cut([long, short], 10) == [[long, short]]
    assert cut([long, short], 4) == [
        [Share(0, 10, [0, 1, 2, 3], 0), short],
        [Share(0, 14, [4, 5, 6, 7], 2)],
        [Share(0, 18, [8, 9], 2)],
    ]


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_cut_loses_nothing(size, max_rows, data):
    outputs = data.draw(st.integers(0, size))
    parts = [p for (p,) in cut([Share(3, 5, list(range(size)), outputs)], max_rows)]
    assert [t for p in parts for t in p.token_ids] == list(range(size))
    assert [p.start for p in parts] == [5 + p.token_ids[0] for p in parts]
    rows = [t for p in parts for t in p.token_ids[len(p.token_ids) - p.num_outputs :]]
    assert rows == list(range(size - outputs, size))
    assert max(len(p.token_ids) for p in parts) <= max_rows


@given(st.lists(st.integers(1, 128), min_size=1, max_size=16))
def test_no_pass_has_more_rows_than_the_runtime_takes(sizes):
    shares = [Share(i, 0, [1] * size, 1) for i, size in enumerate(sizes)]
    passes = plan(shares, length=256, max_rows=128)
    assert all(sum(len(s.token_ids) for s in p) <= 128 for p in passes)
    assert sorted(s.slot for p in passes for s in p) == list(range(len(sizes)))
