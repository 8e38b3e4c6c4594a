"""What a draft model's own confidence tells: how its tokens are judged, and where it stops."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from specdec.drafters._buckets import BUCKET_ODDS
from specdec.drafters.base import DraftView, Judge
from specdec.drafters.draft_model import DRAWN, FIRST_ODDS, LIKELIEST, DraftModelDrafter
from specdec.types import Extended, SamplingParams
from support.fakes import ScriptedDecoder

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=3)
PROMPT = [3, 1, 4, 1, 5]


class Confident(ScriptedDecoder):
    """A draft model that gives its draft tokens these probabilities."""

    def __init__(self, *probs):
        super().__init__()
        self.logprobs = [math.log(p) for p in probs]

    def open(self, sequence_id, prompt_ids, sampling, cache_salt=0):
        assert sampling.logprobs, "a draft is judged by them"
        return super().open(sequence_id, prompt_ids, sampling, cache_salt)

    def _extend(self, call):
        size = 1
        while size <= call.num_draft_steps and sum(self.logprobs[:size]) >= call.least_logprob:
            size += 1
        found = super()._extend(call._replace(num_draft_steps=size - 1, least_logprob=-math.inf))
        return Extended(found.token_ids, tuple(self.logprobs[:size]))


def view_of(sequence_id=1, sampling=GREEDY):
    return DraftView(sequence_id, list(PROMPT), len(PROMPT), sampling)


def omens(sampling, *probs):
    drafter = DraftModelDrafter(Confident(*probs))
    (proposal,) = drafter.propose([view_of(1, sampling)], [len(probs)]).proposals
    return proposal.omens


def test_omens_tell_how_sure_the_draft_was():
    probs = (0.99, 0.5, 0.03, 0.7, 0.31)
    for omen, prob in zip(omens(GREEDY, *probs), probs, strict=True):
        assert FIRST_ODDS[omen] == pytest.approx(prob, abs=0.08)
    ordered = omens(GREEDY, 1.0, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.01)
    assert all(a > b for a, b in pairwise(ordered))
    assert {*ordered} == {*range(LIKELIEST, DRAWN)}


def test_a_client_that_wants_no_logprobs_gets_the_same_drafts():
    probs = (0.9, 0.5, 0.03)
    for sampling in (GREEDY, SAMPLED):
        assert omens(replace(sampling, logprobs=False), *probs) == omens(sampling, *probs)


def test_a_token_that_was_drawn_is_another_omen_than_the_likeliest():
    """Coupled draws agree where neither is likely."""
    probs = (0.9, 0.5, 0.03)
    greedy, drawn = omens(GREEDY, *probs), omens(SAMPLED, *probs)
    assert not {*greedy} & {*drawn}
    assert all(FIRST_ODDS[b] > FIRST_ODDS[a] for a, b in zip(greedy, drawn, strict=True))
    assert omens(SamplingParams(temperature=1.0, top_k=1), *probs) == greedy


def test_every_omen_has_first_odds():
    for first in (LIKELIEST, DRAWN):
        odds = [FIRST_ODDS[first + bucket] for bucket in range(8)]
        assert odds == sorted(odds)
        assert 0 < odds[0] < odds[-1] < 1
    assert DraftModelDrafter.first_odds is FIRST_ODDS


def trusting(trust, **options):
    """A judge that has seen tokens hold with odds p ** trust where the draft said p."""
    names = [*BUCKET_ODDS, *BUCKET_ODDS]
    return Judge(lambda _: lambda omen, depth: names[omen - LIKELIEST] ** trust, **options)


def drafted(judge, *sequence_ids, limit=5, sampling=GREEDY):
    """Drafts of 0.8, 0.64, ...: lengths, and the thresholds that were asked for."""
    decoder = Confident(*[0.8] * limit)
    views = [view_of(i, sampling) for i in sequence_ids]
    result = DraftModelDrafter(decoder).propose(views, [limit] * len(views), judge)
    assert [a.num_passes for a in result.asked.values()] == [
        len(p.token_ids) for p in result.proposals
    ]
    (calls,) = decoder.calls
    return [len(p.token_ids) for p in result.proposals], [c.least_logprob for c in calls]


def test_a_draft_stops_behind_the_token_that_makes_it_too_unlikely():
    """Each sequence at its own odds; one whose length was asked for does not."""
    judge = trusting(1.0, stops={1: 0.6, 2: 0.9, 3: 0.3})
    lengths, leasts = drafted(judge, 1, 2, 3, 4)
    assert lengths == [3, 1, 5, 5]
    assert leasts[:3] == pytest.approx([math.log(p) for p in (0.6, 0.9, 0.3)])
    assert leasts[3] == -math.inf
    assert drafted(judge, 1, limit=1) == ([1], [-math.inf])  # nothing could be saved


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("trust", "length"), [(0.25, 5), (0.5, 5), (1.0, 3), (2.0, 2), (9.0, 1)])
def test_doubts_count_as_much_as_they_have_proved_right(sampling, trust, length):
    judge = trusting(trust, stops={1: 0.6})
    lengths, leasts = drafted(judge, 1, sampling=sampling)
    assert lengths == [length]
    assert leasts == pytest.approx([math.log(0.6) / trust])


def test_doubts_that_are_always_wrong_stop_nothing():
    assert drafted(trusting(0.0, stops={1: 0.6}), 1) == ([5], [-math.inf])


def test_where_no_draft_token_can_pay_a_pass_one_is_drafted():
    for least in (1.0, 7.0):
        assert drafted(trusting(1.0, stops={1: least}), 1)[0] == [1]
