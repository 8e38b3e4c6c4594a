"""What the controller would do at any batch size, from what it publishes of itself.

The other end of `state`: costs and acceptance come back as numbers by label, and the same
arithmetic as in a step finds the draft length for a batch of equal, average sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from specdec.speculation.costs import CostModel, Floats, bucket
from specdec.speculation.levels import POSITIONS
from specdec.speculation.outlook import Outlook
from specdec.speculation.pace import Reason, reason_for
from specdec.speculation.planner import Candidate, Planner, Step
from specdec.speculation.rows import Ints, Offers
from specdec.speculation.state import State
from specdec.types import PassCost

ROUNDS = 6  # until gain and draft length agree: the price of time depends on what it buys


class Forecast(NamedTuple):
    """Of a step of `num_sequences` equal sequences."""

    num_sequences: int
    plain_seconds: float  # at K = 0
    draft_length: float  # mean over the sequences
    gain: float  # tokens per second against K = 0
    reason: Reason


@dataclass
class Knowledge:
    """A running controller's costs and acceptance."""

    target: CostModel
    drafts: dict[str, CostModel] = field(default_factory=dict)  # by drafter
    overheads: dict[int, float] = field(default_factory=dict)  # by sequences
    rates: dict[str, dict[int, list[float]]] = field(default_factory=dict)  # drafter, omen
    offers: dict[str, dict[int, float]] = field(default_factory=dict)  # drafter, n: odds

    @classmethod
    def of(cls, states: Mapping[State, float]) -> Knowledge:
        """Raises `ValueError`: the costs are missing."""
        known = cls(CostModel.fit(()))
        targets: list[PassCost] = []
        drafts: dict[str, list[PassCost]] = {}
        for state, value in states.items():
            labels = dict(state.labels)
            drafter = labels.get("drafter", "")
            if state.family == "verify_cost_seconds":
                targets.append(_pass_cost(labels, value))
            elif state.family == "draft_cost_seconds":
                drafts.setdefault(drafter, []).append(_pass_cost(labels, value))
            elif state.family == "step_overhead_seconds":
                known.overheads[int(labels["sequences"])] = value
            elif state.family == "spec_decode_offered_odds":
                known.offers.setdefault(drafter, {})[int(labels["n"])] = value
            elif state.family == "spec_decode_acceptance":
                rates = known.rates.setdefault(drafter, {}).setdefault(int(labels["omen"]), [])
                # Position by position, however they are ordered; gaps repeat the last.
                position = int(labels["position"])
                rates += [value] * (position + 1 - len(rates))
                rates[position] = value
        if not targets:
            raise ValueError("no verify_cost_seconds")
        known.target = _fitted(targets)
        known.drafts = {name: _fitted(points) for name, points in drafts.items()}
        return known

    def mean_rates(self, drafter: str) -> list[float]:
        """Conditional acceptance of the first, second, ... draft token of an average proposal;
        empty where nothing was seen."""
        rates = self.rates.get(drafter, {}).get(0)
        if drafter in self.drafts and rates:  # what is known before the model is asked
            return rates
        odds = [value for _, value in sorted(self.offers.get(drafter, {}).items())]
        return [min(1.0, b / a) for a, b in pairwise([1.0, *odds])]

    def forecast(
        self, drafter: str, rates: list[float], num_sequences: int, *, cap: int
    ) -> Forecast:
        """For proposals of `cap` tokens, whose conditional acceptance by position is `rates`."""
        rates = [*rates, *rates[-1:] * cap][:cap]
        survival = np.tile(np.cumprod(rates), (num_sequences, 1))
        overhead = self._overhead(num_sequences)
        plain = self.target.predict(num_sequences, num_sequences) + overhead
        seconds = self.target.predict_from(num_sequences, num_sequences, num_sequences * cap)
        gain, lengths = 1.0, np.zeros(num_sequences, np.int64)
        for _ in range(ROUNDS):
            step = Step(num_sequences, gain * num_sequences / plain, plain, seconds)
            lengths, draft_seconds = self._choose(drafter, survival, step)
            taken = np.arange(cap) < lengths[:, None]
            tokens = num_sequences + float(survival[taken].sum())
            spent = float(seconds[int(lengths.sum())]) + overhead + draft_seconds
            gain = max(1.0, tokens / spent * plain / num_sequences)
        length = float(lengths.mean())
        odds = float(survival[0][int(length)]) if length < cap else 1.0
        reason = (
            "cap" if length >= cap else reason_for(odds, self._alone(int(length), num_sequences))
        )
        return Forecast(num_sequences, plain, length, gain, reason)

    def _choose(self, drafter: str, survival: Floats, step: Step) -> tuple[Ints, float]:
        """Draft lengths, and the draft model's time."""
        size, cap = survival.shape
        cost = self.drafts.get(drafter)
        if cost is None:
            offers = Offers(survival, np.full(size, cap))
            return offers.lengths(offers.choose(step.seconds, step.price)), 0.0
        members = [Candidate(i, drafter, cap) for i in range(size)]
        plans, worth = Planner(cost, Outlook()).compare(members, survival, step)
        best = int(np.argmax(worth))
        if not best:
            return np.zeros(size, np.int64), 0.0
        passes = cost.single_rows(size)[plans.sizes[best - 1]]
        return plans.lengths(best), float(passes.sum())

    def _alone(self, num_drafted: int, num_sequences: int) -> float | None:
        """Tokens that a lone request's next row would cost; None if this is one."""
        if num_sequences == 1:
            return None
        plain = self.target.predict(1, 1) + self._overhead(1)
        added = self.target.predict(1, num_drafted + 2) - self.target.predict(1, num_drafted + 1)
        return added / plain

    def _overhead(self, num_sequences: int) -> float:
        """Of the nearest batch size there is."""
        nearest = min(self.overheads, key=lambda n: abs(bucket(n) - bucket(num_sequences)))
        return self.overheads[nearest]


def _pass_cost(labels: Mapping[str, str], seconds: float) -> PassCost:
    return PassCost(int(labels["sequences"]), int(labels["rows"]), seconds)


def _fitted(points: Iterable[PassCost]) -> CostModel:
    """A cost model through points that carry the corrections of each batch size."""
    points = sorted(points)
    model = CostModel.fit(points)
    for key in {bucket(p.num_sequences) for p in points}:
        model.fit_batch([p for p in points if bucket(p.num_sequences) == key])
    return model


DEFAULT_RATES = [0.5] * POSITIONS  # what a drafter starts from, before anything was seen
