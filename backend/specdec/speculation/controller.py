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

from specdec.drafters.base import MANY_PASSES, Judge
from specdec.speculation.choice import Choice, choose
from specdec.speculation.costs import CostModel, Floats, bucket
from specdec.speculation.outlook import Outlook
from specdec.speculation.pace import Pace, Reason
from specdec.speculation.planner import Candidate, DraftModel, Step
from specdec.speculation.prices import Prices
from specdec.speculation.reasons import FULL_ODDS, Reasons
from specdec.speculation.tree_planner import planners
from specdec.types import Proposal, Speedup

LEAST_ODDS, MOST_ODDS = 0.02, 0.6  # bounds of what a draft token must promise to be proposed
MARGIN = 0.7


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
        self._least = LEAST_ODDS  # of a draft token
        self._step: Step | None = None
        self._candidates: dict[int, Candidate] = {}  # whose drafters are asked, by sequence
        self._num_rows = 0  # in the pass anyway
        self._why = Reasons(self.prices)

    # ---- before the drafters are asked ---------------------------------------------------

    def judge(self, drafter: str) -> Judge:
        """For a drafter that weighs its draft tokens, between `limits` and `trim`."""
        odds = partial(self.outlooks[drafter].judge, among=list(self._candidates))
        passes = partial(self._passes, drafter)
        return Judge(odds, self._least, passes, self._stops(drafter))

    def _stops(self, drafter: str) -> dict[int, float]:
        """See `Judge.stops`: a draft token must pay its row, and its part of a pass."""
        model = self.models.get(drafter)
        ids = [i for i, c in self._candidates.items() if c.drafter == drafter]
        if self._step is None or model is None or model.grows_trees or not ids:
            return {}
        added = self._step.price * self.planners[drafter].added_seconds(len(ids))
        return dict.fromkeys(ids, max(self._least, added))

    def limits(self, candidates: Seq[Candidate], *, other_rows: int = 0) -> list[int]:
        """Draft tokens to ask for, per candidate: what pays where a draft model must be paid for
        each, the cap where they are free or a pass gives several, 0 where none can pay.

        Args:
            other_rows: of prompt chunks in the same pass.
        """
        self._began = self._clock()
        self._is_look, self._step = False, None
        self._why.begin(len(candidates))
        self._candidates = {c.sequence_id: c for c in candidates if c.limit and not c.is_fixed}
        size, num_offers = len(candidates), sum(c.limit for c in candidates)
        free = [i for i, c in self._candidates.items() if self._is_free(c)]
        if free and not self._pace(size).is_due():
            self._rest(free, self._pace(size).reason)
            free = []
        if self._candidates:
            self._num_rows = sum(1 + c.num_carried for c in candidates) + other_rows
            self._step = self.prices.step(size, self._num_rows, num_offers)
            least = self._dare(self._step, self._pace(size) if free else None)
            self._is_look = bool(free) and least < 1.0
            if free and not self._is_look:
                self._pace(size).skipped(self._why.why(1.0, 0))
                self._rest(free, self._pace(size).reason)
        chains = self._chains()
        return [
            c.limit
            if c.is_fixed
            else chains.get(c.sequence_id, c.limit if c.sequence_id in self._candidates else 0)
            for c in candidates
        ]

    def _rest(self, sequence_ids: Seq[int], reason: Reason) -> None:
        """These sequences' drafters are not asked in this step."""
        for sequence_id in sequence_ids:
            del self._candidates[sequence_id]
        self._why.withhold(sequence_ids, reason)

    def _chains(self) -> dict[int, int]:
        """Draft lengths by sequence, where a model must be paid for each token."""
        groups: dict[str, list[Candidate]] = {}
        for c in self._candidates.values():
            model = self.models.get(c.drafter)
            if model and not model.grows_trees:
                groups.setdefault(c.drafter, []).append(c)
        return {
            c.sequence_id: length
            for name, members in groups.items()
            for c, length in zip(members, self._plan(name, members), strict=True)
        }

    def _is_free(self, candidate: Candidate) -> bool:
        """Has its drafter something to propose that no model must be asked for?"""
        model = self.models.get(candidate.drafter)
        return model is None or model.is_optional

    def _passes(self, drafter: str, sequence_ids: Seq[int], free: Seq[Seq[float]]) -> list[int]:
        """See `Passes`; as many as a request wants that leaves nothing to be chosen."""
        members = [
            self._candidates[i]._replace(free=tuple(odds))
            for i, odds in zip(sequence_ids, free, strict=True)
            if i in self._candidates
        ]
        lengths = self._plan(drafter, members) if members else []
        planned = {c.sequence_id: length for c, length in zip(members, lengths, strict=True)}
        return [planned.get(i, MANY_PASSES) for i in sequence_ids]

    def _plan(self, drafter: str, members: Seq[Candidate]) -> list[int]:
        """Draft passes of each."""
        assert self._step is not None
        lengths, odds = self.planners[drafter].plan(members, self._step)
        for c, length, first in zip(members, lengths, odds, strict=True):
            if not length:
                self._why.withhold([c.sequence_id], self._why.why(first, 0))
        return lengths

    def _dare(self, step: Step, pace: Pace | None) -> float:
        """What a draft token must promise where rows are cheapest; drafters are told of it with a
        margin, for the price of time and the sequence's own odds still move."""
        added = step.price * (step.seconds[1:] - step.seconds[0])
        if pace and pace.may_try:
            added = added - self.prices.doubt(step, self._num_rows)
        least = float((added / np.arange(1, len(step.seconds))).min())
        self._least = min(max(LEAST_ODDS, MARGIN * least), MOST_ODDS)
        return least

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
            self._why.of(c, p, kept, odds=odds, least=self._least)
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
