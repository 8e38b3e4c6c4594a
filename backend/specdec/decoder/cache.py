"""Slots: which sequence stands where in the cache, and what each slot's keys and values are of.

Keys and values at a position are a function of the tokens up to it alone. So a slot's content is
described by `tokens[:length]`, rewinding is lowering `length`, and any slot that starts with the
same tokens, in use or left behind by a closed sequence, can lend them to a new sequence; of the
same salt, for how soon an answer comes would tell a stranger what others have asked.

Attention pays for all S positions of a slot, so S follows the sequences in use. What closed ones
left is put aside when S changes, and is back in the cache when a sequence begins with it:

    in use   A [#######..........]   B closes, S falls   A [#######..]
    in use   B [###############..]                         [.........]   aside: B ###############

Knows nothing of sampling or passes; moves keys and values only through the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.decoder.batch import MAX_SHARED_ROWS
from specdec.decoder.runtimes import Content, Runtime
from specdec.errors import DecoderFailed

Ints = np.ndarray[Any, np.dtype[np.int32]]

_FIRST_LENGTH = 256  # smallest bucket of cache positions
_STRIDE = 64  # every bucket is a multiple: sums over positions then split the same way in all
# Moving one position to another bucket, and one day back, counts as attention over so many
# positions in one pass. Measured with a 135M model: 4 us each way, 20 where it is put aside; 5 us.
_MOVE_COST = 4


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache. Content behind `length` is garbage."""

    index: int
    tokens: Ints  # [max_length]; the first `length` are in the cache, or aside
    length: int = 0
    in_use: bool = False
    last_used: int = 0  # number of the `open` or `close` that last touched it
    salt: int = 0  # only sequences with the same may use the content
    aside: Content | None = None  # where the content is if not in the cache; never while in use

    @property
    def occupied(self) -> int:
        """Positions of its place in the cache that hold content."""
        return self.length if self.aside is None else 0

    def clear(self) -> None:
        self.length, self.aside = 0, None


def common_prefix(left: Ints, right: Ints) -> int:
    """How many tokens both start with."""
    size = min(left.size, right.size)
    differs = left[:size] != right[:size]
    return int(differs.argmax()) if differs.any() else size


def bucket(needed: int) -> int:
    """S for so many positions: the smallest of 256, 384, 512, 640 ... 1024, 1280 ... 2048, 2560 ...

    Beyond 512 less than a fifth of them is empty.
    """
    length = _FIRST_LENGTH
    while length < needed:
        length += max(_FIRST_LENGTH // 2, (1 << (length.bit_length() - 1)) // 4)
    return length


class Cache:
    """The table of slots over a runtime's keys and values."""

    def __init__(self, runtime: Runtime, *, max_length: int) -> None:
        """`max_length`: tokens that a slot can hold."""
        self.slots = [Slot(i, np.zeros(max_length, np.int32)) for i in range(runtime.num_slots)]
        self._runtime = runtime
        # Every sequence of a pass is padded to the longest, so writes reach behind max_length.
        self._longest = -(-(max_length + MAX_SHARED_ROWS) // _STRIDE) * _STRIDE
        self._clock = 0
        self._waste = 0  # positions that attention paid for since so much was last needed
        self._resize(self._bucket(0))

    @property
    def lengths(self) -> list[int]:
        """[num_slots] positions of each slot that passes must leave alone."""
        return [slot.occupied for slot in self.slots]

    def open(self, prompt: Ints, salt: int = 0) -> Slot:
        """Take a slot; its `length` says how many prompt tokens it already holds.

        At most len(prompt) - 1, since the last token must be evaluated to sample after it. The
        longest common prefix over all slots of this salt is reused: in place where a closed
        sequence left nothing else in its slot (or no other slot is free), else copied.

        Raises `DecoderFailed`: every slot is in use.
        """
        free = [slot for slot in self.slots if not slot.in_use]
        if not free:
            raise DecoderFailed(f"all {len(self.slots)} slots are in use: close a sequence first")
        shared, donor = self._donor(prompt[:-1], salt)
        if len(free) == len(self.slots):
            self._fit(shared)
        if shared > self._runtime.length:
            self._resize(self._bucket(shared))
        near = self._nearest(free)
        if shared and donor in near and (donor.length == shared or len(free) == 1):
            slot = donor
        else:
            slot = self._vacate([s for s in free if s is not donor or not shared])
        if shared:
            self._lend(donor, slot, shared)
        slot.tokens[:shared] = prompt[:shared]
        slot.length, slot.in_use, slot.salt, slot.aside = shared, True, salt, None
        self._touch(slot)
        return slot

    def close(self, slot: Slot, committed: int) -> None:
        """Free the slot; its first `committed` tokens stay for reuse until it is needed."""
        slot.length, slot.in_use = min(slot.length, committed), False
        self._touch(slot)

    def make_room(self, first: int, last: int, num_places: int) -> None:
        """Let a pass write `num_places` positions behind every slot of [first, last).

        Sequences in use keep what they have: the cache grows if it must. What closed sequences
        left is cut instead.
        """
        slots = self.slots[first:last]
        needed = num_places + max((s.length for s in slots if s.in_use), default=0)
        if needed > self._runtime.length:
            self._resize(self._bucket(needed))
        else:
            self._note_waste(num_places)
        for slot in slots:
            if slot.aside is None:
                slot.length = min(slot.length, self._runtime.length - num_places)

    def check_integrity(self) -> None:
        """Assert what must hold between calls."""
        length = self._runtime.length
        for i, slot in enumerate(self.slots):
            assert slot.index == i, (slot.index, i)
            assert 0 <= slot.occupied <= length, (i, slot.length, length)
            assert slot.length <= slot.tokens.size, (i, slot.length)
            assert slot.aside is None or (slot.length and not slot.in_use), i
        assert length % _STRIDE == 0, length
        assert len({id(slot.tokens) for slot in self.slots}) == len(self.slots)

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def _donor(self, wanted: Ints, salt: int) -> tuple[int, Slot]:
        """The slot that shares most with `wanted`; of equals, one to take over as it is."""

        def rank(slot: Slot) -> tuple[int, bool, bool]:
            length = slot.length if slot.salt == salt else 0
            shared = common_prefix(wanted, slot.tokens[:length])
            return shared, not slot.in_use, shared == slot.length

        donor = max(self.slots, key=rank)
        return rank(donor)[0], donor

    def _nearest(self, free: Seq[Slot]) -> list[Slot]:
        """Those that widen the range of slots in use least: a pass pays for all of the range."""
        used = [slot.index for slot in self.slots if slot.in_use]
        if not used:
            return list(free)
        first, last = min(used), max(used)
        widening = [max(first - s.index, s.index - last, 0) for s in free]
        return [s for s, w in zip(free, widening, strict=True) if w == min(widening)]

    def _vacate(self, free: Seq[Slot]) -> Slot:
        """A near slot without content. Of all contents in `free` the one not used longest goes."""

        def worth(slot: Slot) -> tuple[bool, int, int]:
            return slot.length > 0, slot.last_used if slot.length else 0, slot.index

        slot, victim = min(self._nearest(free), key=worth), min(free, key=worth)
        if slot is not victim and slot.length:
            if slot.aside is None:
                self._runtime.copy(slot.index, victim.index, slot.length)
            victim.tokens[: slot.length] = slot.tokens[: slot.length]
            victim.length, victim.last_used = slot.length, slot.last_used
            victim.salt, victim.aside = slot.salt, slot.aside
        slot.clear()
        return slot

    def _lend(self, donor: Slot, slot: Slot, shared: int) -> None:
        """Bring the donor's first `shared` positions to the slot's place, which may be its own."""
        if donor.aside is not None:
            self._runtime.write(slot.index, donor.aside, shared)
        elif slot is not donor:
            self._runtime.copy(donor.index, slot.index, shared)
        if not donor.in_use and donor.length == shared:
            donor.clear()  # the slot holds all of it

    def _bucket(self, needed: int) -> int:
        assert needed <= self._longest, (needed, self._longest)
        return min(bucket(needed), self._longest)

    def _best_length(self, more: int) -> int:
        """S for the sequences in use, of which each may soon be longer by `more`."""
        longest = max((slot.length for slot in self.slots if slot.in_use), default=0)
        return self._bucket(min(longest + more + MAX_SHARED_ROWS, self._longest))

    def _note_waste(self, more: int) -> None:
        """Let S fall once the larger one has cost what falling does: then it was never twice as
        dear as knowing what comes."""
        surplus = self._runtime.length - self._best_length(more)
        used = [slot.length for slot in self.slots if slot.in_use]
        self._waste = self._waste + surplus * len(used) if surplus > 0 else 0
        if self._waste > _MOVE_COST * sum(used):
            self._fit(more)

    def _fit(self, more: int) -> None:
        """Let S fall to what the sequences in use need. Where a graph's is fixed nothing is won."""
        length = self._best_length(more)
        if length < self._runtime.length and self._runtime.max_length is None:
            self._resize(length)

    def _resize(self, length: int) -> None:
        if self._runtime.max_length is None:
            for slot in self.slots:
                if slot.occupied and not slot.in_use:
                    slot.aside = self._runtime.read(slot.index, slot.length)
        self._runtime.resize(length, self.lengths)
        self._waste = 0
