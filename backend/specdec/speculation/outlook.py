"""How likely draft tokens are to be accepted: learned from what the target wrote.

Conditional acceptance by position, a_j = P(draft j holds | drafts before it hold), in log-odds:

    logit a_j = level[omen, j] + shift[sequence]

Proposals of one drafter differ (a long n-gram match is a better omen than a short one), so the
server keeps a level for every omen and position; a position seen seldom leans on the one before
it. A sequence adds one number, how predictable its text is, which starts at the server's average
and leans on it the more, the less the server's sequences differ. All are Gaussian estimates,
updated by one Newton step per look (extended Kalman filter); they drift back when not refreshed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, cast

import numpy as np

from specdec.speculation.costs import Floats

Key = tuple[tuple[int, ...], tuple[int, ...], float]
Ints = np.ndarray[Any, np.dtype[np.int64]]

POSITIONS = 8  # later positions share the last level
FIRST_LEVEL, FIRST_VARIANCE = 0.0, 4.0  # before anything was seen: half of them, or any rate
NEXT_VARIANCE = 0.1  # of a position's level about the one before it
MEMORY = 0.998  # what a level keeps of its evidence at each further observation
AGING = 0.9995  # and at each step without one
FIRST_SPREAD = 0.5  # variance between sequences, until it is learned
SPREADS = (0.01, 4.0)
SPREAD_WEIGHT = 0.004  # of one sequence's step in the learned variance
STAY = 0.995  # of a sequence's shift each step: texts turn
RECENT = 0.8  # of the recent surprise stays each step
ALARM = 12.0  # squared standard deviations of recent surprise: the text has turned
TURN_VARIANCE = 1.5  # of its shift from then on
LIMIT = 5.0  # log-odds stay within: 0.7 % to 99.3 %
COMMON_WEIGHT = 0.1  # of what the shifts of open sequences share: it becomes the server's,
COMMON_SIZE = 8.0  # the more slowly, the fewer they are
LEAST_EVIDENCE = 0.005  # of one token, however sure it was
MAX_STEP = 2.0  # log-odds one look may move a level


class Look(NamedTuple):
    """One proposal compared with what the target wrote."""

    omen: int
    num_accepted: int
    was_rejected: bool  # the token behind the accepted ones is known to be wrong


class Shift:
    """One sequence's log-odds against the server's average."""

    __slots__ = ("mean", "noise", "stamp", "surprise", "variance")

    def __init__(self, variance: float, stamp: int) -> None:
        self.mean = 0.0
        self.variance = variance
        self.stamp = stamp  # the step of its last look
        self.surprise = self.noise = 0.0  # of the last steps, and the variance it should have

    def learn(self, surprise: float, evidence: float) -> None:
        """One Newton step; what was known counts for little once the text has turned."""
        self.surprise = RECENT * self.surprise + surprise
        self.noise = RECENT**2 * self.noise + evidence
        if self.surprise**2 > ALARM * self.noise:
            self.variance = max(self.variance, TURN_VARIANCE)
        self.variance = 1 / (1 / self.variance + evidence)
        self.mean = min(max(self.mean + self.variance * surprise, -LIMIT), LIMIT)


class Outlook:
    """One drafter's record on this server, and on each open sequence."""

    def __init__(self) -> None:
        self.spread = FIRST_SPREAD  # variance of shifts between sequences
        self._rows: dict[int, int] = {}  # omen -> row of the two tables
        self._evidence = np.zeros((0, POSITIONS))  # Fisher information
        self._score = np.zeros((0, POSITIONS))  # evidence times the level it speaks for
        self._levels: tuple[Floats, Floats] | None = None  # means, variances; None when stale
        self._shifts: dict[int, Shift] = {}
        self._looks: dict[int, Look] = {}  # by sequence
        self._num_steps = 0
        self._last: tuple[Key, Floats] | None = None  # what was asked last, asked again by trim

    def survival(
        self,
        sequence_ids: Seq[int],
        omens: Seq[int],
        num_tokens: int,
        *,
        optimism: float = 0.0,
    ) -> Floats:
        """P(drafts 0..j all hold), [sequences, num_tokens]: falling along a row, each in (0, 1).

        Args:
            optimism: standard deviations by which every log-odds is raised.
        """
        self._settle()
        key = (tuple(sequence_ids), tuple(omens), optimism)
        if self._last and self._last[0] == key and self._last[1].shape[1] >= num_tokens:
            return self._last[1][:, :num_tokens]
        means, variances = self._cells(omens, num_tokens)
        shifts = [self._shifts.get(i) for i in sequence_ids]
        means = means + np.array([s.mean if s else 0.0 for s in shifts])[:, None]
        spread = self.spread
        variances = variances + np.array([s.variance if s else spread for s in shifts])[:, None]
        if optimism:
            logits = means + optimism * np.sqrt(variances)
        else:  # the mean of a logistic of a Gaussian (MacKay 1992)
            logits = means / np.sqrt(1 + math.pi / 8 * variances)
        survival: Floats = _expit(logits).cumprod(axis=1)
        self._last = key, survival
        return survival

    def levels(self) -> dict[tuple[int, int], float]:
        """Conditional acceptance of an average sequence by (omen, position), where there is
        any evidence."""
        self._settle()
        omens = list(self._rows)
        means, _ = self._cells(omens, POSITIONS) if omens else (np.zeros((0, POSITIONS)), None)
        return {
            (omen, position): float(_expit(means[row, position]))
            for row, omen in enumerate(omens)
            for position in range(POSITIONS)
            if self._evidence[row, position] > 0
        }

    def observe(
        self, sequence_id: int, omen: int, draft_ids: Seq[int], output_ids: Seq[int]
    ) -> None:
        """Compare a proposal with what the target wrote, whether or not it was verified.

        The target's tokens do not depend on the proposal, so a draft token that was cut off
        before the pass is judged for free as far as the text now reaches.
        """
        num_accepted, was_rejected = 0, False
        for draft_id, output_id in zip(draft_ids, output_ids, strict=False):
            if draft_id != output_id:
                was_rejected = True
                break
            num_accepted += 1
        if not (num_accepted or was_rejected):
            return
        if sequence_id in self._looks:
            self._settle()
        self._looks[sequence_id] = Look(omen, num_accepted, was_rejected)

    def end(self, sequence_id: int) -> None:
        self._settle()
        self._last = None
        self._shifts.pop(sequence_id, None)

    # ---- learning ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take in the looks of the last step, all sequences at once."""
        if not self._looks:
            return
        shifts = [self._drifted(sequence_id) for sequence_id in self._looks]
        looks = list(self._looks.values())
        self._looks = {}
        self._last = None
        self._num_steps += 1
        num_seen = np.array([look.num_accepted + look.was_rejected for look in looks])
        num_accepted = np.array([look.num_accepted for look in looks])
        omens = [look.omen for look in looks]
        means, _ = self._cells(omens, int(num_seen.max()))
        odds = _expit(means + np.array([s.mean for s in shifts])[:, None])  # [looks, positions]
        positions = np.arange(odds.shape[1])
        seen = positions < num_seen[:, None]
        holds = positions < num_accepted[:, None]
        surprise = np.where(seen, holds - odds, 0.0)
        evidence = np.where(seen, np.maximum(odds * (1 - odds), LEAST_EVIDENCE), 0.0)
        common = self._learn_shifts(shifts, surprise.sum(axis=1), evidence.sum(axis=1))
        # The levels learn from what the shifts leave unexplained.
        odds = _expit(means + np.array([s.mean + common for s in shifts])[:, None])
        surprise = np.where(seen, holds - odds, 0.0)
        self._score += common * self._evidence
        self._learn_levels(omens, positions, means + common, surprise, evidence)

    def _learn_levels(
        self, omens: Seq[int], positions: Ints, means: Floats, surprise: Floats, evidence: Floats
    ) -> None:
        """All arrays [looks, positions]; the tables [omens, POSITIONS]."""
        rows = np.array([self._rows[omen] for omen in omens])
        cells = (rows[:, None] * POSITIONS + np.minimum(positions, POSITIONS - 1)).ravel()
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

    def _cells(self, omens: Seq[int], num_tokens: int) -> tuple[Floats, Floats]:
        """Means and variances of the levels, [len(omens), num_tokens] each."""
        for omen in omens:
            if omen not in self._rows:
                self._rows[omen] = len(self._rows)
                empty = np.zeros((1, POSITIONS))
                self._evidence = np.concatenate([self._evidence, empty])
                self._score = np.concatenate([self._score, empty])
                self._levels = None
        if self._levels is None:
            self._levels = self._filtered()
        means, variances = self._levels
        rows = np.array([self._rows[omen] for omen in omens])[:, None]
        columns = np.minimum(np.arange(num_tokens), POSITIONS - 1)
        return means[rows, columns], variances[rows, columns]

    def _filtered(self) -> tuple[Floats, Floats]:
        """Every position's level, leaning on the one before it: [omens, POSITIONS]."""
        means, variances = [], []
        for evidence, score in zip(self._evidence.tolist(), self._score.tolist(), strict=True):
            mean, variance = FIRST_LEVEL, FIRST_VARIANCE
            for weight, sum_ in zip(evidence, score, strict=True):
                precision = 1 / variance + weight
                mean = min(max((mean / variance + sum_) / precision, -LIMIT), LIMIT)
                means.append(mean)
                variances.append(1 / precision)
                variance = 1 / precision + NEXT_VARIANCE
        shape = self._evidence.shape
        return np.array(means).reshape(shape), np.array(variances).reshape(shape)


def _expit(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
