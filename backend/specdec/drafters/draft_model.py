"""A small model proposes autoregressively: all sequences and all K tokens in one decoder call.

It samples with the target's own noise (same seed, position and token id), so that its draw and
the target's are coupled and agree more often than independent draws would.

What an omen says is the probability the draft itself gave a token; how far that can be trusted, the
judge learns. Where the draft has lost confidence in a sequence, its call goes on without it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log, sqrt
from typing import ClassVar, cast

from specdec.drafters._buckets import BUCKET_ODDS, bucket_of
from specdec.drafters._calls import gather
from specdec.drafters.base import Asked, Drafter, DraftView, Judge, ProposeResult, undecided
from specdec.sampling import is_greedy
from specdec.types import Decoder, DecoderInfo, Extend, Head, Proposal, SamplingParams, Verdict

CATCH_UP_TOKENS = 256  # rows one call may spend on a sequence the draft has not followed
# Omens: buckets of the draft's own probabilities where the likeliest token is taken; then the same
# where tokens are drawn: with the same noise, two draws agree more often than either is likely.
LIKELIEST = 1
DRAWN = LIKELIEST + len(BUCKET_ODDS)
FIRST_ODDS = {
    **dict(enumerate(BUCKET_ODDS, start=LIKELIEST)),
    **dict(enumerate(map(sqrt, BUCKET_ODDS), start=DRAWN)),
}
_USUAL = range(2, 6)  # buckets that show whether doubts can be trusted: seen often, and not sure


@dataclass(slots=True)
class DraftState:
    """What the draft's cache holds of one sequence.

    token_ids     [ ........ committed ........ ]
    draft cache   [ num_cached ]  then, during a step, the drafts it fed itself
    """

    num_cached: int
    num_drafted: int = 0  # of the step under way


class DraftModelDrafter(Drafter):
    """Any exported model with the target's tokenizer."""

    name: ClassVar[str] = "draft_model"
    model: ClassVar = "draft"
    first_odds = FIRST_ODDS

    def __init__(self, model: Decoder | Head | None = None) -> None:
        super().__init__()
        assert model is not None, "the draft_model drafter needs a decoder"
        self._decoder = cast(Decoder, model)
        self._info: DecoderInfo | None = None
        self._states: dict[int, DraftState] = {}

    def propose(
        self, views: Seq[DraftView], limits: Seq[int], judge: Judge = undecided
    ) -> ProposeResult:
        if self._info is None:
            self._info = self._decoder.describe()
        proposals = [Proposal()] * len(views)
        call_for = partial(self._extend, judge=judge)
        calls, failed = gather(views, limits, call_for, model="draft model")
        if not calls:
            return ProposeResult(proposals, failed=failed)
        began = time.perf_counter()
        result = self._decoder.extend(list(calls.values()))
        seconds = time.perf_counter() - began
        asked: dict[int, Asked] = {}
        for (index, call), sampled in zip(calls.items(), result.sequences, strict=True):
            state = self._states[call.sequence_id]
            state.num_cached = call.start + len(call.token_ids)
            state.num_drafted = len(sampled.token_ids)
            first = _first_omen(views[index].sampling)
            omens = tuple(first + bucket_of(logprob) for logprob in sampled.logprobs)
            proposals[index] = Proposal(sampled.token_ids, omens)
            num_left = len(views[index].token_ids) - state.num_cached
            asked[index] = Asked(max(state.num_drafted, 1), len(call.token_ids), num_left)
        return ProposeResult(proposals, seconds, result.compute_seconds, failed, asked)

    def _extend(self, view: DraftView, limit: int, judge: Judge) -> Extend | None:
        """This sequence's share of the call; None when the draft cannot hold the sequence."""
        assert self._info is not None
        state = self._states.get(view.sequence_id)
        if state is None:
            if len(view.token_ids) >= self._info.max_sequence_length:
                return None
            prompt_ids = view.token_ids[: view.num_prompt_tokens]
            sampling = replace(view.sampling, logprobs=True)  # omens, whatever the client wants
            num_cached = self._decoder.open(view.sequence_id, prompt_ids, sampling, view.cache_salt)
            state = self._states[view.sequence_id] = DraftState(num_cached)
        room = self._info.max_sequence_length - len(view.token_ids)
        limit = min(limit, room)
        if limit < 1:
            return None
        pending = view.token_ids[state.num_cached :]
        assert pending, (state, len(view.token_ids))
        if len(pending) > CATCH_UP_TOKENS:
            return Extend(view.sequence_id, state.num_cached, pending[:CATCH_UP_TOKENS], 0)
        least = _least_logprob(view, judge) if limit > 1 else -inf
        return Extend(
            view.sequence_id, state.num_cached, pending, 1, limit - 1, least_logprob=least
        )

    def observe(self, view: DraftView, verdict: Verdict) -> None:
        """Rewind to what was committed.

        Drafts d1..dk: the cache holds d1..d(k-1), for dk was never fed. After full acceptance the
        next call therefore feeds dk and the bonus token.
        """
        state = self._states.get(view.sequence_id)
        if state is not None and state.num_drafted:
            state.num_cached += min(verdict.num_accepted, state.num_drafted - 1)
            state.num_drafted = 0
            assert state.num_cached < len(view.token_ids), (state, len(view.token_ids))

    def end(self, sequence_ids: Seq[int]) -> None:
        states = {i: self._states.pop(i) for i in sequence_ids if i in self._states}
        if states:
            self._decoder.close([(i, state.num_cached) for i, state in states.items()])


def _first_omen(sampling: SamplingParams) -> int:
    return LIKELIEST if is_greedy(sampling) else DRAWN


def _least_logprob(view: DraftView, judge: Judge) -> float:
    """Below which log-probability, as the draft sees it, a path is less likely to hold than the
    judge's `stops` ask for.

    The draft's doubts count as much as they have proved right: where it says p, the odds are about
    p ** trust, along a path too.
    """
    least = judge.stops.get(view.sequence_id, 0.0)
    if least <= 0.0:
        return -inf
    odds, first = judge.odds(view.sequence_id), _first_omen(view.sampling)
    held = sum(log(odds(first + bucket, 0)) for bucket in _USUAL)
    trust = held / sum(log(BUCKET_ODDS[bucket]) for bucket in _USUAL)
    return min(log(least) / trust, 0.0) if trust else -inf
