"""What every decoder over a cache has: open sequences, each in a slot of its own."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Generic, Protocol, TypeVar

from specdec.decoder.cache import Cache, Slot
from specdec.errors import DecoderFailed
from specdec.types import DecoderInfo, PassCost

Measure = Callable[[], tuple[PassCost, ...]]


class HasSlot(Protocol):
    """One open sequence."""

    slot: Slot


class Call(Protocol):
    """What a decoder is to do for one of them."""

    @property
    def sequence_id(self) -> int: ...

    @property
    def start(self) -> int: ...  # rows of it that stay; what lies behind is written anew


S = TypeVar("S", bound=HasSlot)


class Cached(Generic[S]):
    """Sequences by id; what is closed leaves its rows to those that begin alike."""

    def __init__(self, cache: Cache, info: DecoderInfo, measure: Measure | None) -> None:
        """`info`: without costs; `measure` finds them, and may overwrite the cache's contents."""
        self.info = info
        self._cache = cache
        self._measure = measure
        self._sequences: dict[int, S] = {}

    def describe(self) -> DecoderInfo:
        """See `Decoder`. Costs are measured by the first call, if no sequence was opened before
        it, and not at load: models load side by side, and each would measure the others."""
        measure, self._measure = self._measure, None
        if measure is not None:
            self.info = self.info._replace(costs=measure())
        return self.info

    def reset(self) -> None:
        """See `Decoder`. What the cache holds stays for prefix reuse."""
        self.close([(i, sequence.slot.length) for i, sequence in self._sequences.items()])

    def close(self, sequences: Seq[tuple[int, int]]) -> None:
        """See `Decoder`."""
        for sequence_id, committed in sequences:
            sequence = self._sequences.pop(sequence_id, None)
            if sequence is not None:
                self._cache.close(sequence.slot, max(committed, 0))

    def _called(self, calls: Seq[Call]) -> list[S]:
        """The sequences of `calls`, in their order.

        Raises `DecoderFailed`: one is named twice, is not open, or has fewer rows than `start`.
        """
        if len({call.sequence_id for call in calls}) != len(calls):
            raise DecoderFailed("a sequence is named twice in one call")
        called = []
        for call in calls:
            sequence = self._sequences.get(call.sequence_id)
            if sequence is None:
                raise DecoderFailed(f"sequence {call.sequence_id} is not open")
            if not 0 <= call.start <= sequence.slot.length:
                raise DecoderFailed(
                    f"sequence {call.sequence_id}: start {call.start}, the cache holds "
                    f"{sequence.slot.length} rows"
                )
            called.append(sequence)
        return called

    def _refuse_open(self, sequence_id: int) -> None:
        if sequence_id in self._sequences:
            raise DecoderFailed(f"sequence {sequence_id} is open already: close it first")

    def _add(self, sequence_id: int, sequence: S) -> None:
        """Open from now on; its rows must not be overwritten."""
        self._measure = None
        self._sequences[sequence_id] = sequence
