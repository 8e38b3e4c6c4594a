"""Who takes part in the next step: a bounded waiting line, a running table, a prefill budget.

Policy only: it calls no model and sends nothing. Not thread-safe; the engine holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq

from specdec.config import SpeculativeConfig
from specdec.errors import Overloaded
from specdec.speculation.sequence import Sequence
from specdec.speculation.verifier import Work


class Scheduler:
    """First come, first served; decoding sequences always take part, prompts share a budget."""

    def __init__(self, config: SpeculativeConfig, max_running: int) -> None:
        self._config = config
        self.max_running = min(config.max_running, max_running)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequences: Seq[Sequence]) -> None:
        """Queue all or none. Raises `Overloaded` when they do not fit the waiting line."""
        free = self.max_running - len(self.running) + self._config.max_waiting
        found = len(self.waiting)
        if found + len(sequences) > free:
            raise Overloaded(
                f"the server is full: {len(self.running)} running, {found} waiting, "
                f"at most {self._config.max_waiting} may wait; try again later"
            )
        self.waiting.extend(sequences)

    def next_waiting(self) -> Sequence | None:
        """Move one sequence to running if there is room; the engine then opens its slot."""
        if not self.waiting or len(self.running) >= self.max_running:
            return None
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        self.running.remove(sequence)

    def drop_unwanted(self) -> list[Sequence]:
        """Take sequences that nobody waits for any more out of the waiting line."""
        gone = [s for s in self.waiting if s.is_unwanted]
        for sequence in gone:
            self.waiting.remove(sequence)
        return gone

    def decoding(self) -> list[Sequence]:
        return [s for s in self.running if s.is_decoding]

    def chunks(self, *, is_busy: bool) -> list[Work]:
        """Prompt chunks of the next pass; fewer tokens while others decode (`is_busy`).

        A long prompt advances by a bounded chunk per step, so it never makes the others wait for
        all of it.
        """
        config = self._config
        budget = config.prefill_chunk_tokens if is_busy else config.idle_prefill_chunk_tokens
        chunks = []
        for sequence in self.running:
            if sequence.is_decoding or budget <= 0:
                continue
            chunk = sequence.pending[:budget]
            budget -= len(chunk)
            done = sequence.num_cached + len(chunk) == len(sequence.token_ids)
            chunks.append(Work(sequence, chunk, samples=done))
        return chunks
