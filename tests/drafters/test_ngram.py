"""Prompt lookup against an obvious search, and the copies one can do by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.drafters.base import DraftView
from specdec.drafters.ngram import MAX_MATCH, Index, NgramDrafter, draft_length
from specdec.types import SamplingParams


def propose(token_ids, limit=8, drafter=None):
    view = DraftView(1, token_ids, len(token_ids), SamplingParams())
    (proposal,) = (drafter or NgramDrafter()).propose([view], [limit]).proposals
    return list(proposal.token_ids)


def slow_longest_match(token_ids):
    best_end, best_length = -1, 0
    for end in range(len(token_ids) - 1):
        length = 0
        while length < min(end + 1, MAX_MATCH) and (
            token_ids[end - length] == token_ids[-1 - length]
        ):
            length += 1
        if length and length >= best_length:  # the later place wins a tie
            best_end, best_length = end, length
    return best_end, best_length


@given(st.lists(st.integers(0, 3), max_size=60))
def test_finds_the_most_recent_longest_match(token_ids):
    index = Index()
    index.update(token_ids)
    assert index.longest_match(token_ids) == slow_longest_match(token_ids)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 59))
def test_incremental_index_equals_a_fresh_one(token_ids, cut):
    grown, fresh = Index(), Index()
    grown.update(token_ids[:cut])
    grown.update(token_ids)
    fresh.update(token_ids)
    assert grown.longest_match(token_ids) == fresh.longest_match(token_ids)


def test_copies_what_followed():
    assert propose([1, 2, 3, 4, 9, 1, 2], limit=2) == [3, 4]


def test_a_copy_runs_into_itself():
    assert propose([8, 1, 2, 1, 2, 1, 2], limit=16) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("token_ids", [[], [5], [1, 2, 3, 4]])
def test_nothing_known_proposes_nothing(token_ids):
    assert propose(token_ids) == []


def test_match_length_sets_the_draft_length():
    once = [3, 4, 5, 6, 7, 8, 9, 10, 11, 3]  # a match of one token
    assert len(propose(once, limit=16)) == draft_length(1)
    twice = [3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 4]
    assert len(propose(twice, limit=16)) == draft_length(2) > draft_length(1)


def test_end_forgets_the_sequence():
    drafter = NgramDrafter()
    propose([1, 2, 1], drafter=drafter)
    drafter.end([1, 99])
    assert not drafter._indexes
