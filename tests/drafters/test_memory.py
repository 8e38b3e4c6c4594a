"""The table against a dictionary that forgets nothing, and what falls on one place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.drafters._memory import SIZE, WIDTH, Memory

BIG = 2**31 - 1
IDS = st.one_of(st.integers(0, 3), st.sampled_from((BIG, BIG - 1, 2**30)))
ROWS = st.lists(IDS, max_size=WIDTH + 1, unique=True)
LESSONS = st.lists(st.tuples(st.one_of(st.just(-1), IDS), IDS, ROWS), max_size=40)


def taught(lessons, **options):
    """The table, and the newest lesson of every pair and of every single token."""
    memory, pairs, singles = Memory(**options), {}, {}
    for before, last, row in lessons:
        memory.learn(before, last, row)
        singles[last] = row[:WIDTH]
        if before >= 0:
            pairs[before, last] = row[:WIDTH]
    return memory, pairs, singles


@given(LESSONS)
def test_the_newest_lesson_of_a_pair_then_of_a_single_token(lessons):
    memory, pairs, singles = taught(lessons)
    for before, last, _ in [*lessons, (7, 7, ()), (-1, 9, ())]:
        expected = (False, singles.get(last, []))
        if (before, last) in pairs:
            expected = (True, pairs[before, last])
        assert memory.recall(before, last) == expected


@pytest.mark.parametrize("size", [1, 2, 4, 16])
@given(lessons=LESSONS, asked=st.lists(st.tuples(IDS, IDS), max_size=20))
def test_a_place_taken_by_another_key_is_never_mistaken(size, lessons, asked):
    memory, pairs, singles = taught(lessons, size=size)
    for before, last in [*asked, *((b, t) for b, t, _ in lessons)]:
        is_pair, found = memory.recall(before, last)
        if is_pair:
            assert found == pairs[before, last]
        else:
            assert found in ([], singles.get(last))


def test_a_newer_entry_takes_the_place_of_an_older_one():
    memory = Memory(size=1)
    memory.learn(1, 2, [3])
    memory.learn(4, 5, [6])
    assert memory.recall(1, 2) == (False, [])
    assert memory.recall(4, 5)[1] == [6]


def test_before_the_first_token_there_is_no_pair():
    memory = Memory()
    memory.learn(-1, 7, [1, 2, 3])
    assert memory.recall(-1, 7) == (False, [1, 2, 3])
    assert memory.recall(5, 7) == (False, [1, 2, 3])
    memory.learn(5, 7, [4])
    assert memory.recall(5, 7) == (True, [4])
    assert memory.recall(-1, 7) == (False, [4])
    assert memory.recall(6, 7) == (False, [4])


def test_token_0_and_no_token_are_not_the_same():
    memory = Memory()
    memory.learn(0, 5, [1])
    memory.learn(-1, 5, [2])
    assert memory.recall(0, 5) == (True, [1])
    assert memory.recall(0, 0) == (False, [])


def test_nothing_is_known_at_first():
    assert Memory().recall(-1, 0) == Memory().recall(0, 0) == (False, [])


def test_a_size_must_be_a_power_of_two():
    with pytest.raises(AssertionError, match="12"):
        Memory(size=12)


def test_pairs_of_like_tokens_spread_over_the_table():
    """Neighbouring ids, as a tokenizer's frequent ones are, must not fall on a few places."""
    memory = Memory()
    for before in range(128):
        for last in range(128):
            memory.learn(before, last, [before])
    kept = sum(memory.recall(b, t) == (True, [b]) for b in range(128) for t in range(128))
    assert SIZE > 128 * 128
    assert kept > 0.9 * 128 * 128


SALTS = (0, 0x2A5F0C1E9B7D3468, 0x13579BDF02468ACE)  # as digests give them


@given(LESSONS, st.permutations(SALTS))
def test_what_is_learned_under_one_salt_is_found_under_no_other(lessons, salts):
    memory, (plain, _, _) = Memory(), taught(lessons)
    for before, last, row in lessons:
        memory.learn(before, last, row, salts[0])
    for before, last, _ in lessons:
        assert memory.recall(before, last, salts[1]) == (False, [])
        assert memory.recall(before, last, salts[0]) == plain.recall(before, last)
