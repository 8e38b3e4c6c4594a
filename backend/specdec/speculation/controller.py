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

import numpy as np

from specdec.drafters.base import Judge
from specdec.speculation.asking import Asking
from specdec.speculation.choice import Choice, choose
from specdec.speculation.costs import CostModel, Floats, bucket
from specdec.speculation.outlook import Outlook
from specdec.speculation.pace import Pace, Reason
from specdec.speculation.planner import Candidate, DraftModel
from specdec.speculation.prices import Prices
from specdec.speculation.reasons import FULL_ODDS, Reasons
from specdec.speculation.tree_planner import planners
from specdec.types import Proposal, Speedup


class Controller:
    """Chooses draft lengths. One per engine; called by its one thread."""

    def __init__(
        self,
        target: CostModel,
        models: Mapping[str, DraftModel],
        drafter_names: Seq[str],
        first_odds: Mapping[str, Mapping[int, float]] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            models: by drafter, of those that call one; others cost only the time that passes
                between `limits` and `trim`.
            first_odds: of drafters that have some, see there.
            clock: in seconds.
        """
        self.prices = Prices(target)
        self.models = models
        self.outlooks = {name: Outlook((first_odds or {}).get(name)) for name in drafter_names}
        self.reasons: Counter[Reason] = Counter()  # since the last `take`
        self.expected_tokens = 0.0  # promised by the proposals let through, since the last `take`
        # Of the last `trim`: why no more of each sequence, and what each is to gain (not known
        # beside prompts).
        self.last_reasons: list[Reason | None] = []
        self.last_speedup: Speedup | None = None
        self.planners = planners(models)
        self._paces: dict[int, Pace] = {}  # by bucket
        self._clock = clock
        # Of this step:
        self._began = self._asked = 0.0  # when, and seconds that asking took
        self._is_look = False  # drafters without a model are asked
        self._why = Reasons(self.prices)
        self._asking = Asking(models, self.planners, self.prices, self._why)

    # ---- before the drafters are asked ---------------------------------------------------

    def judge(self, drafter: str) -> Judge:
        """For a drafter that weighs its draft tokens, between `limits` and `trim`."""
        return self._asking.judge(drafter, self.outlooks[drafter])

    def limits(self, candidates: Seq[Candidate], *, other_rows: int = 0) -> list[int]:
        """Draft tokens to ask for, per candidate: what pays where a draft model must be paid for
        each, the cap where they are free or a pass gives several, 0 where none can pay.

        Args:
            other_rows: of prompt chunks in the same pass.
        """
        self._began = self._clock()
        self._is_look = False
        self._why.begin(len(candidates))
        asking = self._asking
        asking.begin(candidates)
        size, num_offers = len(candidates), sum(c.limit for c in candidates)
        free = asking.free()
        if free and not self._pace(size).is_due():
            asking.rest(free, self._pace(size).reason)
            free = []
        if asking.candidates:
            num_rows = sum(1 + c.num_carried for c in candidates) + other_rows
            step = self.prices.step(size, num_rows, num_offers)
            least = asking.dare(step, num_rows, self._pace(size) if free else None)
            self._is_look = bool(free) and least < 1.0
            if free and not self._is_look:
                self._pace(size).skipped(self._why.why(1.0, 0))
                asking.rest(free, self._pace(size).reason)
        chains = asking.chains()
        return [
            c.limit
            if c.is_fixed
            else chains.get(c.sequence_id, c.limit if c.sequence_id in asking.candidates else 0)
            for c in candidates
        ]

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
                step=self._asking.step,
            )
        else:  # a plain step should not pay for the arrays
            seconds = self.prices.target.predict(size, num_rows)
            choice = Choice([0] * size, [0.0] * size, 0.0, 0.0, seconds)
        reasons = [
            self._why.of(c, p, kept, odds=odds, least=self._asking.least)
            for (c, p), kept, odds in zip(pairs, choice.kept, choice.odds, strict=True)
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
        """What a model took is not held against looking: its passes were planned."""
        asking = self.prices.asking_seconds(size) or self._asked
        cost = self.prices.per_second(size) * asking
        share = asking / self.prices.plain_seconds(size)
        self._pace(size).looked(worth, cost, share=share, reasons=reasons)

    def _survival(self, candidates: Seq[Candidate], proposals: Seq[Proposal]) -> Floats:
        """[sequences, longest proposal] by each one's own drafter."""
        names = {c.drafter for c in candidates}
        is_all = self._asking.least <= FULL_ODDS
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

    def _pace(self, num_sequences: int) -> Pace:
        return self._paces.setdefault(bucket(num_sequences), Pace())

    # ---- after the step ------------------------------------------------------------------

    def observe_text(self, candidate: Candidate, proposal: Proposal, output_ids: Seq[int]) -> None:
        """Judge the untrimmed proposal by what the target wrote behind what was carried."""
        outlook = self.outlooks[candidate.drafter]
        outlook.observe(candidate.sequence_id, proposal, output_ids)
        planner = self.planners.get(candidate.drafter)
        if planner is not None:
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

    def observe_draft(
        self,
        name: str,
        passes: Seq[int],
        *,
        num_rows: int,
        seconds: float,
        inside_seconds: float,
    ) -> None:
        """See `Planner.observe_call`."""
        if name in self.planners:
            self.planners[name].observe_call(
                passes, num_rows=num_rows, seconds=inside_seconds, hop=seconds - inside_seconds
            )

    def unanswered(self, name: str, sequence_ids: Seq[int]) -> None:
        """A drafter's model was asked for these and could not say: it still catches up, or failed.
        That it proposes nothing is not to be held against it."""
        if name in self.planners:
            for sequence_id in sequence_ids:
                self.planners[name].unanswered(sequence_id)

    def plain_seconds(self, num_sequences: int) -> float:
        """What one step without drafts takes, by the present costs."""
        return self.prices.plain_seconds(num_sequences)

    def end(self, sequence_id: int) -> None:
        for outlook in self.outlooks.values():
            outlook.end(sequence_id)
        for planner in self.planners.values():
            planner.end(sequence_id)

    def take(self) -> tuple[Counter[Reason], float]:
        """Reasons by count and expected tokens, since the last call."""
        taken = self.reasons, self.expected_tokens
        self.reasons, self.expected_tokens = Counter(), 0.0
        return taken
