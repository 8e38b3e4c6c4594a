"""How many draft tokens pay: decided each step from measured costs and measured acceptance.

Time has a price: the tokens per second that batches of this size make anyway. A draft token is
worth its survival probability and costs the time its row adds, in the pass and in the draft
model, at that price (goodput of SmartSpec, arXiv 2406.14066, maximised over many steps instead of
one: Dinkelbach's rule). K = 0 is one of the choices, and then a draft model is not called at all.

Knows sequences by id, drafters by name; knows no decoder and no Triton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specdec.drafters.base import Judge
from specdec.speculation.costs import CostModel, Floats, MovingMean, bucket
from specdec.speculation.outlook import Outlook
from specdec.speculation.planner import Candidate, Planner, Step
from specdec.speculation.rows import Offers
from specdec.types import Proposal

Reason = Literal[
    "cap",  # all that was proposed is verified
    "none",  # the drafter had nothing to propose
    "acceptance",  # the rest is unlikely to be accepted
    "cost",  # the rest does not pay for its rows
    "load",  # the same in a batch of several: it fills the machine
]

LEAST_ODDS, MOST_ODDS = 0.02, 0.6  # bounds of what a draft token must promise to be proposed
MARGIN = 0.7
POOR_ODDS = 0.3  # a draft token less likely than this was cut for its odds, not for its price


def reason_for(odds: float, num_sequences: int) -> Reason:
    """Why a draft token of these odds is not taken."""
    return "acceptance" if odds < POOR_ODDS else "load" if num_sequences > 1 else "cost"


@dataclass(slots=True)
class Gain:
    """Expected tokens per second against plain decoding, over the last steps."""

    tokens: float = 0.0  # in steps without drafts
    seconds: float = 0.0  # in the same
    weight: float = 1.0

    @property
    def value(self) -> float:
        return max(1.0, self.tokens / self.seconds) if self.seconds else 1.0

    def observe(self, tokens: float, seconds: float) -> None:
        self.tokens += self.weight * (tokens - self.tokens)
        self.seconds += self.weight * (seconds - self.seconds)
        self.weight = max(self.weight / (1 + self.weight), 0.03)


class Controller:
    """Chooses draft lengths. One per engine; called by its one thread."""

    def __init__(
        self,
        target: CostModel,
        drafts: dict[str, CostModel],
        drafter_names: Seq[str],
        first_odds: Mapping[str, Mapping[int, float]] | None = None,
    ) -> None:
        """
        Args:
            drafts: the cost model of each drafter that calls a model; others cost nothing.
            first_odds: of drafters that have some, see there.
        """
        self.target = target
        self.drafts = drafts
        self.outlooks = {name: Outlook((first_odds or {}).get(name)) for name in drafter_names}
        self.overheads: dict[int, MovingMean] = {}  # orchestration by bucket
        self.gains: dict[int, Gain] = {}  # by bucket
        self.reasons: Counter[Reason] = Counter()  # since the last `take`
        self.expected_tokens = 0.0  # promised by the proposals let through, since the last `take`
        self._planners = {name: Planner(cost, self.outlooks[name]) for name, cost in drafts.items()}
        self._least = LEAST_ODDS  # of a draft token, this step
        self._withheld: dict[int, Reason] = {}  # sequence -> why its model was not asked this step

    # ---- before the drafters are asked ---------------------------------------------------

    def judge(self, drafter: str) -> Judge:
        """For a drafter that weighs its draft tokens, between `limits` and `trim`."""
        return Judge(self.outlooks[drafter].judge, self._least)

    def limits(self, candidates: Seq[Candidate], *, other_rows: int = 0) -> list[int]:
        """Draft tokens to ask for, per candidate: the cap where proposals are free, what pays
        where a draft model must be paid. If all are 0 the model is not called.

        Args:
            other_rows: of prompt chunks in the same pass.
        """
        self._withheld = {}
        chosen = [c.limit for c in candidates]
        self._least = self._least_odds(candidates, other_rows)
        for name, planner in self._planners.items():
            group = [
                i
                for i, c in enumerate(candidates)
                if c.drafter == name and c.limit and not c.is_fixed
            ]
            if not group:
                continue
            members = [candidates[i] for i in group]
            num_offers = sum(c.limit for c in members)
            num_rows = sum(1 + c.num_carried for c in candidates) + other_rows
            step = self._step(len(candidates), num_rows, num_offers)
            lengths, odds = planner.plan(members, step)
            for i, length, first in zip(group, lengths, odds, strict=True):
                chosen[i] = length
                if not length:
                    reason = reason_for(first, len(candidates))
                    self._withheld[candidates[i].sequence_id] = reason
        return chosen

    def _least_odds(self, candidates: Seq[Candidate], other_rows: int) -> float:
        """What a draft token must promise where rows are cheapest, with a margin: the price of
        time and the sequence's own odds still move."""
        num_offers = max((c.limit for c in candidates if not c.is_fixed), default=0)
        if not num_offers:
            return LEAST_ODDS
        size = len(candidates)
        num_rows = sum(1 + c.num_carried for c in candidates) + other_rows
        step = self._step(size, num_rows, num_offers)
        each = (step.seconds[1:] - step.seconds[0]) / np.arange(1, num_offers + 1)
        return min(max(LEAST_ODDS, MARGIN * step.price * float(each.min())), MOST_ODDS)

    def _step(self, num_sequences: int, num_rows: int, num_offers: int) -> Step:
        seconds = self.target.predict_from(num_sequences, num_rows, num_offers)
        plain = self.plain_seconds(num_sequences)
        return Step(num_sequences, self.price(num_sequences), plain, seconds)

    # ---- after they have proposed --------------------------------------------------------

    def trim(
        self,
        candidates: Seq[Candidate],
        proposals: Seq[Proposal],
        *,
        other_rows: int = 0,
        draft_seconds: float = 0.0,
    ) -> list[Proposal]:
        """Cut every proposal to the rows that pay in this batch. Cutting is exact: the target
        writes the same text whatever it is offered.

        Args:
            other_rows: of prompt chunks in the same pass.
            draft_seconds: spent on the proposals.
        """
        size = len(candidates)
        if not size:
            return []
        num_sure = size + sum(c.num_carried for c in candidates)
        if not any(p.token_ids for p in proposals):  # a plain step should not pay for the arrays
            seconds = self.target.predict(size, num_sure + other_rows) + draft_seconds
            self._expect(size, num_sure, seconds, is_pure=not other_rows)
            return [
                self._cut(c, p, 0, np.empty(0), size)
                for c, p in zip(candidates, proposals, strict=True)
            ]
        sizes = np.array([len(p.token_ids) for p in proposals])
        is_fixed = np.array([c.is_fixed for c in candidates])
        longest = int(sizes.max())
        survival = self._survival(candidates, proposals, longest)
        num_fixed = int(sizes[is_fixed].sum())
        step = self._step(size, num_sure + num_fixed + other_rows, int(sizes.sum()) - num_fixed)
        offers = Offers(survival, np.where(is_fixed, 0, sizes))
        num_taken = offers.choose(step.seconds, step.price)
        tokens = num_sure + float(offers.odds[:num_taken].sum())
        if num_fixed:
            tokens += float(survival[np.arange(longest) < (sizes * is_fixed)[:, None]].sum())
        seconds = float(step.seconds[num_taken]) + draft_seconds
        self._expect(size, tokens, seconds, is_pure=not other_rows)
        kept = np.where(is_fixed, sizes, offers.lengths(num_taken)).tolist()
        return [
            self._cut(c, p, k, row, size)
            for c, p, k, row in zip(candidates, proposals, kept, survival, strict=True)
        ]

    def _expect(self, size: int, tokens: float, seconds: float, *, is_pure: bool) -> None:
        """Note what a step is to bring; `seconds` in the models."""
        self.expected_tokens += tokens
        if is_pure:
            overhead, plain = self.overhead(size), self.plain_seconds(size)
            gain = self.gains.setdefault(bucket(size), Gain())
            gain.observe(tokens / size, (seconds + overhead) / plain)

    def _survival(
        self, candidates: Seq[Candidate], proposals: Seq[Proposal], num_tokens: int
    ) -> Floats:
        """[sequences, num_tokens] by each one's own drafter."""
        names = {c.drafter for c in candidates} if num_tokens else ()
        if len(names) == 1:
            ids = [c.sequence_id for c in candidates]
            return self.outlooks[candidates[0].drafter].survival(ids, proposals)
        survival = np.zeros((len(candidates), num_tokens))
        for name in names:
            rows = [i for i, c in enumerate(candidates) if c.drafter == name]
            found = self.outlooks[name].survival(
                [candidates[i].sequence_id for i in rows], [proposals[i] for i in rows]
            )
            survival[rows, : found.shape[1]] = found
        return survival

    def _cut(
        self, candidate: Candidate, proposal: Proposal, kept: int, odds: Floats, size: int
    ) -> Proposal:
        """Shorten one proposal and note why."""
        if not candidate.limit:
            return proposal
        if not proposal.token_ids:
            self.reasons[self._withheld.get(candidate.sequence_id, "none")] += 1
            return proposal
        if kept == len(proposal.token_ids):
            self.reasons["cap"] += 1
            return proposal
        self.reasons[reason_for(float(odds[kept]), size)] += 1
        return proposal.first(kept)

    # ---- after the step ------------------------------------------------------------------

    def observe_text(self, candidate: Candidate, proposal: Proposal, output_ids: Seq[int]) -> None:
        """Judge the untrimmed proposal by what the target wrote behind what was carried."""
        outlook = self.outlooks[candidate.drafter]
        outlook.observe(candidate.sequence_id, proposal, output_ids)
        if candidate.drafter in self._planners:
            is_right = proposal.token_ids[:1] == tuple(output_ids[:1])
            self._planners[candidate.drafter].curiosity.is_hopeful = is_right

    def observe_pass(
        self, num_sequences: int, num_rows: int, *, verify_seconds: float, overhead_seconds: float
    ) -> None:
        """Correct the costs by one decode-only step."""
        self.target.observe(num_sequences, num_rows, verify_seconds)
        self.overheads.setdefault(bucket(num_sequences), MovingMean()).observe(overhead_seconds)

    def observe_draft(self, name: str, lengths: Seq[int], *, num_rows: int, seconds: float) -> None:
        """Correct a draft model's costs by one call: `num_rows` first, then one row for each
        sequence that wants more."""
        cost = self.drafts.get(name)
        if cost is None or not lengths:
            return
        passes = cost.single_rows(len(lengths))
        sizes = [sum(n > step for n in lengths) for step in range(1, max(lengths))]
        expected = cost.predict(len(lengths), num_rows) + float(passes[sizes].sum())
        if expected > 0.0:
            cost.rescale(len(lengths), seconds / expected)

    # ---- what is known -------------------------------------------------------------------

    def price(self, num_sequences: int) -> float:
        """Tokens per second that a batch of this size makes anyway."""
        return self.gain(num_sequences) * num_sequences / self.plain_seconds(num_sequences)

    def gain(self, num_sequences: int) -> float:
        """That against the same at K = 0, 1 or more."""
        gain = self.gains.get(bucket(num_sequences))
        return gain.value if gain else 1.0

    def plain_seconds(self, num_sequences: int) -> float:
        """What one step without drafts takes, by the present costs."""
        return self.target.predict(num_sequences, num_sequences) + self.overhead(num_sequences)

    def overhead(self, num_sequences: int) -> float:
        mean = self.overheads.get(bucket(num_sequences))
        return mean.value if mean else 0.0

    def end(self, sequence_id: int) -> None:
        for outlook in self.outlooks.values():
            outlook.end(sequence_id)

    def take(self) -> tuple[Counter[Reason], float]:
        """Reasons by count and expected tokens, since the last call."""
        taken = self.reasons, self.expected_tokens
        self.reasons, self.expected_tokens = Counter(), 0.0
        return taken
