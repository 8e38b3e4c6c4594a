"""What drafters are asked for in one step: whose, how far, and how likely a draft token must be.

Knows sequences by id, drafters by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import partial

import numpy as np

from specdec.drafters.base import MANY_PASSES, Judge
from specdec.speculation.outlook import Outlook
from specdec.speculation.pace import Pace, Reason
from specdec.speculation.planner import Candidate, DraftModel, Planner, Step
from specdec.speculation.prices import Prices
from specdec.speculation.reasons import Reasons

LEAST_ODDS, MOST_ODDS = 0.02, 0.6  # bounds of what a draft token must promise to be proposed
MARGIN = 0.7


class Asking:
    """Of one step after another."""

    def __init__(
        self,
        models: Mapping[str, DraftModel],
        planners: Mapping[str, Planner],
        prices: Prices,
        why: Reasons,
    ) -> None:
        """`models`, `planners`: by drafter. `why`: is told of whom nothing is asked."""
        self.candidates: dict[int, Candidate] = {}  # whose drafters are asked, by sequence
        self.step: Step | None = None  # None while nobody is asked
        self.least = LEAST_ODDS  # of a draft token
        self._models, self._planners = models, planners
        self._prices, self._why = prices, why

    def begin(self, candidates: Seq[Candidate]) -> None:
        """A step of these; without a request's cap there is nothing to be decided."""
        self.step = None
        self.candidates = {c.sequence_id: c for c in candidates if c.limit and not c.is_fixed}

    def free(self) -> list[int]:
        """Sequences whose drafters have something to propose that no model must be asked for."""
        models = self._models
        return [
            i
            for i, c in self.candidates.items()
            if c.drafter not in models or models[c.drafter].is_optional
        ]

    def rest(self, sequence_ids: Seq[int], reason: Reason) -> None:
        """These sequences' drafters are not asked in this step."""
        for sequence_id in sequence_ids:
            del self.candidates[sequence_id]
        self._why.withhold(sequence_ids, reason)

    def dare(self, step: Step, num_rows: int, pace: Pace | None) -> float:
        """What a draft token must promise where rows are cheapest; drafters are told of it with a
        margin, for the price of time and the sequence's own odds still move.

        Args:
            num_rows: in the pass anyway.
            pace: may try what seems too dear.
        """
        self.step = step
        added = step.price * (step.seconds[1:] - step.seconds[0])
        if pace and pace.may_try:
            added = added - self._prices.doubt(step, num_rows)
        least = float((added / np.arange(1, len(step.seconds))).min())
        self.least = min(max(LEAST_ODDS, MARGIN * least), MOST_ODDS)
        return least

    def judge(self, drafter: str, outlook: Outlook) -> Judge:
        """For a drafter that weighs its draft tokens; `outlook` is its own."""
        odds = partial(outlook.judge, among=list(self.candidates))
        return Judge(odds, self.least, partial(self._passes, drafter), self._stops(drafter))

    def chains(self) -> dict[int, int]:
        """Draft lengths by sequence, where a model must be paid for each token."""
        groups: dict[str, list[Candidate]] = {}
        for c in self.candidates.values():
            model = self._models.get(c.drafter)
            if model and not model.grows_trees:
                groups.setdefault(c.drafter, []).append(c)
        return {
            c.sequence_id: length
            for name, members in groups.items()
            for c, length in zip(members, self._plan(name, members), strict=True)
        }

    def _stops(self, drafter: str) -> dict[int, float]:
        """See `Judge.stops`: a draft token must pay its row, and its part of a pass."""
        model = self._models.get(drafter)
        ids = [i for i, c in self.candidates.items() if c.drafter == drafter]
        if self.step is None or model is None or model.grows_trees or not ids:
            return {}
        added = self.step.price * self._planners[drafter].added_seconds(len(ids))
        return dict.fromkeys(ids, max(self.least, added))

    def _passes(self, drafter: str, sequence_ids: Seq[int], free: Seq[Seq[float]]) -> list[int]:
        """See `Passes`; as many as a request wants that leaves nothing to be chosen."""
        members = [
            self.candidates[i]._replace(free=tuple(odds))
            for i, odds in zip(sequence_ids, free, strict=True)
            if i in self.candidates
        ]
        lengths = self._plan(drafter, members) if members else []
        planned = {c.sequence_id: length for c, length in zip(members, lengths, strict=True)}
        return [planned.get(i, MANY_PASSES) for i in sequence_ids]

    def _plan(self, drafter: str, members: Seq[Candidate]) -> list[int]:
        """Draft passes of each."""
        assert self.step is not None
        lengths, odds = self._planners[drafter].plan(members, self.step)
        for c, length, first in zip(members, lengths, odds, strict=True):
            if not length:
                self._why.withhold([c.sequence_id], self._why.why(first, 0))
        return lengths
