"""What the head is fed and when: every state of the target beside the token after it, once."""

from __future__ import annotations

import itertools
from math import exp

import numpy as np
import pytest

from specdec.drafters import _head, eagle
from specdec.drafters._head import MAX_DEPTH, WIDTH
from specdec.drafters.base import DraftView, Judge, undecided
from specdec.drafters.eagle import FIRST_ODDS, EagleDrafter
from specdec.errors import DecoderFailed
from specdec.types import SamplingParams, Verdict
from support.engine import Harness, make_drafter
from support.fakes import FEATURE_SIZE, ScriptedDecoder, features_after, hash_text, reference_text
from support.scripted_head import LIKELY, ScriptedHead, show

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
NONE = np.zeros((0, FEATURE_SIZE), np.float16)


def view_of(token_ids, sequence_id=1, carry=()):
    return DraftView(sequence_id, list(token_ids), len(PROMPT), SamplingParams(), carry)


def states(token_ids, start, end):
    return np.stack([features_after(token_ids[: p + 1]) for p in range(start, end)])


def propose(drafter, view, limit=4, least=0.0):
    return drafter.propose([view], [limit], undecided._replace(least=least))


def test_prompt_chunks_are_one_call_that_pairs_states_with_the_next_token():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    text = [*PROMPT, 7]
    for start, end in ((0, 3), (3, 8)):
        drafter.absorb(view_of(PROMPT), start, states(PROMPT, start, end))
    (proposal,) = propose(drafter, view_of(text), limit=1).proposals
    assert proposal.token_ids == (hash_text(text),)
    ((call,),) = head.calls
    assert (call.start, call.token_ids) == (0, text[1:])
    assert np.array_equal(call.features, states(PROMPT, 0, 8))


def test_each_step_feeds_what_it_brought():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    text = [*PROMPT, 7]
    show(drafter, [view_of(text)])
    for emitted in ([1, 2, 3], [4], [5, 6]):
        propose(drafter, view_of(text))
        before = len(text)
        text += emitted
        show(drafter, [view_of(text)])
        propose(drafter, view_of(text))
        (call,) = head.calls[-1]
        assert (call.start, call.token_ids) == (before - 1, emitted)


def test_waiting_rows_keep_nothing_else_alive():
    """A head that is not asked for long must not hold on to every step's answer."""
    drafter = EagleDrafter(ScriptedHead())
    frame = np.concatenate([states(PROMPT, 0, 3), np.zeros((1000, FEATURE_SIZE), np.float16)])
    drafter.absorb(view_of(PROMPT), 0, frame[:3])
    assert all(part.base is None for part in drafter._head._states[1].pending)


def test_nothing_new_is_no_call():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    assert propose(drafter, view_of([5])).proposals[0].token_ids == ()
    show(drafter, [view_of(PROMPT)])
    propose(drafter, view_of(PROMPT))
    assert propose(drafter, view_of(PROMPT)).proposals[0].token_ids == ()
    assert len(head.calls) == 1


def test_a_head_begins_behind_what_the_target_had_cached():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    text = [*PROMPT, 7]
    show(drafter, [view_of(text)], first=5)
    (proposal,) = propose(drafter, view_of(text)).proposals
    assert proposal.token_ids[0] == hash_text(text)
    ((call,),) = head.calls
    assert (call.start, call.token_ids) == (0, text[6:])


@pytest.fixture
def short_memory(monkeypatch):
    monkeypatch.setattr(_head, "OPENING_ROWS", 2)
    monkeypatch.setattr(_head, "CATCH_UP_ROWS", 3)


@pytest.mark.parametrize("cuts", [(5, 7, 8), (3, 4, 8), (8,), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_of_a_long_text_a_head_sees_the_opening_and_the_end(cuts, short_memory):
    """The opening is left for whoever begins like this, and this text is the first to do so."""
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    text = [*PROMPT, 7]
    for start, end in itertools.pairwise((0, *cuts)):  # prompt chunks
        drafter.absorb(view_of(PROMPT), start, states(PROMPT, start, end))
    assert propose(drafter, view_of(text)).proposals[0].token_ids[0] == hash_text(text)
    (opening,), (call,) = head.calls
    assert (opening.start, opening.token_ids, opening.max_tokens) == (0, text[1:3], 0)
    assert np.array_equal(opening.features, states(PROMPT, 0, 2))
    assert (head.closed, head.opened_first) == ([(1, 2)], [0, 5])
    assert (call.start, call.token_ids) == (0, text[6:])  # this head keeps nothing
    assert np.array_equal(call.features, states(PROMPT, 5, 8))


@pytest.mark.parametrize("num_held", range(7))
def test_of_an_opening_a_head_is_shown_what_it_does_not_hold(num_held, short_memory):
    head = ScriptedHead(num_held=num_held)
    drafter = EagleDrafter(head)
    text = [*PROMPT, 7]
    show(drafter, [view_of(text)])
    propose(drafter, view_of(text))
    *before, (call,) = head.calls
    assert [(c.start, c.token_ids) for (c,) in before] == [(num_held, text[1 + num_held : 3])] * (
        num_held < 2
    )
    begin = max(5, num_held)
    assert (call.start, call.token_ids) == (num_held, text[begin + 1 :])


def test_a_head_that_rested_for_long_catches_up_in_parts(monkeypatch):
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    text = [*PROMPT, 7]
    show(drafter, [view_of(text)])
    propose(drafter, view_of(text))
    monkeypatch.setattr(_head, "CATCH_UP_ROWS", 3)
    text += [1, 2, 3, 4, 5, 6, 7, 8]
    show(drafter, [view_of(text)])
    results = [propose(drafter, view_of(text, carry=(8,))) for _ in "abc"]
    assert [len(r.proposals[0].token_ids) for r in results] == [0, 0, 4]
    assert [r.asked[0].num_left for r in results] == [5, 2, 0]
    calls = [call for (call,) in head.calls[1:]]
    assert [(c.start, len(c.token_ids), c.carry) for c in calls] == [
        (8, 3, ()),
        (11, 3, ()),
        (14, 2, (8,)),
    ]


def test_proposals_go_behind_the_carry():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    text, carry = [*PROMPT, 7], (11, 12)
    show(drafter, [view_of(text)])
    (proposal,) = propose(drafter, view_of(text, carry=carry)).proposals
    assert proposal.token_ids[0] == hash_text([*text, *carry])


@pytest.mark.parametrize("limit", [1, 3, 16])
def test_a_call_asks_for_what_the_limit_and_the_judge_allow(limit):
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    show(drafter, [view_of(PROMPT)])
    propose(drafter, view_of(PROMPT), limit, least=0.3)
    ((call,),) = head.calls
    assert (call.max_tokens, call.max_depth) == (limit, min(limit, MAX_DEPTH))
    assert (call.width, call.least) == (WIDTH, 0.3)


def test_a_tree_takes_the_passes_that_are_paid_for():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    views = [view_of(PROMPT, 1), view_of(PROMPT, 2)]
    show(drafter, views)
    found = drafter.propose(
        views, [6, 6], undecided._replace(passes=lambda ids, _: [2, 8])
    ).proposals
    assert [call.max_depth for call in head.calls[0]] == [2, 6]
    assert [len(p.token_ids) for p in found] == [6, 6]
    assert [max(p.depths) for p in found] == [1, 5]


def test_omens_say_how_sure_the_head_is():
    buckets = list(FIRST_ODDS.values())
    assert buckets == sorted(buckets)
    drafter = EagleDrafter(ScriptedHead())
    show(drafter, [view_of(PROMPT)])
    (proposal,) = propose(drafter, view_of(PROMPT), 16).proposals
    sure, unsure = proposal.omens[0], min(proposal.omens)
    assert abs(FIRST_ODDS[sure] - LIKELY) < 0.15
    assert FIRST_ODDS[unsure] < 0.2


def test_buckets_hold_their_middle():
    for omen, middle in FIRST_ODDS.items():
        draft = eagle.HeadDraft((1,), (-1,), (np.log(middle),))
        assert eagle._proposal(draft).omens == (omen,)
        assert 0 < middle < 1
        assert exp(draft.logprobs[0]) == pytest.approx(middle)


def test_sequences_share_a_call():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    views = [view_of(PROMPT, 1), view_of([4], 2), view_of(PROMPT[:3], 3)]
    show(drafter, views)
    found = drafter.propose(views, [2, 2, 2], Judge(undecided.odds)).proposals
    assert [len(p.token_ids) for p in found] == [2, 0, 2]
    assert [[c.sequence_id for c in calls] for calls in head.calls] == [[1, 3]]


def test_a_refused_sequence_is_named():
    head = ScriptedHead(max_sequences=1)
    drafter = EagleDrafter(head)
    views = [view_of(PROMPT, 1), view_of(PROMPT, 2)]
    show(drafter, views)
    result = drafter.propose(views, [2, 2])
    assert result.failed == (1,)
    assert [len(p.token_ids) for p in result.proposals] == [2, 0]


def test_a_failed_call_is_raised_and_leaves_nothing_after_the_end():
    head = ScriptedHead(fail_at=[0])
    drafter = EagleDrafter(head)
    show(drafter, [view_of(PROMPT)])
    with pytest.raises(DecoderFailed):
        propose(drafter, view_of(PROMPT))
    drafter.end([1])
    assert not head.caches
    assert not drafter._head._states


def test_a_text_longer_than_the_head_gets_no_drafts():
    head = ScriptedHead(max_sequence_length=8)
    drafter = EagleDrafter(head)
    text = [*PROMPT, 7]
    show(drafter, [view_of(text)])
    assert propose(drafter, view_of(text)).proposals[0].token_ids
    text.append(8)
    show(drafter, [view_of(text)])
    assert propose(drafter, view_of(text)).proposals[0].token_ids == ()


@pytest.mark.parametrize("num_held", range(7))
@pytest.mark.parametrize("first", range(8))
def test_a_head_goes_on_from_the_rows_it_holds(first, num_held):
    """What the target had cached was never shown; what the head holds is not shown again."""
    head = ScriptedHead(num_held=num_held)
    drafter = EagleDrafter(head)
    text = [*PROMPT, 7]
    show(drafter, [view_of(text)], first=first)
    (proposal,) = propose(drafter, view_of(text)).proposals
    assert proposal.token_ids[0] == hash_text(text)
    ((call,),) = head.calls
    begin = max(first, num_held)
    assert (call.start, call.token_ids) == (num_held, text[begin + 1 :])
    assert np.array_equal(call.features, states(text, begin, 8))
    text += [8, 9]
    show(drafter, [view_of(text)])
    assert propose(drafter, view_of(text)).proposals[0].token_ids[0] == hash_text(text)
    drafter.end([1])
    assert head.closed == [(1, num_held + len(text) - 1 - begin)]


def test_a_head_is_told_the_salt():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    views = [view_of(PROMPT, i)._replace(cache_salt=i + 2) for i in (1, 2)]
    show(drafter, views)
    propose(drafter, views[0])
    drafter.end([1, 2])
    assert head.salts == {1: 3, 2: 4}


def test_a_text_that_nothing_was_drafted_for_leaves_its_opening():
    """The target has cached it and will not give its states again."""
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    drafter.begin(view_of(PROMPT))
    text = list(PROMPT)
    view = view_of(PROMPT)._replace(token_ids=text)
    drafter.absorb(view, 0, states(PROMPT, 0, 8))
    text.append(7)  # the engine's own list
    drafter.observe(view, Verdict((7,), (0.0,), 0))
    drafter.end([1])
    ((call,),) = head.calls
    assert (call.start, call.token_ids, call.max_tokens) == (0, text[1:], 0)
    assert np.array_equal(call.features, states(PROMPT, 0, 8))
    assert head.closed == [(1, 8)]


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("num_states", range(9))
def test_an_ended_prompt_leaves_as_much_as_is_known(size, num_states):
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    num_states = min(num_states, size)
    drafter.absorb(view_of(PROMPT[:size]), 0, states(PROMPT, 0, num_states) if num_states else NONE)
    drafter.end([1])
    num_rows = min(num_states, size - 1)
    assert [len(call.token_ids) for (call,) in head.calls] == [num_rows] * (num_rows > 0)
    assert head.closed == [(1, num_rows)] * (num_rows > 0)


def test_an_opening_that_the_head_holds_is_not_shown_again(monkeypatch):
    monkeypatch.setattr(_head, "OPENING_ROWS", 6)
    head = ScriptedHead(num_held=6)
    drafter = EagleDrafter(head)
    show(drafter, [view_of(PROMPT)])
    drafter.end([1])
    assert head.calls == []
    assert head.closed == [(1, 6)]


def test_a_text_whose_opening_was_never_seen_needs_no_slot():
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    show(drafter, [view_of(PROMPT, 1)], first=5)
    drafter.end([1, 2])
    assert head.salts == {}
    assert head.closed == []


def test_a_long_text_that_nothing_was_drafted_for_leaves_its_opening(short_memory):
    head = ScriptedHead()
    drafter = EagleDrafter(head)
    show(drafter, [view_of(PROMPT)])
    drafter.end([1])
    ((call,),) = head.calls
    assert (call.start, call.token_ids) == (0, PROMPT[1:3])
    assert head.closed == [(1, 2)]


@pytest.mark.parametrize("num_reused", [0, 5])
def test_a_head_that_knows_the_text_is_accepted_whole(num_reused):
    """Through the engine: a head that were a token off would see states of another text."""
    harness = Harness(target=ScriptedDecoder(num_reused=num_reused))
    head = ScriptedHead()
    sink = harness.submit(PROMPT, 31, drafter=make_drafter("eagle", head), num_draft_tokens=5)
    harness.run()
    assert sink.token_ids == reference_text(PROMPT, 31, hash_text)
    (first,) = head.calls[0]
    assert first.start == 0
    assert first.token_ids == [*PROMPT, sink.token_ids[0]][num_reused + 1 :]
    flags = [flag for chunk in sink.chunks for flag in chunk.from_draft]
    assert sum(flags) >= 20
    assert not head.caches


def test_an_opening_that_fails_leaves_no_slot(short_memory):
    head = ScriptedHead(fail_at=[0, 1])
    drafter = EagleDrafter(head)
    show(drafter, [view_of(PROMPT)])
    assert propose(drafter, view_of(PROMPT)).failed == (0,)
    assert not head.caches
    with pytest.raises(DecoderFailed):
        drafter.end([1])
    assert not head.caches
