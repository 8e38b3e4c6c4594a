"""Feeds a trained head with the target's hidden states, for the drafters that ask one.

    position          0    1    2    3    4
    text              t0   t1   t2   t3   t4          t4 is the newest, in no cache yet
    target's states   f0   f1   f2   f3               f3 is what t4 was drawn from
    rows of the head  f0t1 f1t2 f2t3 f3t4             the last one predicts what follows t4

The head feeds itself from there on, and its tree is what it finds likeliest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specdec.drafters._calls import gather
from specdec.drafters.base import Asked, DraftView, ProposeResult
from specdec.types import Features, Head, HeadCall, HeadDraft, Proposal

# Last rows that a head is shown of a text it has not followed: most of what it goes by are the
# target's states there, a thousand rows cost ten passes of a target, and its training texts were
# short. The first ones are what its attention was trained to rest on: with 64 of them, 8 prompts of
# 370 to 800 tokens made 8 % more tokens a pass; with 8 or with 128, 2 % less and as many.
CATCH_UP_ROWS = 256
OPENING_ROWS = 64
WIDTH = 4  # branches of a token, and tokens that a pass goes on from
MAX_DEPTH = 8  # passes of a tree; text that is sure of itself for longer repeats, and is copied


@dataclass(slots=True, eq=False)
class _State:
    """What a head has of one sequence.

    target's states   [ never seen | rows in its cache | pending ]
    position            0 ...        first ...           first + num_rows ...

    Rows that it had before are of the text's beginning, which may lie further back.
    """

    view: DraftView  # as it was seen first
    first: int
    num_rows: int = 0
    pending: list[Features] = field(default_factory=list)
    is_open: bool = False
    opening: Features | None = None  # of the first rows, where those behind them were dropped

    @property
    def num_pending(self) -> int:
        return sum(len(part) for part in self.pending)

    @property
    def end(self) -> int:
        """The position after the last one that is known."""
        return self.first + self.num_rows + self.num_pending

    def take(self, count: int) -> Features:
        """The next `count` pending rows, or all that there are; they stay pending."""
        if len(self.pending) > 1:
            self.pending = [np.concatenate(self.pending)]
        return self.pending[0][:count]

    def drop(self, count: int) -> None:
        """The head begins so many rows later."""
        while count > 0:
            size = min(count, len(self.pending[0]))
            self.pending[0] = self.pending[0][size:]
            if not len(self.pending[0]):
                self.pending.pop(0)
            self.first, count = self.first + size, count - size

    def shorten(self) -> None:
        """To the opening and the end, of a text that the head has not followed yet."""
        excess = self.num_pending - CATCH_UP_ROWS
        if excess > 0 and self.first == 0:
            self.opening = self.take(OPENING_ROWS).copy()
        self.drop(excess)

    def opening_rows(self) -> tuple[Seq[int], Features]:
        """Tokens and states, as far as they are known and not in a cache."""
        if self.opening is not None:
            features = self.opening
        elif self.first == 0 and self.pending:
            features = self.take(OPENING_ROWS)
        else:
            return [], np.empty((0, 0), np.float16)
        token_ids = self.view.token_ids[1 : 1 + len(features)]
        return token_ids, features[: len(token_ids)]

    def hold(self, count: int) -> None:
        """So many rows of the text's beginning are in the head's cache already."""
        self.drop(count - self.first)
        self.first, self.num_rows, self.is_open = self.first - count, count, True

    def keep(self, count: int) -> None:
        """`count` pending rows are in the head's cache now."""
        self.num_rows += count
        rest = self.pending[0][count:]
        self.pending = [rest] if len(rest) else []


class Drafts(NamedTuple):
    """What one call to a head gave; all by index of the view."""

    found: Mapping[int, HeadDraft]
    asked: Mapping[int, Asked]
    seconds: float = 0.0
    inside_seconds: float = 0.0
    failed: tuple[int, ...] = ()

    def result(self, proposals: list[Proposal]) -> ProposeResult:
        return ProposeResult(proposals, self.seconds, self.inside_seconds, self.failed, self.asked)


class HeadFollower:
    """Every state of the target beside the token after it goes to the head once."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._max_rows: int | None = None
        self._states: dict[int, _State] = {}

    def absorb(self, view: DraftView, start: int, features: Features) -> None:
        """See `Drafter.absorb`."""
        state = self._states.setdefault(view.sequence_id, _State(view, start))
        assert start == state.end, (start, state.end)
        if len(features):
            state.pending.append(features.copy())  # not all that came with them in one frame
        if not state.is_open:
            state.shorten()

    def draft(
        self, views: Seq[DraftView], limits: Seq[int], passes: Seq[int], *, least: float
    ) -> Drafts:
        """One call for every view with passes. Raises `DecoderFailed`.

        Args:
            limits: draft tokens of each tree at most.
            least: a draft token whose path the head finds less likely is left out.
        """
        budgets = dict(zip((v.sequence_id for v in views), passes, strict=True))

        def call_for(view: DraftView, limit: int) -> HeadCall | None:
            num_passes = min(budgets[view.sequence_id], limit, MAX_DEPTH)
            return self._call(view, limit, num_passes, least) if num_passes else None

        calls, failed = gather(views, limits, call_for, model="head")
        if not calls:
            return Drafts({}, {}, failed=failed)
        began = time.perf_counter()
        result = self._head.draft(list(calls.values()))
        seconds = time.perf_counter() - began
        found, asked = {}, {}
        for (index, call), draft in zip(calls.items(), result.drafts, strict=True):
            state, num_rows = self._states[call.sequence_id], len(call.token_ids)
            state.keep(num_rows)
            found[index] = draft
            num_passes = len(call.carry) + _num_levels(draft)
            asked[index] = Asked(num_passes, num_rows, state.num_pending)
        return Drafts(found, asked, seconds, result.compute_seconds, failed)

    def _call(self, view: DraftView, limit: int, num_passes: int, least: float) -> HeadCall | None:
        """This sequence's share of the call; None when nothing can be drafted from."""
        state = self._states.get(view.sequence_id)
        if state is None or not state.pending:
            return None
        if self._max_rows is None:
            self._max_rows = self._head.describe().max_sequence_length
        if not state.is_open:
            if state.opening is not None:
                self._leave_opening(state)
            state.hold(self._open(state, state.first))
        features = state.take(CATCH_UP_ROWS)
        if state.num_rows + len(features) > self._max_rows:
            return None  # too long for the head
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
            max_depth=num_passes,
            width=WIDTH,
            least=least,
        )

    def _open(self, state: _State, first: int) -> int:
        view = state.view
        return self._head.open(
            view.sequence_id, view.token_ids, view.sampling, view.cache_salt, first
        )

    def end(self, sequence_ids: Seq[int]) -> None:
        """Forget these sequences. Raises `DecoderFailed`."""
        states = {i: self._states.pop(i) for i in sequence_ids if i in self._states}
        is_open = [(i, state.num_rows) for i, state in states.items() if state.is_open]
        if is_open:
            self._head.close(is_open)
        for state in states.values():
            if not state.is_open:
                self._leave_opening(state)

    def _leave_opening(self, state: _State) -> None:
        """Bring it into the head's cache for whoever begins like this. That may be this text, whose
        middle was dropped. And one that nothing was drafted for may have been the first with its
        opening: the target has it in its cache now and will not give its states again."""
        sequence_id = state.view.sequence_id
        token_ids, features = state.opening_rows()
        if not token_ids:
            return
        held = self._open(state, first=0)
        try:
            if held < len(token_ids):
                self._head.draft([HeadCall(sequence_id, held, token_ids[held:], features[held:])])
        finally:
            self._head.close([(sequence_id, max(held, len(token_ids)))])


def _num_levels(draft: HeadDraft) -> int:
    """Of its tree, one at least: each took a pass."""
    return 1 + max(Proposal(draft.token_ids, parents=draft.parents).depths, default=0)
