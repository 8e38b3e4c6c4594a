"""A trained head drafts from the target's own hidden states: EAGLE-3 (arXiv 2503.01840).

Its trees are EAGLE-2's (arXiv 2406.16858): what the head itself finds likeliest. What an omen says
is the probability it gave a token; how far that can be trusted, the judge learns.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import ClassVar, cast

from specdec.drafters._buckets import BUCKET_ODDS, bucket_of
from specdec.drafters._head import CATCH_UP_ROWS, HeadFollower
from specdec.drafters.base import Drafter, DraftView, Judge, ProposeResult, undecided
from specdec.types import Decoder, Features, Head, HeadDraft, Proposal

BUCKET = 1  # the first bucket's omen
FIRST_ODDS = dict(enumerate(BUCKET_ODDS, start=BUCKET))


class EagleDrafter(Drafter):
    """A head trained for this target, with the target's hidden states."""

    name: ClassVar[str] = "eagle"
    model: ClassVar = "head"
    grows_trees: ClassVar[bool] = True
    max_arrears: ClassVar[int] = CATCH_UP_ROWS
    first_odds = FIRST_ODDS
    needs_features = True

    def __init__(self, model: Decoder | Head | None = None) -> None:
        super().__init__()
        assert model is not None, "the eagle drafter needs a head"
        self._head = HeadFollower(cast(Head, model))

    def absorb(self, view: DraftView, start: int, features: Features) -> None:
        self._head.absorb(view, start, features)

    def propose(
        self, views: Seq[DraftView], limits: Seq[int], judge: Judge = undecided
    ) -> ProposeResult:
        passes = judge.passes([view.sequence_id for view in views], [()] * len(views))
        drafts = self._head.draft(views, limits, passes, least=judge.least)
        proposals = [
            _proposal(drafts.found[i]) if i in drafts.found else Proposal()
            for i in range(len(views))
        ]
        return drafts.result(proposals)

    def end(self, sequence_ids: Seq[int]) -> None:
        self._head.end(sequence_ids)


def _proposal(draft: HeadDraft) -> Proposal:
    omens = tuple(BUCKET + bucket_of(logprob) for logprob in draft.logprobs)
    return Proposal(draft.token_ids, omens, draft.parents)
