"""How likely draft tokens are to be accepted: learned from what the target wrote.

Conditional acceptance of a draft token that follows `depth` others,

    logit P(it holds | its parent does) = level[omen, depth] + shift[sequence]

Draft tokens of one drafter differ (one from a long n-gram match is a better omen than one from a
short match, a tree's first branch than its fifth), so the server keeps a level for every omen and
depth; a depth seen seldom leans on the one before it. A sequence adds one number, how predictable
its text is, which starts at the server's average and leans on it the more, the less the server's
sequences differ. All are Gaussian estimates, updated by one Newton step per look (extended Kalman
filter) or, for a sequence, by counting; they drift back when not refreshed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from specdec.drafters.base import Odds
from specdec.speculation.costs import Floats
from specdec.speculation.levels import POSITIONS, Ints, Levels, expit
from specdec.speculation.looks import Look, compare
from specdec.speculation.shift import Shift
from specdec.types import Proposal

FIRST_SPREAD = 0.5  # variance between sequences, until it is learned
SPREADS = (0.01, 4.0)
SPREAD_WEIGHT = 0.004  # of one sequence's step in the learned variance
STAY = 0.995  # of a sequence's shift each step: texts turn
COMMON_WEIGHT = 0.1  # of what the shifts of open sequences share: it becomes the server's,
COMMON_SIZE = 8.0  # the more slowly, the fewer they are
MAX_PROFILE = 16  # draft tokens on offer
PROFILE_STEPS, PROFILE_WEIGHT = 4, 0.08  # every so many steps, and the weight of one


class Outlook:
    """One drafter's record on this server, and on each open sequence."""

    def __init__(self, first_odds: Mapping[int, float] | None = None) -> None:
        """`first_odds`: by omen, before anything was seen; else a half."""
        self.spread = FIRST_SPREAD  # variance of shifts between sequences
        self._levels = Levels(first_odds or {})
        self._shifts: dict[int, Shift] = {}
        self._looks: dict[int, list[Look]] = {}  # by sequence
        self._odds: dict[int, list[float]] = {}  # sequence -> conditional acceptance by cell
        self._num_steps = self._num_offers = 0
        # P(it and all it follows hold) of the first, second, ... draft token on offer lately.
        self.profile: Floats = np.zeros(MAX_PROFILE)

    def survival(
        self, sequence_ids: Seq[int], proposals: Seq[Proposal], *, optimism: float = 0.0
    ) -> Floats:
        """P(a draft token and all it follows hold), [sequences, longest proposal]: each in (0, 1),
        0 where there is none.

        Args:
            optimism: standard deviations by which every log-odds is raised.
        """
        self._settle()
        size = max((len(p.token_ids) for p in proposals), default=0)
        while True:
            tables = self._tables(sequence_ids, optimism)
            try:
                paths = [
                    _along_paths(proposal, table, self._levels.starts, size)
                    for proposal, table in zip(proposals, tables, strict=True)
                ]
                return np.array(paths, np.float64).reshape(len(proposals), size)
            except KeyError as unknown:  # an omen's first time
                self._start(unknown.args[0])

    def judge(self, sequence_id: int, among: Seq[int] = ()) -> Odds:
        """Conditional acceptance of one sequence's draft tokens, for a drafter that weighs them.

        Args:
            among: sequences that are likely to be judged in this step.
        """
        self._settle()
        if sequence_id not in self._odds:
            self._tables({sequence_id, *among})
        table, starts = self._odds[sequence_id], self._levels.starts

        def odds(omen: int, depth: int) -> float:
            nonlocal table
            if omen not in starts:
                self._start(omen)
            if starts[omen] >= len(table):
                (table,) = self._tables([sequence_id])
            return table[starts[omen] + (depth if depth < POSITIONS else POSITIONS - 1)]

        return odds

    def _tables(self, sequence_ids: Iterable[int], optimism: float = 0.0) -> list[list[float]]:
        """P(a draft token holds | its parent does) of each sequence, by cell."""
        known = {} if optimism else self._odds
        missing = [i for i in dict.fromkeys(sequence_ids) if i not in known]
        if missing:
            shifts = [self._shifts.get(i) for i in missing]
            odds = self._conditional(
                np.array([s.mean if s else 0.0 for s in shifts])[:, None],
                np.array([s.variance if s else self.spread for s in shifts])[:, None],
                optimism,
            )
            known.update(zip(missing, odds.tolist(), strict=True))
        return [known[i] for i in sequence_ids]

    def _conditional(self, shift: Floats, variance: Floats, optimism: float) -> Floats:
        """[sequences, cells] of sequences with these shifts, [sequences, 1] each."""
        means, variances = self._levels.cells()
        variances = variances + variance
        if optimism:
            return expit(means + shift + optimism * np.sqrt(variances))
        # The mean of a logistic of a Gaussian (MacKay 1992).
        return expit((means + shift) / np.sqrt(1 + math.pi / 8 * variances))

    def levels(self) -> dict[tuple[int, int], float]:
        """Conditional acceptance of an average sequence by (omen, depth), where there is any
        evidence."""
        self._settle()
        return self._levels.seen()

    def offered(self, survival: Floats, *, is_all: bool) -> None:
        """Note what was on offer, [sequences, tokens]; `is_all`: the unlikely ones too."""
        self._num_offers += 1
        if self._num_offers % PROFILE_STEPS == 1 and (is_all or not self.profile.any()):
            size = min(survival.shape[1], len(self.profile))
            mean = np.zeros_like(self.profile)
            mean[:size] = survival[:, :size].sum(axis=0) / len(survival)
            weight = PROFILE_WEIGHT if self.profile.any() else 1.0
            self.profile += weight * (mean - self.profile)

    def observe(self, sequence_id: int, proposal: Proposal, output_ids: Seq[int]) -> None:
        """Compare a proposal with what the target wrote, whether or not it was verified."""
        looks = compare(proposal, output_ids)
        if not looks:
            return
        if sequence_id in self._looks:
            self._settle()
        self._looks[sequence_id] = looks

    def end(self, sequence_id: int) -> None:
        self._settle()
        self._shifts.pop(sequence_id, None)
        self._odds.pop(sequence_id, None)

    # ---- learning ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take in the looks of the last step, all sequences at once."""
        if not self._looks:
            return
        self._num_steps += 1
        shifts = [self._drifted(sequence_id) for sequence_id in self._looks]
        places: list[int] = []  # of each look in a flat table
        whose: list[int] = []  # and its sequence, 0, 1, ...
        held: list[bool] = []
        starts = self._levels.starts
        for i, looks in enumerate(self._looks.values()):
            for omen, depth, holds in looks:
                start = starts[omen] if omen in starts else self._start(omen)
                places.append(start + (depth if depth < POSITIONS else POSITIONS - 1))
                whose.append(i)
                held.append(holds)
        self._looks = {}
        cells, sequences, held_now = np.array(places), np.array(whose), np.array(held, np.float64)
        means = self._levels.cells()[0][cells]
        odds = expit(means + np.array([s.mean for s in shifts])[sequences])  # [looks]
        common = self._learn_shifts(shifts, sequences, held_now, odds)
        # The levels learn from what the shifts leave unexplained.
        odds = expit(means + np.array([s.mean + common for s in shifts])[sequences])
        self._levels.move(common)
        self._levels.learn(cells, means + common, held_now, odds)
        self._odds = {}

    def _learn_shifts(
        self, shifts: Seq[Shift], sequences: Ints, held: Floats, odds: Floats
    ) -> float:
        """And how much sequences differ (one step of expectation maximisation).

        Args:
            sequences, held, odds: [looks].

        Returns:
            The part of the shifts that now counts as everybody's, to be added to the levels.
        """
        size, total = len(shifts), 0.0
        sums = [np.bincount(sequences, each, size).tolist() for each in (held, odds, None)]
        for shift, num_held, expected, number in zip(shifts, *sums, strict=True):
            shift.learn(num_held, expected, number)
            total += shift.mean**2 + shift.variance
        weight = 1 - (1 - SPREAD_WEIGHT) ** size
        spread = self.spread + weight * (total / size - self.spread)
        self.spread = min(max(spread, SPREADS[0]), SPREADS[1])
        common = COMMON_WEIGHT * sum(shift.mean for shift in shifts) / (size + COMMON_SIZE)
        for shift in shifts:
            shift.mean -= common
        return common

    def _drifted(self, sequence_id: int) -> Shift:
        """The sequence's shift, carried forward to this step."""
        shift = self._shifts.get(sequence_id)
        if shift is None:
            shift = self._shifts[sequence_id] = Shift(self.spread, self._num_steps)
            return shift
        stay = STAY ** (self._num_steps - shift.stamp)
        shift.mean *= stay
        shift.variance = stay**2 * shift.variance + (1 - stay**2) * self.spread
        shift.stamp = self._num_steps
        return shift

    def _start(self, omen: int) -> int:
        """See `Levels.start`."""
        self._odds = {}
        return self._levels.start(omen)


def _along_paths(
    proposal: Proposal, table: list[float], starts: Mapping[int, int], size: int
) -> list[float]:
    """Products of each draft token's odds with all it follows; zeros up to `size`.

    One by one: proposals are too short for arrays to pay.
    """
    num_tokens = len(proposal.token_ids)
    omens = proposal.omens or (0,) * num_tokens
    # The last place of both lists stands for the root, whose index is -1.
    paths, depths = [0.0] * size + [1.0], [0] * size + [-1]
    for node, (parent, omen) in enumerate(zip(proposal.links, omens, strict=True)):
        depth = depths[node] = depths[parent] + 1
        cell = starts[omen] + (depth if depth < POSITIONS else POSITIONS - 1)
        paths[node] = paths[parent] * table[cell]
    paths.pop()
    return paths
