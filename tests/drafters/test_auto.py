"""Copies and candidates in one tree: who is beside whom, who agrees, and where a copy goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.drafters._memory import WIDTH
from specdec.drafters.auto import AGREED, BESIDE, COPIED, FIRST_ODDS, AutoDrafter
from specdec.drafters.base import DraftView, Judge
from specdec.drafters.ngram import MAX_OMEN, NgramDrafter
from specdec.drafters.recycle import PAIR, SINGLE, RecycleDrafter
from specdec.types import Proposal, SamplingParams, Verdict


def view_of(token_ids, carry=()):
    return DraftView(1, token_ids, 1, SamplingParams(), carry)


def propose(drafter, token_ids, limit=8, *, carry=(), odds=FIRST_ODDS, least=0.02):
    judge = Judge(lambda _: lambda omen, depth: odds[omen], least)
    (proposal,) = drafter.propose([view_of(token_ids, carry)], [limit], judge).proposals
    return proposal


def taught(*lessons):
    """Knows `((before, last), candidate_ids)`."""
    drafter = AutoDrafter()
    for (before, last), candidate_ids in lessons:
        drafter._memory.learn(before, last, candidate_ids)
    return drafter


def roots(proposal):
    """{token: omen} of those that follow the text itself."""
    rows = zip(proposal.token_ids, proposal.omens, proposal.links, strict=True)
    return {token_id: omen for token_id, omen, parent in rows if parent < 0}


TEXT = [1, 2, 3, 4, 9, 1, 2]  # 3 4 9 1 2 followed 1 2


def test_a_copy_alone():
    proposal = propose(AutoDrafter(), TEXT, limit=4)
    assert proposal == Proposal((3, 4, 9, 1), (COPIED + 2,) * 4, (-1, 0, 1, 2))


def test_candidates_alone_are_as_in_recycle():
    lessons = [((1, 2), (5, 6, 7)), ((2, 5), (8,)), ((0, 6), (9, 5, 4))]
    recycle, auto = RecycleDrafter(), taught(*lessons)
    for (before, last), row in lessons:
        recycle._memory.learn(before, last, row)
    for text in ([1, 2], [4, 2], [0, 6], [3, 6]):
        assert propose(auto, text) == propose(recycle, text)
    assert propose(auto, [1, 2]).omens[0] == PAIR
    assert propose(auto, [4, 2]).omens[0] == SINGLE


def test_candidates_beside_a_copy_are_other_omens():
    pair = propose(taught(((1, 2), (5, 6, 7))), TEXT, limit=16)
    assert roots(pair) == {3: COPIED + 2, 5: BESIDE, 6: BESIDE + 1, 7: BESIDE + 2}
    single = propose(taught(((0, 2), (5, 6, 7))), TEXT, limit=16)
    assert roots(single) == {3: COPIED + 2, **{5 + i: BESIDE + WIDTH + i for i in range(3)}}


@pytest.mark.parametrize("rank", range(WIDTH))
def test_a_copy_that_a_candidate_agrees_with(rank):
    row = [5, 6]
    row.insert(rank, 3)
    found = roots(propose(taught(((1, 2), row)), TEXT, limit=16))
    # Its own rank is not given to another: rank r is rank r.
    beside = {t: BESIDE + i for i, t in enumerate(row) if t != 3}
    assert found == {3: AGREED + 2} | beside


def test_a_branch_off_the_copy_is_not_copied_further():
    drafter = taught(((1, 2), (5,)), ((2, 5), (8,)))
    proposal = propose(drafter, TEXT, limit=16)
    five = proposal.token_ids.index(5)
    assert proposal.links.count(five) == 1
    eight = proposal.links.index(five)
    assert (proposal.token_ids[eight], proposal.omens[eight]) == (8, PAIR)


@pytest.mark.parametrize("length", range(1, 9))
def test_the_omen_is_the_length_of_the_match(length):
    match = [*range(10, 10 + length)]
    proposal = propose(AutoDrafter(), [1, *match, 3, 2, *match], limit=1)
    assert proposal.token_ids == (3,)
    assert proposal.omens == (COPIED + min(length, MAX_OMEN),)


def test_a_copy_runs_into_itself():
    sure = dict.fromkeys(FIRST_ODDS, 1.0)
    proposal = propose(AutoDrafter(), [8, 1, 2, 1, 2, 1, 2], limit=16, odds=sure)
    assert proposal.token_ids == (1, 2) * 8
    assert propose(AutoDrafter(), [7, 7], limit=5, odds=sure).token_ids == (7,) * 5
    assert propose(AutoDrafter(), [7, 8, 7], limit=5, odds=sure).token_ids == (8, 7, 8, 7, 8)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=4))
def test_a_copy_is_that_of_prompt_lookup(token_ids, carry):
    """Where nothing is remembered; the lookup's tests say it is the right one."""
    view, sure = view_of(token_ids, tuple(carry)), dict.fromkeys(FIRST_ODDS, 1.0)
    (lookup,) = NgramDrafter().propose([view], [16]).proposals
    copy = propose(AutoDrafter(), token_ids, 16, carry=tuple(carry), odds=sure)
    assert copy.first(len(lookup.token_ids)).token_ids == lookup.token_ids
    assert copy.parents == tuple(range(-1, len(copy.token_ids) - 1))


def test_the_carry_continues_the_copy():
    assert propose(AutoDrafter(), TEXT, limit=2).token_ids == (3, 4)
    carried = propose(AutoDrafter(), TEXT, limit=2, carry=(3, 4))
    assert carried.token_ids == (9, 1)
    assert carried.omens == (COPIED + 4,) * 2  # 1 2 3 4 is the match
    assert propose(AutoDrafter(), TEXT, carry=(50,)) == Proposal()


def test_the_carry_is_not_taken_for_text():
    """It may not hold: nothing of it stays in the index."""
    drafter = AutoDrafter()
    assert propose(drafter, [1, 2, 3], carry=(1, 2, 40, 1, 2)).token_ids[0] == 3
    assert propose(drafter, [1, 2, 3, 1, 2]).token_ids[0] == 3
    assert propose(drafter, [1, 2, 3, 1, 2, 40]) == Proposal()


def test_a_good_candidate_comes_before_a_poor_copy():
    drafter = taught(((1, 2), (5, 6, 7)))
    assert propose(drafter, TEXT, limit=1).token_ids == (3,)
    turned = FIRST_ODDS | {BESIDE: 0.9}
    assert propose(drafter, TEXT, limit=1, odds=turned).token_ids == (5,)


def test_candidates_are_learned_from_verdicts():
    drafter = AutoDrafter()
    text = [1, 2, 5, 6]
    drafter.observe(view_of(text), Verdict((5, 6), (0.0,) * 2, 3, (), ((5, 7, 8), (6, 7, 8))))
    assert drafter._memory.recall(1, 2) == (True, [5, 7, 8])
    assert drafter._memory.recall(2, 5) == (True, [6, 7, 8])


def test_end_forgets_the_text_and_keeps_the_memory():
    drafter = taught(((1, 2), (5, 6, 7)))
    propose(drafter, TEXT)
    drafter.end([1, 99])
    assert not drafter._indexes
    assert roots(propose(drafter, [1, 2])) == {5: PAIR, 6: PAIR + 1, 7: PAIR + 2}


@given(st.lists(st.integers(0, 4), max_size=60), st.data())
def test_first_odds_cover_every_omen_it_uses(token_ids, data):
    rows = st.lists(st.integers(0, 4), max_size=WIDTH, unique=True)
    drafter = AutoDrafter()
    for before in range(-1, 5):
        for last in range(5):
            if data.draw(st.booleans()):
                drafter._memory.learn(before, last, data.draw(rows))
    proposal = propose(drafter, token_ids, limit=64, least=0.0)  # a KeyError if one is missing
    assert 0 not in proposal.omens


def test_omens_do_not_overlap():
    kinds = [
        *range(PAIR, PAIR + WIDTH),
        *range(SINGLE, SINGLE + WIDTH),
        *range(BESIDE, BESIDE + 2 * WIDTH),
        *range(COPIED + 1, COPIED + MAX_OMEN + 1),
        *range(AGREED + 1, AGREED + MAX_OMEN + 1),
    ]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == FIRST_ODDS.keys()
    assert all(0 < odds < 1 for odds in FIRST_ODDS.values())
