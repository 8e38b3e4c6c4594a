"""What a pass costs: a small model measured at load and corrected while running.

    seconds(n, rows) = scale(n) * (curve(rows) + per_sequence * (n - 1)),   n sequences

The curve is flat while reading the weights dominates and rises once arithmetic does (the roofline
of batched verification); `per_sequence` is the attention of one more sequence. What is observed
moves `scale` of that batch size (longer texts, a busier or a cooler machine) and, more slowly,
the curve itself around that many rows.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdec.types import PassCost

Floats = np.ndarray[Any, np.dtype[np.float64]]

WEIGHT = 0.05  # of one observation in a moving mean
SHAPE_WEIGHT = 0.02  # of one observation in the curve: most surprises concern every number of rows
OUTLIER = 4.0  # one observation counts as at most this many times the expectation
MAX_GAP = 1.2  # knots stand at most this factor apart, so that a correction stays local

# Stands in where a decoder reports no costs: rows are cheap, so drafting always looks good.
NOMINAL = (PassCost(1, 1, 1.0), PassCost(1, 64, 1.6))


def bucket(num_sequences: int) -> int:
    """Batch sizes that share a correction: 1, 2, 3-4, 5-8, 9-16, ..."""
    return (num_sequences - 1).bit_length()


@dataclass(slots=True)
class CostModel:
    """Expected seconds of one decoder's passes."""

    rows: list[float]  # knots, ascending
    seconds: list[float]  # at the knots, of one sequence with that many rows; never falling
    per_sequence: float
    scale: dict[int, float] = field(default_factory=dict)  # by bucket; 1.0 where unseen

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
        found: Floats = np.interp(num_rows, self.rows, self.seconds)
        last = self.rows[-1]
        if num_rows[-1] > last:
            slope = self.curve(last + 1) - self.seconds[-1]
            found += np.maximum(num_rows - last, 0.0) * slope
        return found

    def predict(self, num_sequences: int, num_rows: int) -> float:
        """Seconds of one pass; 0 of none."""
        if not num_sequences:
            return 0.0
        base = self.curve(num_rows) + self.per_sequence * (num_sequences - 1)
        return base * self.scale.get(bucket(num_sequences), 1.0)

    def predict_from(self, num_sequences: int, num_rows: int, num_more: int) -> Floats:
        """Seconds as rows are added, [num_more + 1]: of num_rows, num_rows + 1, ... rows."""
        rows = np.arange(num_rows, num_rows + num_more + 1, dtype=np.float64)
        base = self._curve(rows) + self.per_sequence * (num_sequences - 1)
        return base * self.scale.get(bucket(num_sequences), 1.0)

    def single_rows(self, max_sequences: int) -> Floats:
        """Seconds of passes with one row per sequence: of 0, 1, ... `max_sequences` of them."""
        sizes = np.arange(max_sequences + 1, dtype=np.float64)
        seconds = self._curve(sizes) + self.per_sequence * (sizes - 1)
        for key, scale in self.scale.items():
            seconds[1 + (1 << key >> 1) : 1 + (1 << key)] *= scale
        seconds[0] = 0.0
        return seconds

    def observe(self, num_sequences: int, num_rows: int, seconds: float) -> None:
        """Correct the batch size's scale, and the curve at that many rows, by one pass."""
        expected = self.predict(num_sequences, num_rows)
        if expected <= 0.0 or seconds <= 0.0:
            return
        ratio = min(max(seconds / expected, 1 / OUTLIER), OUTLIER)
        self.rescale(num_sequences, ratio)
        self._bend(num_rows, 1 + SHAPE_WEIGHT * (ratio - 1))

    def rescale(self, num_sequences: int, ratio: float) -> None:
        """Passes of so many sequences took `ratio` times what was expected."""
        ratio = min(max(ratio, 1 / OUTLIER), OUTLIER)
        key = bucket(num_sequences)
        self.scale[key] = self.scale.get(key, 1.0) * (1 + WEIGHT * (ratio - 1))

    def _bend(self, num_rows: int, factor: float) -> None:
        """Multiply the curve at `num_rows`; the knots on either side follow by their nearness."""
        rows, seconds = self.rows, self.seconds
        right = bisect_left(rows, num_rows)
        if right == 0 or right == len(rows):
            return
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
