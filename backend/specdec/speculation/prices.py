"""The price of time: what a step of any batch size takes, and the tokens that time makes.

Knows costs and gains by batch size; knows no sequence and no drafter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec.speculation.costs import CostModel, Floats, MovingMean, bucket, nearest
from specdec.speculation.planner import Step
from specdec.types import Speedup

DOUBT = 1.0  # standard deviations by which costs may be other than they seem


@dataclass(slots=True)
class Gain:
    """Expected tokens per second against plain decoding, over the last steps."""

    tokens: float = 0.0  # in steps without drafts
    seconds: float = 0.0  # in the same
    weight: float = 1.0

    @property
    def value(self) -> float:
        return max(1.0, self.tokens / self.seconds) if self.seconds else 1.0

    def observe(self, tokens: float, seconds: float) -> None:
        self.tokens += self.weight * (tokens - self.tokens)
        self.seconds += self.weight * (seconds - self.seconds)
        self.weight = max(self.weight / (1 + self.weight), 0.03)


@dataclass(slots=True)
class Prices:
    """By batch size; one not seen yet is like the nearest one that was."""

    target: CostModel
    overheads: dict[int, MovingMean] = field(default_factory=dict)  # orchestration, by bucket
    asking: dict[int, MovingMean] = field(default_factory=dict)  # seconds per sequence, by bucket
    gains: dict[int, Gain] = field(default_factory=dict)  # by bucket

    def per_second(self, num_sequences: int) -> float:
        """Tokens that a batch of this size makes anyway."""
        return self.gain(num_sequences) * num_sequences / self.plain_seconds(num_sequences)

    def gain(self, num_sequences: int) -> float:
        """That against the same at K = 0, 1 or more."""
        gain = nearest(self.gains, num_sequences)
        return gain.value if gain else 1.0

    def plain_seconds(self, num_sequences: int) -> float:
        """What one step without drafts takes, by the present costs."""
        return self.target.predict(num_sequences, num_sequences) + self.overhead(num_sequences)

    def overhead(self, num_sequences: int) -> float:
        """Of a step outside the models, asking drafters apart."""
        mean = nearest(self.overheads, num_sequences)
        return mean.value if mean else 0.0

    def asking_seconds(self, num_sequences: int) -> float:
        """Of the drafters' own code and the decision on what they propose."""
        mean = nearest(self.asking, num_sequences)
        return mean.value * num_sequences if mean else 0.0

    def step(self, num_sequences: int, num_rows: int, num_offers: int) -> Step:
        """Of at least so many rows, with up to so many draft tokens more."""
        seconds = self.target.predict_from(num_sequences, num_rows, num_offers)
        plain = self.plain_seconds(num_sequences)
        price = self.gain(num_sequences) * num_sequences / plain
        return Step(num_sequences, price, plain, seconds)

    def doubt(self, step: Step, num_rows: int) -> Floats:
        """Tokens by which 1, 2, ... draft tokens behind `num_rows` may gain more, or less."""
        size = step.num_sequences
        shares = self.target.doubt(size, num_rows, len(step.seconds) - 1)[1:]
        return DOUBT * step.price * self.target.predict(size, size) * shares

    def alone(self, num_drafted: int) -> float:
        """Tokens that one more draft token would cost a lone request that has so many."""
        added = self.target.predict(1, num_drafted + 2) - self.target.predict(1, num_drafted + 1)
        return self.per_second(1) * added

    def observe_step(self, num_sequences: int, *, asking: float, overhead: float) -> None:
        """Seconds of one decode-only step outside the models: asking drafters, and all else."""
        self.overheads.setdefault(bucket(num_sequences), MovingMean()).observe(overhead)
        if asking:
            mean = self.asking.setdefault(bucket(num_sequences), MovingMean())
            mean.observe(asking / num_sequences)

    def expect(self, num_sequences: int, tokens: float, seconds: float) -> Speedup:
        """A decode-only step is to bring so many tokens in so many seconds of models and
        drafters; returns what one sequence is to gain by it."""
        plain = self.plain_seconds(num_sequences)
        each = Speedup(tokens / num_sequences * plain, seconds + self.overhead(num_sequences))
        gain = self.gains.setdefault(bucket(num_sequences), Gain())
        gain.observe(each.plain_seconds / plain, each.seconds / plain)
        return each
