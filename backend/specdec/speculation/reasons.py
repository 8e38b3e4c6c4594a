"""Why a sequence gets no more draft tokens in a step: what requests, metrics and users are told."""

from __future__ import annotations

from collections.abc import Iterable

from specdec.speculation.pace import Reason, reason_for
from specdec.speculation.planner import Candidate
from specdec.speculation.prices import Prices
from specdec.types import Proposal

FULL_ODDS = 0.15  # while so little is asked of them, drafters offer all they have


class Reasons:
    """Of one step after another."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._size = 1
        self._withheld: dict[int, Reason] = {}  # sequence -> why its drafter was not asked
        self._alone: dict[int, float] = {}  # tokens that a lone request's rows would cost

    def begin(self, num_sequences: int) -> None:
        """A step of so many."""
        self._size = num_sequences
        self._withheld, self._alone = {}, {}

    def withhold(self, sequence_ids: Iterable[int], reason: Reason) -> None:
        """These sequences' drafters, or their models, are not asked."""
        self._withheld.update(dict.fromkeys(sequence_ids, reason))

    def of(
        self, candidate: Candidate, proposal: Proposal, kept: int, *, odds: float, least: float
    ) -> Reason | None:
        """Why no more than `kept` draft tokens; None where none are wanted.

        Args:
            odds: of the first that is not kept.
            least: what drafters were told that a draft token must promise.
        """
        if not candidate.limit:
            return None
        if not proposal.token_ids:
            if candidate.sequence_id in self._withheld:
                return self._withheld[candidate.sequence_id]
            # It may have had something less likely than it was asked for.
            return "none" if least <= FULL_ODDS else self.why(least, 0)
        if kept == len(proposal.token_ids):
            return "cap"
        return self.why(odds, kept)

    def why(self, odds: float, num_drafted: int) -> Reason:
        """Why a draft token of these odds is not taken behind so many others."""
        if self._size == 1:
            return reason_for(odds, None)
        if num_drafted not in self._alone:
            self._alone[num_drafted] = self._prices.alone(num_drafted)
        return reason_for(odds, self._alone[num_drafted])
