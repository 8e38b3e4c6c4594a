"""What running passes teach about the cost of one batch size: four factors and their doubt.

    seconds = level * plain + slope * more + (row * rows + idle * places) * plain / ROWS

`plain` is what a table says of a pass of one row per sequence, `more` what it adds for `rows`
further ones. A table that is too high or too low moves the level; one that is too steep or too
flat moves the slope; one without any slope is helped by the third factor. `places` are what a
batch leaves empty where one sequence has more rows than the others. Recursive least squares
with a drift (a Kalman filter); the covariance says how far the factors can be trusted, hence
whether it is worth trying something else.

Knows four numbers per pass; knows no decoder and no batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

ROWS = 64.0
FIRST = (1.0, 1.0, 0.0, 0.1)
START = (0.25, 0.25, 2.0, 0.04)  # variances of the factors before anything was seen
DRIFT = 1e-4  # by which every variance grows with each pass: machines warm up, texts grow
NOISE = 0.01  # variance of a pass about what is expected of it, in the beginning
NOISES = (0.0025, 0.09)
NOISE_WEIGHT = 0.03
OUTLIER = 3.0  # standard deviations that one pass counts at most
WIDER = 1.5  # after one that is further off
BOUNDS = ((0.02, 50.0), (0.05, 20.0), (-20.0, 50.0), (0.0, 5.0))
SIZE = len(FIRST)


class Parts(NamedTuple):
    """A pass as the table sees it; any unit of time."""

    plain: float
    more: float
    row: float
    idle: float


def parts(plain: float, more: float, num_more: float, num_idle: float = 0.0) -> Parts:
    return Parts(plain, more, plain * num_more / ROWS, plain * num_idle / ROWS)


@dataclass(slots=True)
class Correction:
    """Of one batch size."""

    factors: list[float] = field(default_factory=lambda: list(FIRST))
    covariance: list[list[float]] = field(
        default_factory=lambda: [[START[i] * (i == j) for j in range(SIZE)] for i in range(SIZE)]
    )
    noise: float = NOISE

    @classmethod
    def like(cls, other: Correction | None) -> Correction:
        """To begin with, where another size's is known: the machine is as much slower or faster
        than the table, the shape is the table's."""
        if other is None:
            return cls()
        level, _, _, idle = other.factors
        return cls([level, level, FIRST[2], idle])

    def apply(self, found: Parts) -> float:
        """Seconds; more rows never cost less."""
        level, slope, row, idle = self.factors
        added = max(0.0, slope * found.more + row * found.row)
        return level * found.plain + added + idle * found.idle

    def learn(self, found: Parts, seconds: float) -> float:
        """Take in one pass; returns seconds / expected, outliers cut off."""
        expected = self.apply(found)
        x = [part / expected for part in found]
        spread = [sum(p * v for p, v in zip(row, x, strict=True)) for row in self.covariance]
        doubt = sum(s * v for s, v in zip(spread, x, strict=True))
        variance = doubt + self.noise
        limit = OUTLIER * math.sqrt(variance)
        error = seconds / expected - 1.0
        is_outlier = abs(error) > limit
        error = min(max(error, -limit), limit)
        for i, (low, high) in enumerate(BOUNDS):
            moved = self.factors[i] + spread[i] / variance * error
            self.factors[i] = min(max(moved, low), high)
        if is_outlier:  # or the factors are wrong: nothing was made surer
            self._widen()
        else:
            self._narrow(spread, variance)
        # What an error says of the noise, given how much of it was to be expected of the factors.
        seen = error * error * self.noise / variance
        self.noise += NOISE_WEIGHT * (seen - self.noise)
        self.noise = min(max(self.noise, NOISES[0]), NOISES[1])
        return 1.0 + error * self.noise / variance

    def _narrow(self, spread: list[float], variance: float) -> None:
        for i in range(SIZE):
            for j in range(SIZE):
                self.covariance[i][j] -= spread[i] * spread[j] / variance
            if self.covariance[i][i] < START[i]:
                self.covariance[i][i] += DRIFT

    def _widen(self) -> None:
        """All of it, so that it stays a covariance."""
        if all(self.covariance[i][i] * WIDER <= START[i] for i in range(SIZE)):
            self.covariance = [[WIDER * value for value in row] for row in self.covariance]
