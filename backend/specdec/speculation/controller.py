"""How many draft tokens pay: decided each step from measured costs and measured acceptance.

Time has a price: the tokens per second that batches of this size make anyway. A draft token is
worth its survival probability and costs the time its row adds, in the pass and in the draft
model, at that price (goodput of SmartSpec, arXiv 2406.14066, maximised over many steps instead of
one: Dinkelbach's rule). K = 0 is one of the choices, and then a draft model is not called at all.

Knows sequences by id, drafters by name; knows no decoder and no Triton.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial

import numpy as np

from specdec.drafters.base import Judge
from specdec.speculation.choice import Choice, choose
from specdec.speculation.costs import CostModel, Floats, bucket
from specdec.speculation.outlook import Outlook
from specdec.speculation.pace import Pace, Reason, reason_for
from specdec.speculation.planner import Candidate, Planner, Step, planners
from specdec.speculation.prices import Prices
from specdec.types import Proposal, Speedup

LEAST_ODDS, MOST_ODDS = 0.02, 0.6  # bounds of what a draft token must promise to be proposed
MARGIN = 0.7
FULL_ODDS = 0.15  # while so little is asked of them, drafters offer all they have


class Controller:
    """Chooses draft lengths. One per engine; called by its one thread."""

    def __init__(
        self,
        target: CostModel,
        drafts: dict[str, CostModel],
        drafter_names: Seq[str],
        first_odds: Mapping[str, Mapping[int, float]] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            drafts: the cost model of each drafter that calls a model; others cost only the time
                that passes between `limits` and `trim`.
            first_odds: of drafters that have some, see there.
            clock: in seconds.
        """
        self.prices = Prices(target)
        self.drafts = drafts
        self.outlooks = {name: Outlook((first_odds or {}).get(name)) for name in drafter_names}
        self.reasons: Counter[Reason] = Counter()  # since the last `take`
        self.expected_tokens = 0.0  # promised by the proposals let through, since the last `take`
        # Of the last `trim`: why no more of each sequence, and what each is to gain (not known
        # beside prompts).
        self.last_reasons: list[Reason | None] = []
        self.last_speedup: Speedup | None = None
        self._planners = planners(drafts, self.outlooks, first_odds or {})
        self._paces: dict[int, Pace] = {}  # by bucket
        self._clock = clock
        # Of this step:
        self._began = self._asked = 0.0  # when, and seconds that asking took
        self._is_look = False  # drafters without a model are asked
        self._least = LEAST_ODDS  # of a draft token
        self._step: Step | None = None
        self._sequence_ids: list[int] = []
        self._passes: dict[int, int] = {}  # sequence -> draft passes that are paid for
        self._alone: dict[int, float] = {}  # tokens that a lone request's rows would cost
        self._withheld: dict[int, Reason] = {}  # sequence -> why its drafter was not asked

    # ---- before the drafters are asked ---------------------------------------------------

    def judge(self, drafter: str) -> Judge:
        """For a drafter that weighs its draft tokens, between `limits` and `trim`."""
        judge = partial(self.outlooks[drafter].judge, among=self._sequence_ids)
        return Judge(judge, self._least, self._passes)

    def limits(self, candidates: Seq[Candidate], *, other_rows: int = 0) -> list[int]:
        """Draft tokens to ask for, per candidate: what pays where a draft model must be paid for
        each, the cap where they are free or a pass gives several, 0 where none can pay.

        Args:
            other_rows: of prompt chunks in the same pass.
        """
        self._began = self._clock()
        self._is_look, self._step, self._withheld, self._alone = False, None, {}, {}
        self._passes = {}
        chosen = [c.limit for c in candidates]
        groups: dict[str, list[int]] = {}
        for i, c in enumerate(candidates):
            if c.limit and not c.is_fixed:
                groups.setdefault(c.drafter, []).append(i)
        if not groups:
            return chosen
        size = len(candidates)
        num_rows = sum(1 + c.num_carried for c in candidates) + other_rows
        free = [i for name, group in groups.items() if name not in self._planners for i in group]
        if free and not self._may_ask(size, num_rows, sum(chosen[i] for i in free)):
            self._withhold([candidates[i].sequence_id for i in free], self._pace(size).reason)
            for i in free:
                chosen[i] = 0
        self._sequence_ids = [candidates[i].sequence_id for i in free]
        for name, planner in self._planners.items():
            if group := groups.get(name):
                members = [candidates[i] for i in group]
                step = self.prices.step(size, num_rows, sum(c.limit for c in members))
                for i, limit in zip(group, self._plan(planner, members, step), strict=True):
                    chosen[i] = limit
        return chosen

    def _plan(self, planner: Planner, members: Seq[Candidate], step: Step) -> list[int]:
        """Draft tokens to ask a model for; where it grows trees, their passes are what is paid."""
        lengths, odds = planner.plan(members, step)
        plans = list(zip(members, lengths, odds, strict=True))
        for c, _, first in (plan for plan in plans if not plan[1]):
            self._withhold([c.sequence_id], self._why(first, 0, step.num_sequences))
        if not planner.grows_trees:
            return lengths
        self._passes |= {c.sequence_id: length for c, length, _ in plans if length}
        return [c.limit if length else 0 for c, length, _ in plans]

    def _may_ask(self, num_sequences: int, num_rows: int, num_offers: int) -> bool:
        """Is it time to ask drafters without a model, and may anything they propose pay?"""
        pace = self._pace(num_sequences)
        if not pace.is_due():
            return False
        step = self._step = self.prices.step(num_sequences, num_rows, num_offers)
        added = step.price * (step.seconds[1:] - step.seconds[0])
        numbers = np.arange(1, num_offers + 1)
        # What a draft token must promise where rows are cheapest, with a margin: the price of time
        # and the sequence's own odds still move.
        least = float((added / numbers).min())
        if pace.may_try:
            least = float(((added - self.prices.doubt(step, num_rows)) / numbers).min())
        self._least = min(max(LEAST_ODDS, MARGIN * least), MOST_ODDS)
        self._is_look = least < 1.0
        if not self._is_look:
            pace.skipped(self._why(1.0, 0, num_sequences))
        return self._is_look

    def _withhold(self, sequence_ids: Seq[int], reason: Reason) -> None:
        self._withheld.update(dict.fromkeys(sequence_ids, reason))

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
        num_sure = sum(1 + c.num_carried for c in candidates)
        num_rows = num_sure + other_rows
        pairs = list(zip(candidates, proposals, strict=True))
        if any(p.token_ids for p in proposals):
            survival = self._survival(candidates, proposals)
            choice = choose(
                [0 if c.is_fixed else len(p.token_ids) for c, p in pairs],
                proposals,
                survival,
                num_rows=num_rows,
                prices=self.prices,
                pace=None if other_rows else self._pace(size),
                step=self._step,
            )
        else:  # a plain step should not pay for the arrays
            seconds = self.prices.target.predict(size, num_rows)
            choice = Choice([0] * size, [0.0] * size, 0.0, 0.0, seconds)
        reasons = [
            self._reason(*each, size)
            for each in zip(candidates, proposals, choice.kept, choice.odds, strict=True)
        ]
        self.reasons.update(reason for reason in reasons if reason)
        self.last_reasons, self.last_speedup = reasons, None
        self._asked = 0.0
        if self._is_look or draft_seconds:
            self._asked = max(0.0, self._clock() - self._began - draft_seconds)
        self.expected_tokens += num_sure + choice.tokens
        if not other_rows:
            seconds = choice.seconds + draft_seconds + self._asked
            self.last_speedup = self.prices.expect(size, num_sure + choice.tokens, seconds)
            if self._is_look:
                self._looked(size, choice.worth, reasons)
        return [
            p.first(n) if n < len(p.token_ids) else p
            for p, n in zip(proposals, choice.kept, strict=True)
        ]

    def _looked(self, size: int, worth: float, reasons: Seq[Reason | None]) -> None:
        asking = self.prices.asking_seconds(size) or self._asked
        cost = self.prices.per_second(size) * asking
        share = asking / self.prices.plain_seconds(size)
        self._pace(size).looked(worth, cost, share=share, reasons=reasons)

    def _survival(self, candidates: Seq[Candidate], proposals: Seq[Proposal]) -> Floats:
        """[sequences, longest proposal] by each one's own drafter."""
        names = {c.drafter for c in candidates}
        is_all = self._least <= FULL_ODDS
        if len(names) == 1:
            outlook = self.outlooks[names.pop()]
            found = outlook.survival([c.sequence_id for c in candidates], proposals)
            outlook.offered(found, is_all=is_all)
            return found
        survival = np.zeros((len(candidates), max(len(p.token_ids) for p in proposals)))
        for name in names:
            rows = [i for i, c in enumerate(candidates) if c.drafter == name]
            found = self.outlooks[name].survival(
                [candidates[i].sequence_id for i in rows], [proposals[i] for i in rows]
            )
            survival[rows, : found.shape[1]] = found
            self.outlooks[name].offered(found, is_all=is_all)
        return survival

    def _reason(
        self, candidate: Candidate, proposal: Proposal, kept: int, odds: float, size: int
    ) -> Reason | None:
        """Why no more than `kept` draft tokens; None where none are wanted."""
        if not candidate.limit:
            return None
        if not proposal.token_ids:
            if candidate.sequence_id in self._withheld:
                return self._withheld[candidate.sequence_id]
            # It may have had something less likely than it was asked for.
            return "none" if self._least <= FULL_ODDS else self._why(self._least, 0, size)
        if kept == len(proposal.token_ids):
            return "cap"
        return self._why(odds, kept, size)

    def _why(self, odds: float, num_drafted: int, size: int) -> Reason:
        """Why a draft token of these odds is not taken behind so many others."""
        if size == 1:
            return reason_for(odds, None)
        if num_drafted not in self._alone:
            self._alone[num_drafted] = self.prices.alone(num_drafted)
        return reason_for(odds, self._alone[num_drafted])

    def _pace(self, num_sequences: int) -> Pace:
        return self._paces.setdefault(bucket(num_sequences), Pace())

    # ---- after the step ------------------------------------------------------------------

    def observe_text(self, candidate: Candidate, proposal: Proposal, output_ids: Seq[int]) -> None:
        """Judge the untrimmed proposal by what the target wrote behind what was carried."""
        outlook = self.outlooks[candidate.drafter]
        outlook.observe(candidate.sequence_id, proposal, output_ids)
        if candidate.drafter in self._planners:
            planner = self._planners[candidate.drafter]
            planner.observe(candidate.sequence_id, proposal, output_ids)

    def observe_pass(
        self,
        num_rows: Seq[int],
        *,
        verify_seconds: float,
        overhead_seconds: float,
    ) -> None:
        """Correct the costs by one decode-only step; the time since `limits` counts as overhead.

        Args:
            num_rows: of each sequence.
        """
        size, total = len(num_rows), sum(num_rows)
        num_idle = size * max(num_rows) - total
        self.prices.target.observe(size, total, verify_seconds, num_idle=num_idle)
        overhead = max(0.0, overhead_seconds - self._asked)
        self.prices.observe_step(size, asking=self._asked, overhead=overhead)

    def observe_draft(self, name: str, lengths: Seq[int], *, num_rows: int, seconds: float) -> None:
        """See `Planner.observe_call`."""
        if name in self._planners:
            self._planners[name].observe_call(lengths, num_rows=num_rows, seconds=seconds)

    def plain_seconds(self, num_sequences: int) -> float:
        """What one step without drafts takes, by the present costs."""
        return self.prices.plain_seconds(num_sequences)

    def end(self, sequence_id: int) -> None:
        for outlook in self.outlooks.values():
            outlook.end(sequence_id)
        for planner in self._planners.values():
            planner.end(sequence_id)

    def take(self) -> tuple[Counter[Reason], float]:
        """Reasons by count and expected tokens, since the last call."""
        taken = self.reasons, self.expected_tokens
        self.reasons, self.expected_tokens = Counter(), 0.0
        return taken
