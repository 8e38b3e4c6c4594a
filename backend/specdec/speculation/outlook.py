"""How likely draft tokens are to be accepted: learned from what the target wrote.

Conditional acceptance of a draft token that follows `depth` others,

    logit P(it holds | its parent does) = level[omen, depth] + shift[sequence]

Draft tokens of one drafter differ (one from a long n-gram match is a better omen than one from a
short match, a tree's first branch than its fifth), so the server keeps a level for every omen and
depth; a depth seen seldom leans on the one before it. A sequence adds one number, how predictable
its text is, which starts at the server's average and leans on it the more, the less the server's
sequences differ. All are Gaussian estimates, updated by one Newton step per look (extended Kalman
filter); they drift back when not refreshed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any, cast

import numpy as np

from specdec.drafters.base import Odds
from specdec.speculation.costs import Floats
from specdec.speculation.looks import Look, compare
from specdec.speculation.shift import LIMIT, Shift
from specdec.types import Proposal

Ints = np.ndarray[Any, np.dtype[np.int64]]

POSITIONS = 8  # greater depths share the last level
FIRST_ODDS, FIRST_VARIANCE = 0.5, 4.0  # before anything was seen: half of them, or any rate
NEXT_VARIANCE = 0.1  # of a depth's level about the one before it
MEMORY = 0.998  # what a level keeps of its evidence at each further observation
AGING = 0.9995  # and at each step without one
FIRST_SPREAD = 0.5  # variance between sequences, until it is learned
SPREADS = (0.01, 4.0)
SPREAD_WEIGHT = 0.004  # of one sequence's step in the learned variance
STAY = 0.995  # of a sequence's shift each step: texts turn
COMMON_WEIGHT = 0.1  # of what the shifts of open sequences share: it becomes the server's,
COMMON_SIZE = 8.0  # the more slowly, the fewer they are
LEAST_EVIDENCE = 0.005  # of one token, however sure it was
MAX_STEP = 2.0  # log-odds one look may move a level


class Outlook:
    """One drafter's record on this server, and on each open sequence."""

    def __init__(self, first_odds: Mapping[int, float] | None = None) -> None:
        """`first_odds`: by omen, before anything was seen; else a half."""
        self.spread = FIRST_SPREAD  # variance of shifts between sequences
        self._first_odds = first_odds or {}
        self._rows: dict[int, int] = {}  # omen -> row of the two tables
        self._evidence = np.zeros((0, POSITIONS))  # Fisher information
        self._score = np.zeros((0, POSITIONS))  # evidence times the level it speaks for
        self._levels: tuple[Floats, Floats] | None = None  # means, variances; None when stale
        self._shifts: dict[int, Shift] = {}
        self._looks: dict[int, list[Look]] = {}  # by sequence
        self._num_steps = 0

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
        rows = np.zeros((len(proposals), size), np.int64)
        depths = np.tile(np.arange(size), (len(proposals), 1))
        there = np.zeros((len(proposals), size), np.bool_)
        for i, proposal in enumerate(proposals):
            length = len(proposal.token_ids)
            there[i, :length] = True
            rows[i, :length] = [self._row(o) for o in proposal.omens] or self._row(0)
            if proposal.parents:
                depths[i, :length] = proposal.depths
        shifts = [self._shifts.get(i) for i in sequence_ids]
        odds = self._conditional(
            rows,
            depths,
            np.array([s.mean if s else 0.0 for s in shifts])[:, None],
            np.array([s.variance if s else self.spread for s in shifts])[:, None],
            optimism,
        )
        return np.where(there, _along_paths(odds, proposals), 0.0)

    def judge(self, sequence_id: int) -> Odds:
        """Conditional acceptance of one sequence's draft tokens, for a drafter that weighs them."""
        self._settle()
        shift = self._shifts.get(sequence_id)
        mean, variance = (shift.mean, shift.variance) if shift else (0.0, self.spread)
        known: dict[int, list[float]] = {}

        def odds(omen: int, depth: int) -> float:
            if omen not in known:
                rows = np.full(POSITIONS, self._row(omen))
                depths = np.arange(POSITIONS)
                known[omen] = self._conditional(rows, depths, mean, variance, 0.0).tolist()
            return known[omen][min(depth, POSITIONS - 1)]

        return odds

    def _conditional(
        self, rows: Ints, depths: Ints, shift: Any, variance: Any, optimism: float
    ) -> Floats:
        """P(it holds | its parent does) of draft tokens, any shape."""
        if not rows.size:
            return np.zeros(rows.shape)
        means, variances = self._cells(rows, depths)
        means, variances = means + shift, variances + variance
        if optimism:
            return _expit(means + optimism * np.sqrt(variances))
        # The mean of a logistic of a Gaussian (MacKay 1992).
        return _expit(means / np.sqrt(1 + math.pi / 8 * variances))

    def levels(self) -> dict[tuple[int, int], float]:
        """Conditional acceptance of an average sequence by (omen, depth), where there is any
        evidence."""
        self._settle()
        places = [
            (omen, row, depth)
            for omen, row in self._rows.items()
            for depth in range(POSITIONS)
            if self._evidence[row, depth] > 0
        ]
        if not places:
            return {}
        _, rows, depths = (np.array(column) for column in zip(*places, strict=True))
        odds = _expit(self._cells(rows, depths)[0]).tolist()
        return {(p[0], p[2]): value for p, value in zip(places, odds, strict=True)}

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

    # ---- learning ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take in the looks of the last step, all sequences at once."""
        if not self._looks:
            return
        shifts = [self._drifted(sequence_id) for sequence_id in self._looks]
        looks = list(self._looks.values())
        self._looks = {}
        self._num_steps += 1
        shape = len(looks), max(len(each) for each in looks)
        rows, depths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        seen, holds = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        for i, each in enumerate(looks):
            size = len(each)
            seen[i, :size] = True
            rows[i, :size] = [self._row(look.omen) for look in each]
            depths[i, :size] = [look.depth for look in each]
            holds[i, :size] = [look.held for look in each]
        means, _ = self._cells(rows, depths)
        odds = _expit(means + np.array([s.mean for s in shifts])[:, None])  # [looks, tokens]
        surprise = np.where(seen, holds - odds, 0.0)
        evidence = np.where(seen, np.maximum(odds * (1 - odds), LEAST_EVIDENCE), 0.0)
        common = self._learn_shifts(shifts, surprise.sum(axis=1), evidence.sum(axis=1))
        # The levels learn from what the shifts leave unexplained.
        odds = _expit(means + np.array([s.mean + common for s in shifts])[:, None])
        surprise = np.where(seen, holds - odds, 0.0)
        self._score += common * self._evidence
        self._learn_levels(rows, depths, means + common, surprise, evidence)

    def _learn_levels(
        self, rows: Ints, depths: Ints, means: Floats, surprise: Floats, evidence: Floats
    ) -> None:
        """All arrays [looks, tokens]; the tables [omens, POSITIONS]."""
        cells = (rows * POSITIONS + np.minimum(depths, POSITIONS - 1)).ravel()
        shape, size = self._evidence.shape, self._evidence.size

        def total(values: Floats) -> Floats:
            summed: Any = np.bincount(cells, values.ravel(), size).reshape(shape)
            return cast(Floats, summed)

        kept = AGING * MEMORY ** total((evidence > 0).astype(np.float64))
        self._evidence *= kept
        self._score *= kept
        new = total(evidence)
        limit = MAX_STEP * (self._evidence + new + 1 / FIRST_VARIANCE)
        self._score += total(evidence * means) + np.clip(total(surprise), -limit, limit)
        self._evidence += new
        self._levels = None

    def _learn_shifts(self, shifts: Seq[Shift], surprise: Floats, evidence: Floats) -> float:
        """And how much sequences differ (one step of expectation maximisation).

        Returns:
            The part of the shifts that now counts as everybody's, to be added to the levels.
        """
        total = 0.0
        for shift, error, weight in zip(shifts, surprise.tolist(), evidence.tolist(), strict=True):
            shift.learn(error, weight)
            total += shift.mean**2 + shift.variance
        size = len(shifts)
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

    def _row(self, omen: int) -> int:
        """The omen's row of the tables."""
        if omen not in self._rows:
            self._rows[omen] = len(self._rows)
            empty = np.zeros((1, POSITIONS))
            self._evidence = np.concatenate([self._evidence, empty])
            self._score = np.concatenate([self._score, empty])
            self._levels = None
        return self._rows[omen]

    def _cells(self, rows: Ints, depths: Ints) -> tuple[Floats, Floats]:
        """Means and variances of levels, in the shape of the arguments."""
        if self._levels is None:
            self._levels = self._filtered()
        means, variances = self._levels
        columns = np.minimum(depths, POSITIONS - 1)
        return means[rows, columns], variances[rows, columns]

    def _filtered(self) -> tuple[Floats, Floats]:
        """Every depth's level, leaning on the one before it: [omens, POSITIONS]."""
        means, variances = [], []
        for omen, row in self._rows.items():
            first = self._first_odds.get(omen, FIRST_ODDS)
            mean, variance = math.log(first / (1 - first)), FIRST_VARIANCE
            evidence, score = self._evidence[row].tolist(), self._score[row].tolist()
            for weight, sum_ in zip(evidence, score, strict=True):
                precision = 1 / variance + weight
                mean = min(max((mean / variance + sum_) / precision, -LIMIT), LIMIT)
                means.append(mean)
                variances.append(1 / precision)
                variance = 1 / precision + NEXT_VARIANCE
        shape = self._evidence.shape
        return np.array(means).reshape(shape), np.array(variances).reshape(shape)


def _along_paths(odds: Floats, proposals: Seq[Proposal]) -> Floats:
    """Products of each draft token's odds with all it follows: [sequences, tokens]."""
    if not any(p.parents for p in proposals):
        chained: Floats = odds.cumprod(axis=1)
        return chained
    num_sequences, size = odds.shape
    parents = np.tile(np.arange(-1, size - 1), (num_sequences, 1))
    for i, proposal in enumerate(proposals):
        if proposal.parents:
            parents[i, : len(proposal.parents)] = proposal.parents
    products = np.ones((num_sequences, 1 + size))  # column 0: the root
    sequences = np.arange(num_sequences)
    for column in range(size):
        products[:, column + 1] = odds[:, column] * products[sequences, parents[:, column] + 1]
    return products[:, 1:]


def _expit(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
