"""A head's tree among copies and candidates: who agrees, who is doubted, and what if it fails."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.drafters._buckets import BUCKET_ODDS, bucket_of
from specdec.drafters._memory import WIDTH
from specdec.drafters.auto import (
    CONFIRMED,
    COPIED,
    DOUBTED,
    FIRST_ODDS,
    FIRST_ODDS_WITH_HEAD,
    GUESSED,
    GUESSED_BESIDE,
    UNLIKELY,
    AutoDrafter,
)
from specdec.drafters.base import DraftView, Judge, undecided
from specdec.errors import DecoderFailed
from specdec.types import DecoderInfo, HeadDraft, HeadResult, SamplingParams
from support.engine import Harness, make_drafter
from support.fakes import hash_text, reference_text
from support.scripted_head import ScriptedHead, show

TEXT = [1, 2, 3, 4, 9, 1, 2]  # 3 4 9 1 2 followed 1 2


class FixedHead:
    """Gives the same tree each time; takes any features."""

    def __init__(self, *branches, fails=False):
        """(token id, parent, probability given that)."""
        self.draft_made = HeadDraft(
            tuple(token_id for token_id, _, _ in branches),
            tuple(parent for _, parent, _ in branches),
            tuple(log(p) for _, _, p in branches),
        )
        self.fails = fails
        self.calls, self.open_ids = [], set()

    def describe(self):
        return DecoderInfo(16, 512, 64, "distribution", 1, "fixed")

    def open(self, sequence_id, prompt_ids, sampling, cache_salt=0, first=0):
        self.open_ids.add(sequence_id)
        return 0

    def draft(self, calls):
        if self.fails:
            raise DecoderFailed("no head here")
        self.calls.append(calls)
        return HeadResult([self.draft_made if c.max_tokens else HeadDraft() for c in calls], 0.0)

    def close(self, sequences):
        self.open_ids -= {sequence_id for sequence_id, _ in sequences}


def view_of(token_ids, sequence_id=1, carry=()):
    return DraftView(sequence_id, token_ids, 1, SamplingParams(), carry)


def propose(drafter, token_ids, limit=16, *, odds=FIRST_ODDS_WITH_HEAD, passes=4):
    view = view_of(token_ids)
    show(drafter, [view])
    judge = Judge(lambda _: lambda omen, _: odds[omen], 0.001, lambda ids, _: [passes] * len(ids))
    return drafter.propose([view], [limit], judge)


def roots(result):
    (proposal,) = result.proposals
    rows = zip(proposal.token_ids, proposal.omens, proposal.links, strict=True)
    return {token_id: omen for token_id, omen, parent in rows if parent < 0}


def test_a_head_alone_goes_by_its_own_probabilities():
    drafter = AutoDrafter(FixedHead((5, -1, 0.7), (6, -1, 0.2), (8, 0, 0.5)))
    (proposal,) = propose(drafter, [1, 2]).proposals
    omens = [GUESSED + bucket_of(log(p)) for p in (0.7, 0.2, 0.5)]
    found = dict(zip(proposal.token_ids, proposal.omens, strict=True))
    assert found == {5: omens[0], 8: omens[2], 6: omens[1]}
    assert proposal.links[proposal.token_ids.index(8)] == proposal.token_ids.index(5)


def test_a_copy_that_the_head_has_too_and_one_that_it_has_not():
    confirmed = roots(propose(AutoDrafter(FixedHead((3, -1, 0.9), (5, -1, 0.05))), TEXT))
    assert confirmed == {3: CONFIRMED + 3 * 3 + 1, 5: GUESSED_BESIDE}
    doubted = roots(propose(AutoDrafter(FixedHead((5, -1, 0.9))), TEXT))
    assert doubted == {5: GUESSED_BESIDE + 3, 3: DOUBTED + 1}


def test_a_copy_goes_on_where_the_head_has_ended():
    drafter = AutoDrafter(FixedHead((3, -1, 0.9)))
    (proposal,) = propose(drafter, TEXT, 4).proposals
    assert proposal.token_ids == (3, 4, 9, 1)
    assert proposal.omens[1:] == (COPIED + 2,) * 3


def test_candidates_that_the_head_does_not_name_are_unlikely():
    drafter = AutoDrafter(FixedHead((6, -1, 0.6)))
    drafter._memory.learn(1, 2, (5, 6, 7))
    found = roots(propose(drafter, [1, 2]))
    assert found == {6: GUESSED + bucket_of(log(0.6)), 5: UNLIKELY, 7: UNLIKELY + 1}


def test_the_judge_hears_what_is_free_and_its_passes_are_kept():
    head, heard = FixedHead((3, -1, 0.9)), []
    drafter = AutoDrafter(head)
    views = [view_of(TEXT, 1), view_of([1, 2, 7], 2), view_of([1, 2, 8], 3)]
    show(drafter, views)

    def passes(sequence_ids, free):
        heard.append((list(sequence_ids), [list(odds) for odds in free]))
        return [0, 3, 1]

    judge = undecided._replace(odds=lambda _: lambda omen, _: 0.5, passes=passes)
    result = drafter.propose(views, [2] * 3, judge)
    assert heard == [([1, 2, 3], [[0.5, 0.25], [], []])]
    assert [[c.sequence_id for c in calls] for calls in head.calls] == [[2, 3]]
    assert [c.max_depth for c in head.calls[0]] == [2, 1]  # never more than tokens
    assert set(result.asked) == {1, 2}
    assert result.proposals[0].token_ids == (3, 4)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_head_no_passes_no_features(limit):
    drafter = AutoDrafter()
    assert not drafter.needs_features
    assert drafter.first_odds is FIRST_ODDS
    result = propose(drafter, TEXT, limit, odds=FIRST_ODDS)
    assert not result.asked
    assert len(result.proposals[0].token_ids) == limit


def test_a_head_that_fails_costs_auto_the_head_only(caplog):
    head = FixedHead((5, -1, 0.9), fails=True)
    drafter = AutoDrafter(head)
    result = propose(drafter, TEXT)
    assert result.failed == (0,)
    assert result.proposals[0].token_ids[0] == 3
    assert "goes on without it" in caplog.text
    assert not head.open_ids
    head.fails = False
    text = [*TEXT, 3]
    assert not propose(drafter, text).asked  # not for this sequence again
    drafter.end([1])
    assert propose(drafter, text).asked  # another one of that number


@pytest.mark.parametrize("fail_at", [0, 1, 3])
def test_through_the_engine_too(fail_at):
    harness = Harness()
    drafter = make_drafter("auto+head", ScriptedHead(fail_at=[fail_at]))
    sink = harness.submit([5, 6], 30, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert sink.token_ids == reference_text([5, 6], 30, hash_text)
    assert harness.metrics.take().counters["draft_errors_total"] == 1
    after = harness.submit([7, 6], 31, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert sum(len(chunk.token_ids) > 1 for chunk in after.chunks) >= 5


def test_omens_do_not_overlap_and_all_have_first_odds():
    with_head = [
        *range(GUESSED, GUESSED + len(BUCKET_ODDS)),
        *range(GUESSED_BESIDE, GUESSED_BESIDE + 4),
        *range(CONFIRMED, CONFIRMED + 12),
        *range(DOUBTED, DOUBTED + 3),
        *range(UNLIKELY, UNLIKELY + 2),
    ]
    assert len(set(with_head)) == len(with_head)
    assert set(with_head) | FIRST_ODDS.keys() == FIRST_ODDS_WITH_HEAD.keys()
    assert not set(with_head) & FIRST_ODDS.keys()
    assert all(0 < odds < 1 for odds in FIRST_ODDS_WITH_HEAD.values())


@given(st.data())
def test_any_tree_of_a_head_is_merged_into_a_tree(data):
    """Siblings differ, everything has an omen that is known, and the best come first."""
    branches, size = [], data.draw(st.integers(0, 12))
    for node in range(size):
        parent = data.draw(st.integers(-1, node - 1))
        taken = {t for t, p, _ in branches if p == parent}
        token_id = data.draw(st.integers(0, 20).filter(lambda t, taken=taken: t not in taken))
        branches.append((token_id, parent, data.draw(st.floats(0.01, 1.0))))
    drafter = AutoDrafter(FixedHead(*branches))
    for last in range(4):
        drafter._memory.learn(
            -1, last, data.draw(st.lists(st.integers(0, 4), max_size=WIDTH, unique=True))
        )
    text = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=30))
    (proposal,) = propose(drafter, text, data.draw(st.integers(1, 20))).proposals
    siblings = list(zip(proposal.links, proposal.token_ids, strict=True))
    assert len(set(siblings)) == len(siblings)
    assert all(parent < node for node, parent in enumerate(proposal.links))
    assert {0} & set(proposal.omens) == set()
