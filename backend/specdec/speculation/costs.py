"""What a pass costs: a small model measured at load and corrected while running.

    seconds(n, rows) = scale(n) * (curve(rows) + per_sequence * (n - 1)),   n sequences

The curve is flat while reading the weights dominates and rises once arithmetic does (the roofline
of algorithms for batched verification); `per_sequence` is the attention of one more sequence.
`scale` follows what is observed, per batch size: longer texts, a busier or a cooler machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from specdec.types import PassCost

WEIGHT = 0.05  # of one observation in a moving mean
OUTLIER = 4.0  # one observation counts as at most this many times the expectation

# Stands in where a decoder reports no costs: rows are cheap, so drafting always looks good.
NOMINAL = (PassCost(1, 1, 1.0), PassCost(1, 64, 1.6))


def bucket(num_sequences: int) -> int:
    """Batch sizes that share a correction: 1, 2, 3-4, 5-8, 9-16, ..."""
    return (num_sequences - 1).bit_length()


@dataclass(slots=True)
class CostModel:
    """Expected seconds of one decoder's passes."""

    rows: list[int]  # knots of the curve, ascending
    seconds: list[float]  # at the knots, never falling
    per_sequence: float
    scale: dict[int, float] = field(default_factory=dict)  # by bucket; 1.0 where unseen

    @classmethod
    def fit(cls, points: Seq[PassCost]) -> CostModel:
        """From passes of one sequence (the curve) and of several (its slope)."""
        points = points or NOMINAL
        alone = sorted((p.num_rows, p.seconds) for p in points if p.num_sequences == 1)
        assert alone, "a cost model needs passes of one sequence"
        rows = [num_rows for num_rows, _ in alone]
        seconds = [max(s for _, s in alone[: i + 1]) for i in range(len(alone))]
        model = cls(rows, seconds, 0.0)
        more = [p for p in points if p.num_sequences > 1]
        if more:
            excess = sum(
                (p.seconds - model.curve(p.num_rows)) * (p.num_sequences - 1) for p in more
            )
            model.per_sequence = max(0.0, excess / sum((p.num_sequences - 1) ** 2 for p in more))
        return model

    def curve(self, num_rows: int) -> float:
        """Interpolated between knots; beyond the last one the last slope goes on."""
        rows, seconds = self.rows, self.seconds
        if len(rows) == 1 or num_rows <= rows[0]:
            return seconds[0]
        i = min(bisect_left(rows, num_rows), len(rows) - 1)
        slope = (seconds[i] - seconds[i - 1]) / (rows[i] - rows[i - 1])
        return seconds[i] + slope * (num_rows - rows[i])

    def predict(self, num_sequences: int, num_rows: int) -> float:
        if not num_sequences:
            return 0.0
        base = self.curve(num_rows) + self.per_sequence * (num_sequences - 1)
        return base * self.scale.get(bucket(num_sequences), 1.0)

    def observe(self, num_sequences: int, num_rows: int, seconds: float) -> None:
        """Correct the batch size's scale by one measured pass."""
        expected = self.predict(num_sequences, num_rows)
        if expected <= 0.0 or seconds <= 0.0:
            return
        ratio = min(max(seconds / expected, 1 / OUTLIER), OUTLIER)
        key = bucket(num_sequences)
        self.scale[key] = self.scale.get(key, 1.0) * (1 + WEIGHT * (ratio - 1))


@dataclass(slots=True)
class MovingMean:
    value: float = 0.0
    is_set: bool = False

    def observe(self, value: float) -> None:
        self.value = self.value + WEIGHT * (value - self.value) if self.is_set else value
        self.is_set = True
