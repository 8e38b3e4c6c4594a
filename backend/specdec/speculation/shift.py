"""How predictable one text is, against the server's average: one number that follows it."""

from __future__ import annotations

import math

from specdec.speculation.levels import LIMIT

RECENT = 0.9  # of the recent surprise stays each step
ALARM = 10.0  # squared standard deviations of recent surprise: the text has turned
TURN_VARIANCE = 1.5  # of its shift from then on
LEAST_ODDS = 1e-4  # of a look, and of its failing: counts behind certainty would be infinite


class Shift:
    """One sequence's log-odds against the server's average."""

    __slots__ = ("mean", "noise", "stamp", "surprise", "variance")

    def __init__(self, variance: float, stamp: int) -> None:
        self.mean = 0.0
        self.variance = variance
        self.stamp = stamp  # the step of its last look
        self.surprise = self.noise = 0.0  # of the last steps, and the variance it should have

    def learn(self, held: float, expected: float, number: float) -> None:
        """One step's looks; what was known counts for little once the text has turned.

        An estimate of log-odds stands for two counts, of what held and what failed: ln(h / f) has
        the variance 1/h + 1/f. What is seen is added to those (the conjugate prior of a rate). A
        Newton step would take each further failure of what hardly ever holds for less and less
        news: after n of them it finds odds of 1/sqrt(n), counts find 1/n.

        Args:
            held, expected, number: looks that held, that were to hold, all; they count as if all
                had had the same odds.
        """
        odds = min(max(expected / number, LEAST_ODDS), 1 - LEAST_ODDS)
        self.surprise = RECENT * self.surprise + held - expected
        self.noise = RECENT**2 * self.noise + number * odds * (1 - odds)
        if self.surprise**2 > ALARM * self.noise:
            self.variance = max(self.variance, TURN_VARIANCE)
        num_held = 1 / (self.variance * (1 - odds)) + held
        num_failed = 1 / (self.variance * odds) + number - held
        self.variance = 1 / num_held + 1 / num_failed
        moved = math.log(num_held / num_failed) - math.log(odds / (1 - odds))
        self.mean = min(max(self.mean + moved, -LIMIT), LIMIT)
