"""The loop over trees: what a branch is worth, where a carry ends, and how both are counted."""

import random

import pytest

from specdec.drafters.base import Asked, ProposeResult, undecided
from specdec.errors import DecoderFailed
from specdec.speculation.controller import Controller
from specdec.types import Proposal
from support.engine import Harness, make_drafter
from support.fakes import (
    ScriptedDecoder,
    ScriptedDrafter,
    ScriptedTreeDrafter,
    hash_text,
    reference_text,
)

WRONG = {
    "always": lambda position: True,
    "every third": lambda position: position % 3 == 0,
    "random": lambda position: random.Random(position).random() < 0.4,
}
PROMPTS = [[3, 1, 4], [1, 5], [9, 2, 6, 5, 3, 5], [8], [9, 7, 9, 7, 9, 7]]


class SmallTrees(ScriptedTreeDrafter):
    """Five tokens, whatever the limit; remembers where each tree began."""

    def __init__(self, *args):
        super().__init__(*args)
        self.starts = {}

    def _one(self, view, limit):
        self.starts[view.sequence_id] = len(view.token_ids) + len(view.carry)
        return super()._one(view, min(limit, 5))


def steps_if_branches_were_emitted(is_wrong, position, num_tokens):
    """What a tree would need whose branches lay in the cache as plain text does: passes that write
    `num_tokens` from `position` on, each the longest path of its tree and one token more."""
    end, num_steps = position + num_tokens, 0
    while position < end:
        room, depth = 5, 0
        while room >= (cost := 2 if is_wrong(position + depth) else 1):
            room, depth = room - cost, depth + 1
        position, num_steps = position + depth + 1, num_steps + 1
    return num_steps


@pytest.mark.parametrize("wrong", ["always", "every third", "random"])
@pytest.mark.parametrize("num_tokens", [20, 61, 150])
def test_a_branch_costs_no_tokens(wrong, num_tokens):
    """What it leads to is carried; only the text's last tokens may wait for one more pass."""
    is_wrong, prompt = WRONG[wrong], [5, 6, 7]
    num_steps = {}
    for drafter in (SmallTrees(hash_text, is_wrong), ScriptedDrafter(hash_text, is_wrong)):
        harness = Harness()
        sink = harness.submit(prompt, num_tokens, drafter=drafter, num_draft_tokens=16)
        harness.run()
        assert sink.token_ids == reference_text(prompt, num_tokens, hash_text)
        num_steps[drafter.name] = len(harness.target.calls) - 1  # but for the prompt's
    best = steps_if_branches_were_emitted(is_wrong, 4, num_tokens - 1)
    assert num_steps["scripted_tree"] in (best, best + 1)
    assert num_steps["scripted_tree"] < 0.8 * num_steps["scripted"]


@pytest.mark.parametrize("num_tokens", range(1, 24))
def test_a_carry_ends_with_the_text_and_the_slot(num_tokens):
    """The scripted target asserts that nothing is written behind its last place."""
    prompt = [3, 1, 4] * 4
    harness = Harness(target=ScriptedDecoder(max_sequence_length=12 + num_tokens))
    drafter = ScriptedTreeDrafter(hash_text, WRONG["every third"])
    sinks = [
        harness.submit(prompt, num_tokens, drafter=drafter, num_draft_tokens=16) for _ in range(2)
    ]
    harness.run()
    for sink in sinks:
        assert sink.token_ids == reference_text(prompt, num_tokens, hash_text)
    for call in harness.target.calls:
        for share in call:
            assert share.start + len(share.token_ids) < 12 + num_tokens


def test_a_carry_is_verified_though_the_drafter_is_not_asked(monkeypatch):
    """Nothing pays any more: what the target has drawn already is still its next tokens."""
    limits, num_calls = Controller.limits, 0

    def every_other(self, candidates, **options):
        nonlocal num_calls
        num_calls += 1
        found = limits(self, candidates, **options)
        return found if num_calls % 2 else [0] * len(found)

    monkeypatch.setattr(Controller, "limits", every_other)
    harness = Harness()
    drafter = SmallTrees(hash_text, WRONG["always"])  # two of the five tokens hold
    num_calls = 0
    sink = harness.submit([5], 25, drafter=drafter, num_draft_tokens=8)
    harness.run()
    assert sink.token_ids == reference_text([5], 25, hash_text)
    # One of the trunk's root, then two carried ones and the bonus; again and again.
    assert sorted({len(chunk.token_ids) for chunk in sink.chunks[1:-1]}) == [1, 3]
    assert len(harness.target.calls) < 15


class NoisyBranches(ScriptedDecoder):
    """Draws otherwise on a branch: the same text at other places of a cache may round apart."""

    def _extend(self, call):
        result = super()._extend(call)
        trunk = 0
        while trunk < len(call.parents) and call.parents[trunk] == trunk - 1:
            trunk += 1
        rows = enumerate(result.token_ids)
        drawn = (7 if i > trunk and (i + call.start) % 3 == 0 else t for i, t in rows)
        return result._replace(token_ids=tuple(drawn)) if call.parents else result


@pytest.mark.parametrize("name", ["scripted_tree", "recycle", "auto"])
@pytest.mark.parametrize("num_draft_tokens", [2, 5, 16])
def test_what_a_branch_drew_is_only_a_draft(name, num_draft_tokens):
    harness = Harness(target=NoisyBranches())
    drafter = make_drafter(name, is_wrong=WRONG["random"])
    for _ in range(3):
        for prompt in PROMPTS:
            harness.submit(prompt, 40, drafter=drafter, num_draft_tokens=num_draft_tokens)
    harness.run()
    for prompt, sink in zip(PROMPTS * 3, harness.sinks, strict=True):
        assert sink.token_ids == reference_text(prompt, 40, hash_text)


def test_a_drafter_that_fails_takes_the_carry_with_it():
    class Failing(SmallTrees):
        def propose(self, views, limits, judge=None):
            if any(view.carry for view in views):
                raise DecoderFailed("scripted failure")
            return super().propose(views, limits, judge)

    harness = Harness()
    drafter = Failing(hash_text, WRONG["always"])
    sink = harness.submit([5], 20, drafter=drafter, num_draft_tokens=8)
    harness.run()
    assert sink.token_ids == reference_text([5], 20, hash_text)
    sizes = [len(call[0].token_ids) for call in harness.target.calls]
    assert sizes == [1, 6] + [1] * 18  # the prompt, a tree of five, plain decoding
    assert harness.metrics.take().counters["draft_errors_total"] == 1
    assert not drafter.open


@pytest.mark.parametrize("wrong", ["always", "every third", "random"])
@pytest.mark.parametrize("name", ["scripted_tree", "recycle", "auto"])
def test_counters_add_up_with_what_was_carried(name, wrong):
    harness = Harness()
    drafter = make_drafter(name, is_wrong=WRONG[wrong])
    for prompt in PROMPTS * 2:
        harness.submit(prompt, 33, drafter=drafter, num_draft_tokens=7)
    sequences, carried = list(harness.engine.scheduler.waiting), 0
    while harness.engine.scheduler.waiting or harness.engine.scheduler.running:
        carried += sum(len(s.carry) for s in harness.engine.scheduler.running)
        harness.step()
    assert carried > 0
    taken = harness.metrics.take()
    drafted = [share.num_outputs - 1 for call in harness.target.calls for share in call]
    drafts = [size for size in drafted if size]
    accepted = sum(flag for sink in harness.sinks for c in sink.chunks for flag in c.from_draft)
    assert taken.counters["spec_decode_num_drafts_total"] == len(drafts)
    assert taken.counters["spec_decode_num_draft_tokens_total"] == sum(drafts)
    assert taken.counters["spec_decode_num_accepted_tokens_total"] == accepted
    assert sum(taken.per_position.values()) == accepted <= sum(drafts)
    counts = [taken.per_position[i] for i in range(len(taken.per_position))]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] <= len(drafts)
    assert taken.counters["generation_tokens_total"] == 33 * len(sequences)
    for sequence in sequences:
        stats = sequence.stats
        assert stats.num_accepted_tokens <= stats.num_draft_tokens
        assert stats.num_output_tokens == stats.num_accepted_tokens + stats.num_steps


@pytest.mark.parametrize("wrong", ["always", "every third", "random"])
@pytest.mark.parametrize("end", range(4, 30, 3))
def test_proposals_are_judged_by_what_the_target_writes_there(monkeypatch, wrong, end):
    """With trees, carries, and an end inside a block: what was drawn behind it follows nothing."""
    prompt, text = [5], reference_text([5], 60, hash_text)
    drafter, judged = SmallTrees(hash_text, WRONG[wrong]), []

    def judge(_, candidate, proposal, output_ids):
        if not proposal.token_ids:
            return
        first = drafter.starts[candidate.sequence_id] - len(prompt)
        judged.append(len(output_ids))
        assert tuple(output_ids) == tuple(text[first : first + len(output_ids)])

    monkeypatch.setattr(Controller, "observe_text", judge)
    harness = Harness()
    sink = harness.submit(prompt, 40, drafter=drafter, num_draft_tokens=8, end_ids=(text[end],))
    harness.run()
    assert sink.token_ids == text[: text.index(text[end]) + 1]
    assert judged


def test_proposing_nothing_is_judged_too(monkeypatch):
    """A drafter that finds nothing may have asked a model in vain: its planner must hear of it."""
    text, judged = reference_text([5], 12, hash_text), []

    class FindsNothing(SmallTrees):
        def _one(self, view, limit):
            return Proposal()

    def judge(_, candidate, proposal, output_ids):
        judged.append((proposal.token_ids, *output_ids))

    monkeypatch.setattr(Controller, "observe_text", judge)
    harness = Harness()
    drafter = FindsNothing(hash_text, WRONG["always"])
    harness.submit([5], 12, drafter=drafter, num_draft_tokens=8)
    harness.run()
    assert judged == [((), token_id) for token_id in text]


def test_who_still_catches_up_or_failed_has_not_answered(monkeypatch):
    heard = []

    class Late(SmallTrees):
        needs_model = False

        def propose(self, views, limits, judge=undecided):
            asked = {0: Asked(1, 256, 40), 1: Asked(1, 3)}
            return ProposeResult([Proposal()] * len(views), asked=asked, failed=(2,))

    def unanswered(_, name, sequence_ids):
        heard.append((name, sequence_ids))

    monkeypatch.setattr(Controller, "unanswered", unanswered)
    harness, drafter = Harness(), Late(hash_text, WRONG["always"])
    for _ in range(3):
        harness.submit([5], 9, drafter=drafter, num_draft_tokens=8)
    harness.step(2)
    assert heard == [("scripted_tree", [1, 3])]
