"""What the target found likeliest after which tokens, over all requests: a fixed-size table.

The adjacency matrix of Token Recycling (Luo et al. 2024, arXiv 2408.08696), keyed by the last two
tokens where they were seen together and by the last one elsewhere: replayed on 80 greedy answers
of a 135M chat model beside prompt lookup, 2.16 tokens per target pass against 2.04 by one token.
What is learned under one salt (of less than 62 bits) is not found under another.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

WIDTH = 3  # continuations kept: a fourth is right once in 50 times
SIZE = 1 << 18  # entries; 5 MB. A newer entry takes the place of an older one it falls on.
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_ABSENT = -1


class Memory:
    """The most recent continuations of pairs of tokens, and of single ones."""

    def __init__(self, size: int = SIZE) -> None:
        assert size & (size - 1) == 0, size
        self._shift = 65 - size.bit_length()
        # Read one number at a time: a recall takes 1.7 us, and 2.6 from NumPy arrays.
        self._keys = array("q", [_ABSENT]) * size
        self._next = array("i", [_ABSENT]) * (size * WIDTH)

    def learn(self, before: int, last: int, candidate_ids: Seq[int], salt: int = 0) -> None:
        """`candidate_ids` are likeliest after `before last`, in falling order.

        `before` is -1 where there is none.
        """
        row = array("i", candidate_ids[:WIDTH])
        row.extend([_ABSENT] * (WIDTH - len(row)))
        for key in {_key(before, last) ^ salt, _key(_ABSENT, last) ^ salt}:
            place = self._place(key)
            self._keys[place] = key
            self._next[place * WIDTH : (place + 1) * WIDTH] = row

    def recall(self, before: int, last: int, salt: int = 0) -> tuple[bool, list[int]]:
        """Whether the pair is known, and what follows it, or else the last token; likeliest
        first."""
        single = _key(_ABSENT, last) ^ salt
        for key in (_key(before, last) ^ salt, single):
            place = self._place(key)
            if self._keys[place] == key:
                row = self._next[place * WIDTH : (place + 1) * WIDTH].tolist()
                return key != single, row if row[-1] != _ABSENT else [t for t in row if t >= 0]
        return False, []

    def _place(self, key: int) -> int:
        """Fibonacci hashing: the upper bits of the key times the golden ratio."""
        return (key * _GOLDEN & _WORD) >> self._shift


def _key(before: int, last: int) -> int:
    return (before + 1) << 31 | last
