import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.speculation.acceptance import accept_chain

TOKENS = st.integers(0, 3)


@pytest.mark.parametrize(
    ("draft_ids", "sampled_ids", "num_accepted"),
    [
        ([], [5], 0),
        ([7], [7, 1], 1),
        ([7], [8, 1], 0),
        ([7, 3, 9], [7, 3, 4, 1], 2),
        ([7, 3, 9], [7, 3, 9, 1], 3),
        ([7, 3, 9], [1, 3, 9, 1], 0),  # a later match behind a mismatch counts for nothing
    ],
)
def test_longest_matching_prefix(draft_ids, sampled_ids, num_accepted):
    assert accept_chain(draft_ids, sampled_ids) == num_accepted


@given(st.lists(TOKENS, max_size=8), st.data())
def test_emitted_tokens_are_always_the_targets_own(draft_ids, data):
    size = len(draft_ids) + 1
    sampled_ids = data.draw(st.lists(TOKENS, min_size=size, max_size=size))
    end = accept_chain(draft_ids, sampled_ids)
    assert draft_ids[:end] == sampled_ids[:end]
    assert end == len(draft_ids) or draft_ids[end] != sampled_ids[end]
