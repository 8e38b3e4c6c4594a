"""How far a training is, and what follows from that: learning rate and steps of a draft."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything is a function of progress, 0 at the start and 1 at the end.

    A budget in steps makes a training repeatable to the bit. A budget in minutes of training
    makes it end in time on a machine that others share; then the learning rate follows the clock.
    """

    num_steps: int | None = None  # batches; exactly one of the two is given
    minutes: float | None = None
    learning_rate: float = 5e-4
    final_share: float = 0.05  # of the learning rate, at the end
    warmup: float = 0.02  # of the progress
    # (from this progress on, steps of a draft that are unrolled), rising
    unrolled: tuple[tuple[float, int], ...] = ((0.0, 1), (0.45, 3))

    def __post_init__(self) -> None:
        if (self.num_steps is None) == (self.minutes is None):
            raise ValueError("a schedule needs a number of steps or of minutes, and not both")

    def progress(self, step: int, seconds: float) -> float:
        """Of a training that has made `step` steps in `seconds`."""
        if self.num_steps is not None:
            return min(step / self.num_steps, 1.0)
        assert self.minutes is not None
        return min(seconds / (60 * self.minutes), 1.0) if self.minutes else 1.0

    def rate(self, progress: float) -> float:
        """Learning rate: a linear rise, then half a cosine."""
        if progress < self.warmup:
            return self.learning_rate * (progress + 1e-4) / self.warmup
        done = (progress - self.warmup) / (1 - self.warmup)
        share = self.final_share + (1 - self.final_share) * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * share

    def steps_unrolled(self, progress: float) -> int:
        """Of a draft, at this progress."""
        return [num for begin, num in self.unrolled if progress >= begin][-1]
