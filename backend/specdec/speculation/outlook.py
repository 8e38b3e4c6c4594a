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
from collections.abc import Iterable, Mapping
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
KNOWN_VARIANCE = 1.0  # where a drafter brings first odds: a few looks outweigh them
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
MAX_PROFILE = 16  # draft tokens on offer
PROFILE_STEPS, PROFILE_WEIGHT = 4, 0.08  # every so many steps, and the weight of one
MAX_STEP = 2.0  # log-odds one look may move a level


class Outlook:
    """One drafter's record on this server, and on each open sequence."""

    def __init__(self, first_odds: Mapping[int, float] | None = None) -> None:
        """`first_odds`: by omen, before anything was seen; else a half."""
        self.spread = FIRST_SPREAD  # variance of shifts between sequences
        self._first_odds = first_odds or {}
        self._starts: dict[int, int] = {}  # omen -> its first cell in a flat table
        self._evidence = np.zeros((0, POSITIONS))  # [omens, depths] Fisher information
        self._score = np.zeros((0, POSITIONS))  # evidence times the level it speaks for
        self._levels: tuple[Floats, Floats] | None = None  # means, variances; None when stale
        self._shifts: dict[int, Shift] = {}
        self._looks: dict[int, list[Look]] = {}  # by sequence
        self._odds: dict[int, list[float]] = {}  # sequence -> conditional acceptance by cell
        self._num_steps = self._num_offers = 0
        # P(it and all it follows hold) of the first, second, ... draft token on offer lately.
        self.profile: Floats = np.zeros(MAX_PROFILE)
        for omen in self._first_odds:
            self._start(omen)

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
                    _along_paths(proposal, table, self._starts, size)
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
        table, starts = self._odds[sequence_id], self._starts

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
        means, variances = self._cells()
        variances = variances + variance
        if optimism:
            return _expit(means + shift + optimism * np.sqrt(variances))
        # The mean of a logistic of a Gaussian (MacKay 1992).
        return _expit((means + shift) / np.sqrt(1 + math.pi / 8 * variances))

    def levels(self) -> dict[tuple[int, int], float]:
        """Conditional acceptance of an average sequence by (omen, depth), where there is any
        evidence."""
        self._settle()
        odds, evidence = _expit(self._cells()[0]).tolist(), self._evidence.ravel().tolist()
        return {
            (omen, depth): odds[start + depth]
            for omen, start in self._starts.items()
            for depth in range(POSITIONS)
            if evidence[start + depth] > 0
        }

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
        for i, looks in enumerate(self._looks.values()):
            for omen, depth, holds in looks:
                start = self._starts[omen] if omen in self._starts else self._start(omen)
                places.append(start + (depth if depth < POSITIONS else POSITIONS - 1))
                whose.append(i)
                held.append(holds)
        self._looks = {}
        cells, sequences, holds_now = np.array(places), np.array(whose), np.array(held, np.float64)
        means = self._cells()[0][cells]
        odds = _expit(means + np.array([s.mean for s in shifts])[sequences])  # [looks]
        evidence = np.maximum(odds * (1 - odds), LEAST_EVIDENCE)
        surprises: Any = np.bincount(sequences, holds_now - odds, len(shifts))
        evidences: Any = np.bincount(sequences, evidence, len(shifts))
        common = self._learn_shifts(shifts, surprises, evidences)
        # The levels learn from what the shifts leave unexplained.
        odds = _expit(means + np.array([s.mean + common for s in shifts])[sequences])
        self._score += common * self._evidence
        self._learn_levels(cells, means + common, holds_now - odds, evidence)

    def _learn_levels(self, cells: Ints, means: Floats, surprise: Floats, evidence: Floats) -> None:
        """All arrays [looks]; the tables [omens, POSITIONS]."""
        shape, size = self._evidence.shape, self._evidence.size

        def total(values: Floats | None) -> Floats:
            summed: Any = np.bincount(cells, values, size).reshape(shape)
            return cast(Floats, summed)

        kept = AGING * MEMORY ** total(None)
        self._evidence *= kept
        self._score *= kept
        new = total(evidence)
        limit = MAX_STEP * (self._evidence + new + 1 / FIRST_VARIANCE)
        self._score += total(evidence * means) + np.clip(total(surprise), -limit, limit)
        self._evidence += new
        self._levels, self._odds = None, {}

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

    def _start(self, omen: int) -> int:
        """The omen's first cell; a new one makes the tables longer."""
        if omen not in self._starts:
            self._starts[omen] = len(self._starts) * POSITIONS
            empty = np.zeros((1, POSITIONS))
            self._evidence = np.concatenate([self._evidence, empty])
            self._score = np.concatenate([self._score, empty])
            self._levels, self._odds = None, {}
        return self._starts[omen]

    def _cells(self) -> tuple[Floats, Floats]:
        """Means and variances of all levels, [cells]."""
        if self._levels is None:
            self._levels = self._filtered()
        return self._levels

    def _filtered(self) -> tuple[Floats, Floats]:
        """Every depth's level, leaning on the one before it."""
        first = np.array([self._first_odds.get(omen, FIRST_ODDS) for omen in self._starts])
        is_known = np.array([omen in self._first_odds for omen in self._starts])
        mean = np.log(first / (1 - first))
        precision = 1 / np.where(is_known, KNOWN_VARIANCE, FIRST_VARIANCE)
        means, variances = np.empty((2, POSITIONS, len(first)))
        for depth in range(POSITIONS):
            known = precision + self._evidence[:, depth]
            mean = (mean * precision + self._score[:, depth]) / known
            mean = np.minimum(np.maximum(mean, -LIMIT), LIMIT)
            means[depth], variances[depth] = mean, 1 / known
            precision = 1 / (variances[depth] + NEXT_VARIANCE)
        return means.T.ravel(), variances.T.ravel()


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


def _expit(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
