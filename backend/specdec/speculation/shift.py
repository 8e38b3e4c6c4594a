"""How predictable one text is, against the server's average: one number that follows it."""

from __future__ import annotations

RECENT = 0.8  # of the recent surprise stays each step
ALARM = 12.0  # squared standard deviations of recent surprise: the text has turned
TURN_VARIANCE = 1.5  # of its shift from then on
LIMIT = 5.0  # log-odds stay within: 0.7 % to 99.3 %


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
