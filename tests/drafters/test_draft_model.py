"""What a draft model's own confidence tells: how its tokens are judged."""

import math
from itertools import pairwise

import pytest

from specdec.drafters.base import DraftView
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

    def _extend(self, call):
        found = super()._extend(call)
        return Extended(found.token_ids, tuple(self.logprobs[: len(found.token_ids)]))


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
