"""When to ask a drafter that does not seem to pay: texts change, and only asking shows it.

Asking is paid from an account that a small share of the decoding time fills, so it can never
cost more than that share, whatever the texts are like.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

SHARE = 0.010  # of decoding time may go into asking
START = 1.0  # plain steps' time that may be spent in the beginning
LIMIT = 1.5  # and that may be saved up
PATIENCE = 16  # steps between two tries where nothing speaks for success
CROWD = 8  # sequences asked at most in one try
OPTIMISM = 1.0  # standard deviations: what could pay if it were that much better is worth asking
CERTAINTY = 10.0  # as good as every token


@dataclass(slots=True)
class Curiosity:
    """One drafter's account."""

    credit: float = START  # in steps without drafts
    num_idle: int = 0  # steps since it was last asked
    is_hopeful: bool = False  # its last proposal was right

    def wait(self, *, is_asked: bool) -> None:
        """A step goes by, with or without a draft call that is hoped to pay."""
        self.credit = min(self.credit + SHARE, LIMIT)
        self.num_idle = 0 if is_asked else self.num_idle + 1

    def pick(
        self,
        arrears: Seq[int],
        *,
        price: Callable[[int, int], float],
        is_worth_it: Callable[[float], bool],
    ) -> int:
        """How many sequences to ask for one token, of those with the smallest arrears.

        Args:
            arrears: rows the draft model must catch up on per sequence, ascending.
            price: of a call by (sequences, rows), in steps without drafts.
            is_worth_it: would drafting pay if all rates were that many standard deviations better?
        """
        num_asked, paid = self._affordable(arrears, price)
        if not num_asked or not is_worth_it(self._optimism()):
            return 0
        self.credit -= paid
        self.num_idle, self.is_hopeful = 0, False
        return num_asked

    def _optimism(self) -> float:
        is_due = self.is_hopeful or self.num_idle >= PATIENCE
        return CERTAINTY if is_due else OPTIMISM

    def _affordable(
        self, arrears: Seq[int], price: Callable[[int, int], float]
    ) -> tuple[int, float]:
        """Sequences that the credit pays for, and their price."""
        num_asked, num_rows, paid = 0, 0, 0.0
        for num_sequences, more in enumerate(arrears[:CROWD], start=1):
            num_rows += more
            cost = price(num_sequences, num_rows)
            if cost > self.credit:
                break
            num_asked, paid = num_sequences, cost
        return num_asked, paid
