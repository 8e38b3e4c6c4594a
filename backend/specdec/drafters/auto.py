"""Prompt lookup and token recycling in one tree: the server's default.

Where the text repeats itself, what followed last time is the likeliest branch; where it does not,
or may turn, the target's own former candidates are. As SAM decoding (arXiv 2411.10666) chooses
between a lookup and another drafter by the match's length, but branch by branch: what pays is
decided by the odds each kind of branch has had.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from functools import partial
from typing import ClassVar

from specdec.drafters._grow import Branch, grow
from specdec.drafters._memory import WIDTH, Memory
from specdec.drafters.base import Drafter, DraftView, Judge, ProposeResult, undecided
from specdec.drafters.ngram import MAX_OMEN, Index
from specdec.drafters.recycle import FIRST_ODDS as RECYCLED_ODDS
from specdec.drafters.recycle import PAIR, SINGLE, last_two, learn
from specdec.types import Decoder, Proposal, Verdict

# Omens: recycled branches as in `recycle`, then the same beside a copied one; copied branches by
# the length of their match, then those that a recycled branch agrees with.
BESIDE = PAIR + 2 * WIDTH
COPIED = BESIDE + 2 * WIDTH
AGREED = COPIED + MAX_OMEN + 1
FIRST_ODDS = {
    **RECYCLED_ODDS,
    **dict(enumerate((0.2, 0.1, 0.05, 0.1, 0.07, 0.05), start=BESIDE)),
    **dict(enumerate((0.2, 0.4, 0.5, 0.55, 0.65), start=COPIED + 1)),
    **dict(enumerate((0.35, 0.55, 0.65, 0.7, 0.85), start=AGREED + 1)),
}


class AutoDrafter(Drafter):
    """Needs no model."""

    name: ClassVar[str] = "auto"
    num_candidates: ClassVar[int] = WIDTH
    first_odds = FIRST_ODDS

    def __init__(self, decoder: Decoder | None = None) -> None:
        super().__init__(decoder)
        self._memory = Memory()
        self._indexes: dict[int, Index] = {}

    def propose(
        self, views: Seq[DraftView], limits: Seq[int], judge: Judge = undecided
    ) -> ProposeResult:
        pairs = zip(views, limits, strict=True)
        return ProposeResult([self._propose_one(view, limit, judge) for view, limit in pairs])

    def _propose_one(self, view: DraftView, limit: int, judge: Judge) -> Proposal:
        index = self._indexes.setdefault(view.sequence_id, Index())
        index.update(view.token_ids)
        text = view.text
        end, length = index.longest_match(text)
        return grow(
            Branch(*last_two(view), 0, end if length else -1),
            partial(self._follow, text, end, length),
            judge.odds(view.sequence_id),
            max_tokens=limit,
            least=judge.least,
        )

    def _follow(
        self, text: list[int], end: int, match_length: int, branch: Branch
    ) -> Iterable[Branch]:
        """What a copy goes on with, then what the target once found likely here."""
        last = branch.token_id
        found: list[Branch] = []
        is_pair, recycled = self._memory.recall(branch.before, last)
        omen = PAIR if is_pair else SINGLE
        copied = -1
        if branch.place >= 0:
            # A copy may run into itself: it then begins again behind the match.
            place = branch.place + 1 if branch.place + 1 < len(text) else end + 1
            copied, omen = text[place], omen + BESIDE - PAIR
            kind = AGREED if copied in recycled else COPIED
            found.append(Branch(last, copied, kind + min(match_length, MAX_OMEN), place))
        for token_id in recycled:
            if token_id != copied:
                found.append(Branch(last, token_id, omen))
            omen += 1
        return found

    def observe(self, view: DraftView, verdict: Verdict) -> None:
        learn(self._memory, view, verdict)

    def end(self, sequence_ids: Seq[int]) -> None:
        for sequence_id in sequence_ids:
            self._indexes.pop(sequence_id, None)
