"""Token recycling: what the target nearly wrote elsewhere is what it may write here.

Luo et al. 2024 (arXiv 2408.08696): at every position the target's likeliest tokens are kept, and
a tree of them is proposed when the same tokens come again. No training, no model; it learns from
all requests of the server while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from functools import partial
from typing import ClassVar

from specdec.drafters._grow import Branch, grow
from specdec.drafters._memory import WIDTH, Memory
from specdec.drafters.base import Drafter, DraftView, Judge, ProposeResult, undecided
from specdec.types import Decoder, Head, Verdict

# Omens: by rank, after a known pair of tokens or after a known single one. They are what a server
# starts from, and soon learned.
PAIR, SINGLE = 1, 1 + WIDTH
FIRST_ODDS = dict(enumerate((0.4, 0.1, 0.05, 0.16, 0.07, 0.05), start=PAIR))


class RecycleDrafter(Drafter):
    """A table over all requests; costs some microseconds per draft token."""

    name: ClassVar[str] = "recycle"
    num_candidates: ClassVar[int] = WIDTH
    first_odds = FIRST_ODDS

    def __init__(self, model: Decoder | Head | None = None) -> None:
        super().__init__(model)
        self._memory = Memory()

    def propose(
        self, views: Seq[DraftView], limits: Seq[int], judge: Judge = undecided
    ) -> ProposeResult:
        return ProposeResult(
            [
                grow(
                    Branch(*last_two(view), 0),
                    partial(self._follow, view.cache_salt),
                    judge.odds(view.sequence_id),
                    max_tokens=limit,
                    least=judge.least,
                ).proposal
                for view, limit in zip(views, limits, strict=True)
            ]
        )

    def _follow(self, salt: int, branch: Branch) -> Iterable[Branch]:
        last = branch.token_id
        is_pair, token_ids = self._memory.recall(branch.before, last, salt)
        first = PAIR if is_pair else SINGLE
        return [Branch(last, t, omen) for omen, t in enumerate(token_ids, start=first)]

    def observe(self, view: DraftView, verdict: Verdict) -> None:
        learn(self._memory, view, verdict)


def last_two(view: DraftView) -> tuple[int, int]:
    """Of text and carry; -1 before the first."""
    tail = (-1, -1, *view.token_ids[-2:], *view.carry[-2:])
    return tail[-2], tail[-1]


def learn(memory: Memory, view: DraftView, verdict: Verdict) -> None:
    """Keep the target's candidates at every token it has just emitted."""
    text = view.token_ids
    first = len(text) - len(verdict.output_ids)
    for position, candidate_ids in enumerate(verdict.candidate_ids, start=first):
        before = text[position - 2] if position > 1 else -1
        memory.learn(before, text[position - 1], candidate_ids, view.cache_salt)
