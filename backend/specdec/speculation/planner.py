"""How far a draft model should draft, before it is asked: its passes must be paid.

For every number of draft passes the best rows of the batch are found; the number that gains most,
net of the passes, is taken. At none, a few sequences may be asked out of curiosity.

Knows one drafter, and sequences by id.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from specdec.speculation.costs import CostModel, Floats, MovingMean, bucket
from specdec.speculation.curiosity import Curiosity
from specdec.speculation.outlook import Outlook
from specdec.speculation.rows import Offers, Plans
from specdec.types import Proposal

HYSTERESIS = 0.01  # of the step's tokens: what another draft length must bring to replace the last
CATCH_UP_STEPS = 48  # a draft model's catching up is paid off over that many steps
REVISIT_TOKENS = 24  # a sequence left out of draft calls is asked again after that many tokens
REVISIT_SHARE = 0.03  # of a plain step's time may go into that
# Tokens per sequence that drafts must promise to gain, of 16 sequences and more; of fewer, less in
# proportion. What seems best of many is by its estimate's error less than it seems, and where many
# sequences share a pass there is little to gain and much that is only estimated.
LEAST_GAIN = 0.05
CROWD = 16


class DraftModel(NamedTuple):
    """What there is to know of a drafter's model."""

    cost: CostModel
    grows_trees: bool = False  # a pass of it may give several of a sequence's draft tokens
    is_optional: bool = False  # the drafter has draft tokens without it too


class Candidate(NamedTuple):
    """One decoding sequence before the step."""

    sequence_id: int
    drafter: str
    limit: int  # the request's cap, what is left of the text
    is_fixed: bool = False  # the request asked for exactly this many
    num_undrafted: int = 1  # tokens a draft model must catch up on
    num_carried: int = 0  # draft tokens it has already, all but certain
    # P(it and all before it hold) of the draft tokens that its drafter has without its model
    free: tuple[float, ...] = ()


class Step(NamedTuple):
    """What all choices of one step share."""

    num_sequences: int
    price: float  # tokens per second that batches of this size make anyway
    plain_seconds: float  # of a step without drafts
    seconds: Floats  # of the pass with 0, 1, ... draft tokens

    @property
    def least_gain(self) -> float:
        """Tokens: what promises less is not done."""
        return LEAST_GAIN * min(self.num_sequences / CROWD, 1.0) * self.num_sequences


class Weighed(NamedTuple):
    """What draft lengths are worth."""

    worth: Seq[float]  # [1 + longest] tokens gained over asking for none, net of the passes
    odds: list[float]  # [members] of each one's first draft token
    lengths: Callable[[int], list[int]]  # of each member, where the longest is that
    free: float = 0.0  # tokens gained where none is asked for


class Planner:
    """Draft lengths for one drafter that calls a model, which drafts a chain: a pass a token."""

    def __init__(self, cost: CostModel, outlook: Outlook) -> None:
        """`outlook`: of draft tokens that are not there yet, and so without omens."""
        self.curiosity = Curiosity()
        self.hop = MovingMean()
        self._cost = cost
        self._outlook = outlook
        self._last: dict[int, int] = {}  # batch bucket -> draft length chosen last

    def plan(self, members: Seq[Candidate], step: Step) -> tuple[list[int], list[float]]:
        """Draft lengths, and the odds of each one's first draft token."""
        worth, odds, lengths_of, free = self.weigh(members, step)
        best = max(range(len(worth)), key=worth.__getitem__)
        key = bucket(step.num_sequences)
        last = min(self._last.get(key, best), len(worth) - 1)
        if 0.0 <= worth[last] > worth[best] - HYSTERESIS * step.num_sequences:
            best = last
        if free + worth[best] < step.least_gain:
            best = 0
        self._last[key] = best
        self.curiosity.wait(is_asked=best > 0)
        if best:
            lengths = lengths_of(best)
            self._revisit(members, lengths, step)
        else:
            lengths = self._explore(members, step)
        return lengths, odds

    def observe(self, sequence_id: int, proposal: Proposal, output_ids: Seq[int]) -> None:
        """A proposal that the target's tokens can be compared with.

        What its omens tell could not be known before the model was asked: here the chain of its
        likeliest tokens counts, whatever they were.
        """
        if not proposal.token_ids:
            return
        self.curiosity.is_hopeful = proposal.token_ids[:1] == tuple(output_ids[:1])
        chain = Proposal(tuple(proposal.token_ids[node] for node in proposal.trunk))
        self._outlook.observe(sequence_id, chain, output_ids)

    def unanswered(self, sequence_id: int) -> None:
        """See `Controller.unanswered`; a proposal that is not there is not judged here anyway."""

    def observe_call(
        self, lengths: Seq[int], *, num_rows: int, seconds: float, hop: float = 0.0
    ) -> None:
        """Correct the model's costs by one call: `num_rows` first, then one row for each sequence
        that wants more.

        Args:
            lengths: passes of each sequence.
            seconds: inside the model.
            hop: seconds of the way there and back, which a call costs whatever is asked.
        """
        if not lengths:
            return
        self.hop.observe(max(hop, 0.0))
        passes = self._cost.single_rows(len(lengths))
        sizes = [sum(n > step for n in lengths) for step in range(1, max(lengths))]
        expected = self._cost.predict(len(lengths), num_rows) + float(passes[sizes].sum())
        if expected > 0.0:
            self._cost.rescale(len(lengths), seconds / expected)

    def rates(self) -> dict[int, float]:
        """Conditional acceptance of an average sequence by position, where there is evidence."""
        return {depth: rate for (_, depth), rate in self._outlook.levels().items()}

    def added_seconds(self, num_sequences: int) -> float:
        """By which the last one of so many makes a pass longer."""
        seconds = self._cost.single_rows(num_sequences)
        return float(seconds[-1] - seconds[-2])

    def end(self, sequence_id: int) -> None:
        self._outlook.end(sequence_id)

    def weigh(self, members: Seq[Candidate], step: Step, optimism: float = 0.0) -> Weighed:
        """The best rows for every number of draft passes.

        Args:
            optimism: standard deviations by which every rate is raised.
        """
        survival = self._survival(members, (0,) * len(members), optimism)
        plans, worth = self.compare(members, survival, step)
        return Weighed(worth, survival[:, 0].tolist(), lambda best: plans.lengths(best).tolist())

    def compare(
        self, members: Seq[Candidate], survival: Floats, step: Step
    ) -> tuple[Plans, list[float]]:
        """Plans for 1, 2, ... draft passes; and [1 + longest] tokens they gain over none.

        No token is asked for of a sequence that the draft model would have to follow for long
        before it could pay.

        Args:
            survival: [members, longest].
        """
        limits = np.array([c.limit for c in members])
        dues = 0.0
        if any(c.num_undrafted > 2 for c in members):
            each = step.price * self._catch_up(members)
            limits[survival.sum(axis=1) <= each] = 0
            dues = float(each[limits > 0].sum())
        plans = Offers(survival, limits).plans(step.seconds, step.price)
        passes = self._cost.single_rows(len(members))[plans.sizes].sum(axis=1)
        spent = step.price * (passes + self.hop.value)
        return plans, [0.0, *(plans.worth - spent - dues).tolist()]

    def _survival(self, members: Seq[Candidate], omens: Seq[int], optimism: float = 0.0) -> Floats:
        """[members, longest] of chains of such omens."""
        size = max(c.limit for c in members)
        chains = [Proposal((0,) * size, (omen,) * size) for omen in omens]
        return self._outlook.survival([c.sequence_id for c in members], chains, optimism=optimism)

    def _catch_up(self, members: Seq[Candidate]) -> Floats:
        """Seconds a step for catching up, [members]: shared by arrears, paid off over some steps.
        One or two tokens are the rule and in every pass."""
        size = len(members)
        arrears = np.array([max(0, c.num_undrafted - 2) for c in members], np.float64)
        num_late = float(arrears.sum())
        late = self._cost.predict(size, size + int(num_late)) - self._cost.predict(size, size)
        return arrears * (late / num_late / CATCH_UP_STEPS)

    def _revisit(self, members: Seq[Candidate], lengths: list[int], step: Step) -> None:
        """One sequence that was left out for long is asked along with the others: its draft
        token need not be verified to be judged."""
        late = [
            i
            for i, length in enumerate(lengths)
            if not length and members[i].num_undrafted >= REVISIT_TOKENS
        ]
        if not late:
            return
        i = min(late, key=lambda i: members[i].num_undrafted)
        size = sum(length > 0 for length in lengths)
        together = self._cost.predict(size + 1, size + members[i].num_undrafted)
        if together - self._cost.predict(size, size) < REVISIT_SHARE * step.plain_seconds:
            lengths[i] = 1

    def _explore(self, members: Seq[Candidate], step: Step) -> list[int]:
        """At K = 0: one token of a few sequences, now and then."""
        lengths = [0] * len(members)
        order = sorted(range(len(members)), key=lambda i: members[i].num_undrafted)
        num_asked = self.curiosity.pick(
            [members[i].num_undrafted for i in order],
            price=lambda size, rows: (
                (self.hop.value + self._cost.predict(size, rows)) / step.plain_seconds
            ),
            is_worth_it=lambda optimism: self._may_pay(members, step, optimism),
        )
        for i in order[:num_asked]:
            lengths[i] = 1
        return lengths

    def _may_pay(self, members: Seq[Candidate], step: Step, optimism: float) -> bool:
        """Would drafting pay if every rate were `optimism` standard deviations better?"""
        return max(self.weigh(members, step, optimism).worth) > 0.0
