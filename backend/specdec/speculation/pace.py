"""When one batch size's drafters are asked again, and what may be spent on learning what it costs.

Asking takes time, of the drafter and of the controller, also where nothing comes of it. While that
is more than the proposals were worth lately, only every fourth step asks, and in the long run every
ninth. Whether rows are as dear as they seem is found out by a few steps of another kind, paid from
an account that a small share of the decoding time fills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal

Reason = Literal["cap", "none", "acceptance", "cost", "load"]

POOR_ODDS = 0.3  # a draft token less likely than this was cut for its odds, not for its price
REST = 3  # steps without asking, while asking does not pay; more where it takes longer
MAX_REST = 32
VAIN_LOOKS = 4  # in a row make a step of rest, where that is more,
PATIENCE = 8  # up to so many: the longer nothing comes of asking the rarer it gets
EAGER_LOOKS = 64
WEIGHT = 0.2  # of one look in what looks are worth
START = 1.0  # plain steps' time that may be spent on trials in the beginning
SHARE = 0.006  # of decoding time may go into them, and into asking in vain
LIMIT = 1.0  # and may be saved up


@dataclass(slots=True)
class Pace:
    """Of one batch size."""

    worth: float = field(default=-1.0)  # tokens a look brought lately, net of rows; -1: no look yet
    rest: int = 0  # steps until the next look
    credit: float = START  # in steps without drafts
    reason: Reason = "none"  # why the last look brought nothing
    num_looks: int = 0
    num_vain: int = 0  # looks in a row that brought less than they cost

    def is_due(self) -> bool:
        """A step goes by; are drafters to be asked in it?"""
        self.credit = min(self.credit + SHARE, LIMIT)
        if self.rest:
            self.rest -= 1
            return False
        self.num_looks += 1
        return True

    def looked(
        self, worth: float, cost: float, *, share: float, reasons: Seq[Reason | None]
    ) -> None:
        """Drafters were asked.

        Args:
            worth: tokens gained by that.
            cost: the same of the time it took.
            share: of a plain step that it took.
            reasons: why each sequence took no more.
        """
        self.num_vain = 0 if worth > cost else self.num_vain + 1
        self.worth = worth if self.worth < 0 else self.worth + WEIGHT * (worth - self.worth)
        if self.worth <= cost:
            patient = min(max(self.num_vain // VAIN_LOOKS, REST), PATIENCE)
            self.rest = int(min(max(patient, share / SHARE), MAX_REST))
            found = Counter(r for r in reasons if r and r != "cap")
            self.reason = found.most_common(1)[0][0] if found else "cost"

    def skipped(self, reason: Reason) -> None:
        """Drafters were not asked, for nothing they propose could pay."""
        self.rest, self.reason = REST, reason

    @property
    def may_try(self) -> bool:
        """Every fourth look that the account allows; later fewer."""
        interval = 4 if self.num_looks < EAGER_LOOKS else 16
        return self.num_looks % interval == 1 and self.credit > 0.0

    def pays(self, loss: float) -> bool:
        """Spend so much on a trial, if there is as much."""
        if loss > self.credit:
            return False
        self.credit -= max(loss, 0.0)
        return True


def reason_for(odds: float, alone: float | None) -> Reason:
    """Why a draft token of these odds is not taken.

    Args:
        alone: what its row would cost a lone request, in tokens; None if this is one.
    """
    if alone is not None and odds > alone:
        return "load"
    return "acceptance" if odds < POOR_ODDS else "cost"
