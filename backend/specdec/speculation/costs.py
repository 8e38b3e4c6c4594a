"""What a pass costs: a small table measured at load and corrected while running.

    table(n, rows) = curve(rows) + per_sequence * (n - 1),   n sequences

The curve is flat while reading the weights dominates and rises once arithmetic does (the roofline
of batched verification); `per_sequence` is the attention of one more sequence. What is observed
corrects the level and the slope of that batch size (longer texts, a busier or a cooler machine, a
table measured at a bad moment) and, more slowly, the curve itself around that many rows. A batch
size that was not seen yet is corrected as the nearest one that was.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from specdec.speculation.correction import BOUNDS, ROWS, Correction, Parts, parts
from specdec.types import PassCost

Floats = np.ndarray[Any, np.dtype[np.float64]]

V = TypeVar("V")

WEIGHT = 0.05  # of one observation in a moving mean
MISFIT = 0.2  # of what rows add: the curve may have another shape
SHAPE_WEIGHT = 0.1  # of one observation in the curve: most surprises concern every number of rows
MAX_GAP = 1.2  # knots stand at most this factor apart, so that a correction stays local

# Stands in where a decoder reports no costs: rows are cheap, so drafting always looks good.
NOMINAL = (PassCost(1, 1, 1.0), PassCost(1, 64, 1.6))


def bucket(num_sequences: int) -> int:
    """Batch sizes that share a correction: 1, 2, 3-4, 5-8, 9-16, ..."""
    return (num_sequences - 1).bit_length()


def nearest(seen: Mapping[int, V], num_sequences: int) -> V | None:
    """What is known of that batch size, else of the nearest one; None where nothing is."""
    key = bucket(num_sequences)
    if key in seen or not seen:
        return seen.get(key)
    return seen[min(seen, key=lambda other: (abs(other - key), other))]


@dataclass(slots=True)
class CostModel:
    """Expected seconds of one decoder's passes."""

    rows: list[float]  # knots, ascending
    seconds: list[float]  # at the knots, of one sequence with that many rows; never falling
    per_sequence: float
    corrections: dict[int, Correction] = field(default_factory=dict)  # by bucket
    _knots: Floats | None = None  # rows and seconds; None when stale

    @classmethod
    def fit(cls, points: Seq[PassCost]) -> CostModel:
        """From passes of one sequence (the curve) and of several (its slope, and larger rows)."""
        points = points or NOMINAL
        alone = [(p.num_rows, p.seconds) for p in points if p.num_sequences == 1]
        assert alone, "a cost model needs passes of one sequence"
        model = cls(*_monotone(alone), 0.0)
        last = model.rows[-1]
        near = [p for p in points if p.num_sequences > 1 and p.num_rows <= last]
        if near:
            excess = sum(
                (p.seconds - model.curve(p.num_rows)) * (p.num_sequences - 1) for p in near
            )
            model.per_sequence = max(0.0, excess / sum((p.num_sequences - 1) ** 2 for p in near))
        far = [
            (p.num_rows, p.seconds - model.per_sequence * (p.num_sequences - 1))
            for p in points
            if p.num_rows > last
        ]
        model._knots = None
        model.rows, model.seconds = _dense(*_monotone([*alone, *far]))
        return model

    def curve(self, num_rows: float) -> float:
        """Interpolated between knots; beyond the last one the last slope goes on."""
        rows, seconds = self.rows, self.seconds
        if len(rows) == 1 or num_rows <= rows[0]:
            return seconds[0]
        i = min(bisect_left(rows, num_rows), len(rows) - 1)
        slope = (seconds[i] - seconds[i - 1]) / (rows[i] - rows[i - 1])
        return seconds[i] + slope * (num_rows - rows[i])

    def _curve(self, num_rows: Floats) -> Floats:
        """`curve` of ascending numbers of rows."""
        if self._knots is None:
            self._knots = np.array([self.rows, self.seconds])
        found: Floats = np.interp(num_rows, *self._knots)
        last = self.rows[-1]
        if num_rows[-1] > last:
            slope = self.curve(last + 1) - self.seconds[-1]
            found += np.maximum(num_rows - last, 0.0) * slope
        return found

    def predict(self, num_sequences: int, num_rows: int) -> float:
        """Seconds of one pass; 0 of none."""
        if not num_sequences:
            return 0.0
        return self._correction(num_sequences).apply(self._parts(num_sequences, num_rows))

    def idle_seconds(self, num_sequences: int) -> float:
        """Of a place that is empty because another sequence has more rows."""
        found = self._correction(num_sequences)
        return found.factors[-1] * self._parts(num_sequences, num_sequences).plain / ROWS

    def predict_from(self, num_sequences: int, num_rows: int, num_more: int) -> Floats:
        """Seconds as rows are added, [num_more + 1]: of num_rows, num_rows + 1, ... rows."""
        plain, more, row = self._added(num_sequences, num_rows, num_more)
        level, slope, each, _ = self._correction(num_sequences).factors
        added: Floats = np.maximum.accumulate(np.maximum(slope * more + each * row, 0.0))
        return level * plain + added

    def doubt(self, num_sequences: int, num_rows: int, num_more: int) -> Floats:
        """Standard deviation of what adding rows costs, as a share of a plain pass: [num_more + 1]
        of 0, 1, ... more than `num_rows`."""
        found = self._correction(num_sequences)
        plain, more, row = self._added(num_sequences, num_rows, num_more)
        level, slope, each, _ = found.factors
        more, row = more - more[0], row - row[0]
        whole = level * plain
        # The share is (slope * more + each * row) / (level * plain): its gradient by the factors.
        gradient = np.stack(
            [-(slope * more + each * row) / (level * whole), more / whole, row / whole]
        )
        variance = np.einsum("ic,ij,jc->c", gradient, np.array(found.covariance)[:3, :3], gradient)
        variance += (MISFIT / whole * (slope * more + each * row)) ** 2
        found_sd: Floats = np.sqrt(np.maximum(variance, 0.0))
        return found_sd

    def single_rows(self, max_sequences: int) -> Floats:
        """Seconds of passes with one row per sequence: of 0, 1, ... `max_sequences` of them."""
        sizes = np.arange(max_sequences + 1, dtype=np.float64)
        seconds = self._curve(sizes) + self.per_sequence * (sizes - 1)
        for key in range(bucket(max(max_sequences, 1)) + 1):
            level = self._correction(1 << key).factors[0]
            seconds[1 + (1 << key >> 1) : 1 + (1 << key)] *= level
        seconds[0] = 0.0
        return seconds

    def observe(
        self, num_sequences: int, num_rows: int, seconds: float, *, num_idle: int = 0
    ) -> None:
        """Correct the batch size, and the curve at that many rows, by one pass.

        Args:
            num_idle: places left empty, see `idle_seconds`.
        """
        if seconds <= 0.0 or not num_sequences:
            return
        found = self._parts(num_sequences, num_rows, num_idle)
        ratio = self._learn(num_sequences, found, seconds)
        self._bend(num_rows, 1 + SHAPE_WEIGHT * (ratio - 1))

    def fit_batch(self, points: Seq[PassCost]) -> None:
        """Correct one batch size so that it goes through these passes of it."""
        before = Correction()
        target = np.array([p.seconds for p in points])
        found = np.array([self._parts(p.num_sequences, p.num_rows) for p in points])
        found, missing = found / target[:, None], 1 - found @ before.factors / target
        ridge = 1e-6 * np.eye(len(before.factors))
        change = np.linalg.solve(found.T @ found + ridge, found.T @ missing)
        factors = np.clip(before.factors + change, *np.transpose(BOUNDS)).tolist()
        self.corrections[bucket(points[0].num_sequences)] = Correction(factors)

    def rescale(self, num_sequences: int, ratio: float) -> None:
        """Passes of so many sequences took `ratio` times what was expected."""
        level = self._correction(num_sequences).factors[0]
        self._learn(num_sequences, parts(1.0, 0.0, 0.0), ratio * level)

    def _learn(self, num_sequences: int, found: Parts, seconds: float) -> float:
        key = bucket(num_sequences)
        if key not in self.corrections:
            self.corrections[key] = self._correction(num_sequences)
        return self.corrections[key].learn(found, seconds)

    def _correction(self, num_sequences: int) -> Correction:
        found = self.corrections.get(bucket(num_sequences))
        return found or Correction.like(nearest(self.corrections, num_sequences))

    def _parts(self, num_sequences: int, num_rows: int, num_idle: int = 0) -> Parts:
        plain = self.curve(num_sequences)
        more = self.curve(num_rows) - plain
        each = self.per_sequence * (num_sequences - 1)
        return parts(plain + each, more, num_rows - num_sequences, num_idle)

    def _added(
        self, num_sequences: int, num_rows: int, num_more: int
    ) -> tuple[float, Floats, Floats]:
        """`Parts` as rows are added: of num_rows, num_rows + 1, ... rows."""
        rows = np.arange(num_rows, num_rows + num_more + 1, dtype=np.float64)
        alone = self.curve(num_sequences)
        plain = alone + self.per_sequence * (num_sequences - 1)
        return plain, self._curve(rows) - alone, (plain / ROWS) * (rows - num_sequences)

    def _bend(self, num_rows: int, factor: float) -> None:
        """Multiply the curve at `num_rows`; the knots on either side follow by their nearness."""
        rows, seconds = self.rows, self.seconds
        right = bisect_left(rows, num_rows)
        if right == 0 or right == len(rows):
            return
        self._knots = None
        left = right - 1
        nearness = (num_rows - rows[left]) / (rows[right] - rows[left])
        seconds[left] *= 1 + (factor - 1) * (1 - nearness)
        seconds[right] *= 1 + (factor - 1) * nearness
        # More rows never cost less.
        for i in range(left - 1, -1, -1):
            seconds[i] = min(seconds[i], seconds[i + 1])
        for i in range(right, len(rows)):
            seconds[i] = max(seconds[i], seconds[i - 1])


def _monotone(points: Seq[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """Least-squares never-falling curve through noisy points: neighbours in the wrong order are
    averaged (pool adjacent violators)."""
    pools: list[tuple[float, list[int]]] = []  # (mean seconds, their rows)
    for num_rows, seconds in sorted(points):
        pools.append((seconds, [num_rows]))
        while len(pools) > 1 and (
            pools[-1][0] < pools[-2][0] or pools[-1][1][0] == pools[-2][1][-1]
        ):
            (high, first), (low, second) = pools[-2], pools[-1]
            mean = (high * len(first) + low * len(second)) / (len(first) + len(second))
            pools[-2:] = [(mean, first + second)]
    curve = {float(num_rows): seconds for seconds, rows in pools for num_rows in rows}
    return list(curve), list(curve.values())


def _dense(rows: list[float], seconds: list[float]) -> tuple[list[float], list[float]]:
    """The same curve with more knots.

    Inside a wide gap it follows the lines of both neighbours, as a roofline does that has its
    knee there (the last neighbour is where seconds go with rows): what looks cheaper than it is
    will be tried and corrected, never the reverse.
    """
    knots, values = [rows[0]], [seconds[0]]
    for i in range(1, len(rows)):
        num_steps = math.ceil(math.log(rows[i] / rows[i - 1]) / math.log(MAX_GAP))
        inner = np.geomspace(rows[i - 1], rows[i], num_steps + 1)[1:-1]
        before = _line(rows, seconds, i - 1, inner) if i > 1 else seconds[0]
        behind = inner * (seconds[i] / rows[i])
        if i + 1 < len(rows):
            behind = _line(rows, seconds, i + 1, inner)
        inside = np.minimum(np.maximum(before, behind), _line(rows, seconds, i, inner))
        knots += [*inner.tolist(), rows[i]]
        values += [*np.maximum(inside, seconds[i - 1]).tolist(), seconds[i]]
    return knots, values


def _line(rows: list[float], seconds: list[float], right: int, at: Floats) -> Floats:
    """The line through knots `right - 1` and `right`."""
    slope = (seconds[right] - seconds[right - 1]) / (rows[right] - rows[right - 1])
    return seconds[right] + slope * (at - rows[right])


@dataclass(slots=True)
class MovingMean:
    value: float = 0.0
    is_set: bool = False

    def observe(self, value: float) -> None:
        self.value = self.value + WEIGHT * (value - self.value) if self.is_set else value
        self.is_set = True
