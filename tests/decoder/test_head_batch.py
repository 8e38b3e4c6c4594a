"""The arrays of a head's pass, by hand.

Slot 0 catches up with two rows; slot 1 has 3 committed rows, one carried row at place 3, and now
evaluates two tokens that follow it.
"""

from __future__ import annotations

import numpy as np

from specdec.decoder.head_batch import INPUTS, HeadShare, Row, build

FEATURES = np.arange(4, dtype=np.float16).reshape(2, 2)
STATE = np.array([5.0, 6.0, 7.0], np.float32)
SHARES = [
    HeadShare(0, 7, 5, [10, 11], 1, features=FEATURES),
    HeadShare(1, 3, 4, [20, 21], 2, rows=[Row(20, (3,), STATE), Row(21, (3,), STATE + 1)]),
]


def built(shares=SHARES, max_position=100):
    return build(
        shares,
        [7, 6],
        length=8,
        max_position=max_position,
        feature_size=2,
        hidden_size=3,
        extra_ids=np.array([4]),
        allowed=np.ones((sum(share.num_outputs for share in shares), 1), np.bool_),
        width=4,
    )


def seen(batch, slot):
    return [np.flatnonzero(row).tolist() for row in batch.base.attention_mask[slot, 0]]


def test_committed_rows_are_a_chain_and_own_ones_a_tree():
    batch = built()
    assert seen(batch, 0) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6]]
    assert seen(batch, 1) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 5]]
    assert batch.base.position_ids.tolist() == [[5, 6], [4, 4]]
    assert batch.base.write_index.tolist() == [5, 4]
    assert batch.base.output_rows.tolist() == [1, 2, 3]


def test_rows_read_features_or_the_state_before_them():
    batch = built()
    assert batch.source.tolist() == [0, 1, 2, 3]  # two with features, then two with states
    assert np.array_equal(batch.features, FEATURES)
    assert np.array_equal(batch.hidden, [STATE, STATE + 1])
    turned = built(SHARES[::-1])
    assert turned.source.tolist() == [2, 3, 0, 1]
    assert set(turned.inputs()) >= set(INPUTS)
    assert (turned.first, turned.last) == (0, 2)


def test_one_kind_alone_leaves_the_other_empty():
    catching_up, growing = built(SHARES[:1]), built(SHARES[1:])
    assert catching_up.hidden.shape == (0, 3)
    assert growing.features.shape == (0, 2)
    assert growing.source.tolist() == [0, 1]


def test_a_pass_without_outputs_has_one_that_may_propose_nothing_of_the_text():
    """A mask without rows beside logits of one: the graph read what lay behind it in memory."""
    catching_up = built([SHARES[0]._replace(num_outputs=0)])
    assert catching_up.base.output_rows.tolist() == [0]
    assert catching_up.allowed.tolist() == [[False]]
    assert built().allowed.tolist() == [[True]] * 3


def test_positions_end_with_the_model_s():
    assert built(max_position=5).base.position_ids.tolist() == [[4, 4], [4, 4]]
