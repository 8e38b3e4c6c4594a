"""How likely draft tokens are to be accepted: learned from what the target wrote.

Conditional acceptance by position, a_j = P(draft j holds | drafts before it hold), kept per
drafter for the server and per sequence on top of it; a sequence starts from the server's history.
Proposals of one drafter differ (a long n-gram match is a better omen than a short one), so every
count is kept by the proposal's `omen`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

POSITIONS = 6  # later positions share the last count
FIRST_GUESS = 0.6  # before anything was seen: optimistic, so that it is tried
GUESS_WEIGHT = 2.0  # observations the first guess is worth
HISTORY_WEIGHT = 6.0  # observations the server's history is worth to a new sequence
SERVER_MEMORY = 0.998  # what a count keeps at each further observation
SEQUENCE_MEMORY = 0.96

Key = tuple[int, int]  # (omen, position)


@dataclass(slots=True)
class Count:
    """Decayed tallies of one question: was the draft token right?"""

    accepted: float = 0.0
    tried: float = 0.0

    def add(self, accepted: bool, memory: float) -> None:
        self.accepted = self.accepted * memory + accepted
        self.tried = self.tried * memory + 1.0

    def rate(self, prior: float, weight: float) -> float:
        return (self.accepted + prior * weight) / (self.tried + weight)


@dataclass(slots=True)
class History:
    """Counts by omen and position."""

    memory: float
    counts: dict[Key, Count] = field(default_factory=dict)

    def rate(self, omen: int, position: int, prior: float, weight: float) -> float:
        count = self.counts.get((omen, min(position, POSITIONS - 1)))
        return count.rate(prior, weight) if count else prior

    def add(self, omen: int, position: int, accepted: bool) -> None:
        key = (omen, min(position, POSITIONS - 1))
        self.counts.setdefault(key, Count()).add(accepted, self.memory)


class Outlook:
    """One drafter's record on this server, and on each open sequence."""

    def __init__(self) -> None:
        self._server = History(SERVER_MEMORY)
        self._sequences: dict[int, History] = {}

    def survival(self, sequence_id: int, omen: int, num_tokens: int) -> list[float]:
        """P(drafts 0..j all hold) for j < num_tokens: falling, each in (0, 1)."""
        own = self._sequences.get(sequence_id)
        survival, all_hold, rate = [], 1.0, FIRST_GUESS
        for position in range(num_tokens):
            # A place that was never reached is expected to be like the one before it.
            rate = self._server.rate(omen, position, rate, GUESS_WEIGHT)
            if own is not None:
                rate = own.rate(omen, position, rate, HISTORY_WEIGHT)
            all_hold *= rate
            survival.append(all_hold)
        return survival

    def observe(
        self, sequence_id: int, omen: int, draft_ids: Seq[int], output_ids: Seq[int]
    ) -> None:
        """Compare a proposal with what the target wrote, whether or not it was verified.

        The target's tokens do not depend on the proposal, so a draft token that was cut off
        before the pass is judged for free as far as the text now reaches.
        """
        own = self._sequences.setdefault(sequence_id, History(SEQUENCE_MEMORY))
        pairs = zip(draft_ids, output_ids, strict=False)
        for position, (draft_id, output_id) in enumerate(pairs):
            accepted = draft_id == output_id
            self._server.add(omen, position, accepted)
            own.add(omen, position, accepted)
            if not accepted:
                break

    def end(self, sequence_id: int) -> None:
        self._sequences.pop(sequence_id, None)
