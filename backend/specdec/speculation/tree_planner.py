"""How many passes a model that grows trees should make, beside what its drafter has for nothing.

A pass gives a draft token of the trunk, and branches beside it. What the trunk will be is not known
before the model is asked, but how far such trunks have held is, by what the drafter had without it:

    free odds     .62  .40  .25  0 ...       a copy that is rather sure
    trunk's odds  .71  .55  .41  .30 ...     of the trees that were grown where a copy was as sure
    2 passes      .71  .55  .25  0 ...

Knows one drafter, and sequences by id.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np

from specdec.speculation.costs import CostModel, Floats
from specdec.speculation.outlook import Outlook
from specdec.speculation.planner import Candidate, DraftModel, Planner, Step, Weighed
from specdec.types import Proposal

MAX_PASSES = 8
_NOTHING = -1  # no token: a target never draws it
# Omens of a trunk: by the odds of the first draft token that is there without the model.
_EDGES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.88)
_FIRST_ODDS = (0.4, 0.42, 0.44, 0.5, 0.6, 0.68, 0.87, 0.92)


class TreePlanner(Planner):
    """Draft passes for one drafter."""

    def __init__(self, cost: CostModel) -> None:
        super().__init__(cost, Outlook(dict(enumerate(_FIRST_ODDS))))
        # Of sequences whose model was asked in this step: their omen, and passes.
        self._asked: dict[int, tuple[int, int]] = {}

    def plan(self, members: Seq[Candidate], step: Step) -> tuple[list[int], list[float]]:
        lengths, odds = super().plan(members, step)
        for c, length in zip(members, lengths, strict=True):
            if length:
                self._asked[c.sequence_id] = omen_of(c), length
            else:
                self._asked.pop(c.sequence_id, None)
        return lengths, odds

    def observe(self, sequence_id: int, proposal: Proposal, output_ids: Seq[int]) -> None:
        """A proposal of a sequence whose model was asked: how far has its trunk held?

        What follows behind the last pass is the work of others, and says nothing of one pass more.
        A trunk that ends before its last pass, for nothing likely was found, has failed there:
        judged by what it does propose alone, a model that is seldom sure of anything would seem
        worth its passes in every text.
        """
        if sequence_id not in self._asked:
            return
        omen, num_passes = self._asked.pop(sequence_id)
        trunk = [proposal.token_ids[node] for node in proposal.trunk[:num_passes]]
        trunk += [_NOTHING] * (num_passes - len(trunk))
        self.curiosity.is_hopeful = trunk[:1] == list(output_ids[:1])
        self._outlook.observe(sequence_id, Proposal(tuple(trunk), (omen,) * num_passes), output_ids)

    def unanswered(self, sequence_id: int) -> None:
        """See `Controller.unanswered`."""
        self._asked.pop(sequence_id, None)

    def end(self, sequence_id: int) -> None:
        super().end(sequence_id)
        self._asked.pop(sequence_id, None)

    def rates(self) -> dict[int, float]:
        """None: they depend on what is free."""
        return {}

    def weigh(self, members: Seq[Candidate], step: Step, optimism: float = 0.0) -> Weighed:
        """Every sequence that is asked makes as many passes as the others."""
        survival = self._survival(members, [omen_of(c) for c in members], optimism)
        gains, free = _gains(members, survival, step)  # [members, passes], tokens
        if any(c.num_undrafted > 2 for c in members):
            gains = gains - step.price * self._catch_up(members)[:, None]
        is_asked = gains > 0.0
        # Of 0, 1, ... sequences in a pass; each number of passes has as many sequences in all.
        seconds = self._cost.single_rows(len(members))
        numbers = np.arange(1, gains.shape[1] + 1)
        spent = step.price * (self.hop.value + numbers * seconds[is_asked.sum(axis=0)])
        worth = np.where(is_asked, gains, 0.0).sum(axis=0) - spent

        def lengths(best: int) -> list[int]:
            found: list[int] = np.where(is_asked[:, best - 1], best, 0).tolist()
            return found

        return Weighed([0.0, *worth.tolist()], survival[:, 0].tolist(), lengths, free)


def omen_of(candidate: Candidate) -> int:
    """What its drafter has without the model tells how far the trunk will hold with it."""
    return bisect_right(_EDGES, candidate.free[0]) if candidate.free else 0


def _gains(members: Seq[Candidate], survival: Floats, step: Step) -> tuple[Floats, float]:
    """Tokens that 1, 2, ... passes bring each one over what is free, [members, passes], and what
    that brings all; net of rows.

    Args:
        survival: [members, longest] of trunks.
    """
    size = survival.shape[1]
    free = np.zeros_like(survival)
    for row, c in zip(free, members, strict=True):
        row[: len(c.free)] = c.free[:size]
    limits = np.array([c.limit for c in members])
    # If all of the batch took as many tokens: each one's share of what their rows cost.
    numbers = np.minimum(len(members) * np.arange(1, size + 1), len(step.seconds) - 1)
    added = step.price * (step.seconds[numbers] - step.seconds[0]) / len(members)
    is_there = np.arange(size) < limits[:, None]  # [members, longest]

    def net(odds: Floats) -> Floats:
        """Of the best beginning, [...]: odds [..., members, longest]."""
        tokens = np.where(is_there, odds, 0.0).cumsum(axis=-1)
        found: Floats = np.maximum((tokens - np.where(is_there, added, np.inf)).max(axis=-1), 0.0)
        return found

    num_passes = min(size, MAX_PASSES)
    is_drafted = np.arange(size) < np.arange(1, num_passes + 1)[:, None]  # [passes, longest]
    merged = np.maximum(free, survival * is_drafted[:, None, :])  # [passes, members, longest]
    without = net(free)
    return (net(merged) - without).T, float(without.sum())


def planners(models: Mapping[str, DraftModel]) -> dict[str, Planner]:
    """Of every drafter that calls a model."""
    return {
        name: TreePlanner(model.cost) if model.grows_trees else Planner(model.cost, Outlook())
        for name, model in models.items()
    }
