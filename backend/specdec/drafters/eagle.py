"""A trained head drafts from the target's own hidden states: EAGLE-3 (arXiv 2503.01840).

    position          0    1    2    3    4
    text              t0   t1   t2   t3   t4          t4 is the newest, in no cache yet
    target's states   f0   f1   f2   f3               f3 is what t4 was drawn from
    rows of the head  f0t1 f1t2 f2t3 f3t4             the last one predicts what follows t4

The head feeds itself from there on, and its tree is what it finds likeliest. What an omen says is
the probability the head itself gave a token; how far that can be trusted, the judge learns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import exp
from typing import ClassVar, cast

import numpy as np

from specdec.drafters._calls import gather
from specdec.drafters.base import Drafter, DraftView, Judge, ProposeResult, undecided
from specdec.types import Decoder, Features, Head, HeadCall, HeadDraft, Proposal

CATCH_UP_ROWS = 512  # rows one call may spend on a sequence the head has not followed
WIDTH = 4  # branches of a token, and tokens that a pass goes on from
MAX_DEPTH = 8  # passes of a tree; text that is sure of itself for longer repeats, and is copied
_EDGES = (0.05, 0.12, 0.25, 0.4, 0.6, 0.8, 0.93)  # between buckets of probabilities
# Omens count buckets from 1; 0 is that of a token nobody has seen yet, when the head is still to
# be asked.
FIRST_ODDS = {
    0: 0.5,
    **{o: (a + b) / 2 for o, (a, b) in enumerate(pairwise((0.0, *_EDGES, 1.0)), start=1)},
}


@dataclass(slots=True, eq=False)
class EagleState:
    """What a head has of one sequence.

    target's states   [ never seen | rows in its cache | pending ]
    position            0 ...        first ...           first + num_rows ...
    """

    first: int
    num_rows: int = 0
    pending: list[Features] = field(default_factory=list)
    is_open: bool = False

    @property
    def end(self) -> int:
        """The position after the last one that is known."""
        return self.first + self.num_rows + sum(len(part) for part in self.pending)

    def take(self, count: int) -> Features:
        """The next `count` pending rows, or all that there are; they stay pending."""
        if len(self.pending) > 1:
            self.pending = [np.concatenate(self.pending)]
        return self.pending[0][:count]

    def keep(self, count: int) -> None:
        """`count` pending rows are in the head's cache now."""
        self.num_rows += count
        rest = self.pending[0][count:]
        self.pending = [rest] if len(rest) else []


class EagleDrafter(Drafter):
    """A head trained for this target, with the target's hidden states."""

    name: ClassVar[str] = "eagle"
    uses_model: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True
    first_odds = FIRST_ODDS

    def __init__(self, decoder: Decoder | Head | None = None) -> None:
        super().__init__()
        assert decoder is not None, "the eagle drafter needs a head"
        self._decoder = cast(Head, decoder)
        self._max_rows: int | None = None
        self._states: dict[int, EagleState] = {}

    def absorb(self, view: DraftView, start: int, features: Features) -> None:
        state = self._states.setdefault(view.sequence_id, EagleState(start))
        assert start == state.end, (start, state.end)
        if len(features):
            state.pending.append(features.copy())  # not all that came with them in one frame

    def propose(
        self, views: Seq[DraftView], limits: Seq[int], judge: Judge = undecided
    ) -> ProposeResult:
        proposals = [Proposal()] * len(views)
        calls, failed = gather(views, limits, partial(self._call, judge=judge), model="head")
        if not calls:
            return ProposeResult(proposals, failed=failed)
        result = self._decoder.draft(list(calls.values()))
        for (index, call), draft in zip(calls.items(), result.drafts, strict=True):
            self._states[call.sequence_id].keep(len(call.token_ids))
            proposals[index] = _proposal(draft)
        return ProposeResult(proposals, result.compute_seconds, failed)

    def _call(self, view: DraftView, limit: int, judge: Judge) -> HeadCall | None:
        """This sequence's share of the call; None when nothing can be drafted from."""
        state = self._states.get(view.sequence_id)
        if state is None or not state.pending:
            return None
        if self._max_rows is None:
            self._max_rows = self._decoder.describe().max_sequence_length
        features = state.take(CATCH_UP_ROWS)
        if state.num_rows + len(features) > self._max_rows:
            return None  # too long for the head
        if not state.is_open:
            self._decoder.open(view.sequence_id, view.token_ids, view.sampling)
            state.is_open = True
        begin = state.first + state.num_rows + 1  # a row's token is the one after its position
        token_ids = view.token_ids[begin : begin + len(features)]
        assert len(token_ids) == len(features), (state, len(view.token_ids))
        has_caught_up = begin + len(features) == len(view.token_ids)
        return HeadCall(
            view.sequence_id,
            state.num_rows,
            token_ids,
            features,
            carry=view.carry if has_caught_up else (),
            max_tokens=limit if has_caught_up else 0,
            max_depth=min(judge.passes.get(view.sequence_id, limit), limit, MAX_DEPTH),
            width=WIDTH,
            least=judge.least,
        )

    def end(self, sequence_ids: Seq[int]) -> None:
        states = {i: self._states.pop(i) for i in sequence_ids if i in self._states}
        is_open = [(i, state.num_rows) for i, state in states.items() if state.is_open]
        if is_open:
            self._decoder.close(is_open)


def _proposal(draft: HeadDraft) -> Proposal:
    omens = tuple(1 + bisect_right(_EDGES, exp(logprob)) for logprob in draft.logprobs)
    return Proposal(draft.token_ids, omens, draft.parents)
