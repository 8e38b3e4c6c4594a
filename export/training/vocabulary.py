"""Which ids a draft can propose: a static set, joined by the ids of the text at hand.

Rows of the target's LM head are gathered for exactly these ids. A draft that cannot propose an id
only loses acceptance: what is emitted is the target's own sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class DraftVocabulary:
    """A static set of target ids, sorted; draft id i stands for `ids[i]`."""

    def __init__(self, ids: Iterable[int], *, vocab_size: int) -> None:
        """`vocab_size`: rows of the target's LM head. Raises ValueError: an id is outside."""
        self.ids: Ints = np.unique(np.fromiter(ids, np.int64))
        self.vocab_size = vocab_size
        if not self.ids.size or self.ids[0] < 0 or self.ids[-1] >= vocab_size:
            raise ValueError(f"a draft vocabulary of ids outside 0 to {vocab_size - 1}")

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def choose(cls, counts: Ints, *, size: int, always: Iterable[int]) -> DraftVocabulary:
        """The `size` ids most often emitted; ties go to the smaller id.

        Args:
            counts: [vocab_size] how often the target emitted each id.
            always: ids that are in whatever their count (special tokens, ends of text).
        """
        forced = np.unique(np.fromiter(always, np.int64))
        order = np.argsort(-counts, kind="stable")
        order = order[~np.isin(order, forced)]
        chosen = np.concatenate([forced, order[: max(size - len(forced), 0)]])
        return cls(chosen, vocab_size=len(counts))

    @classmethod
    def of_maps(cls, d2t: Ints, t2d: Bools) -> DraftVocabulary:
        """The inverse of `d2t` and `t2d`. Raises ValueError: they contradict each other."""
        found = cls(np.arange(len(d2t)) + d2t, vocab_size=len(t2d))
        if not np.array_equal(np.flatnonzero(t2d), found.ids):
            raise ValueError("d2t and t2d name different ids")
        return found

    @property
    def d2t(self) -> Ints:
        """[size] target id minus draft id, as EAGLE-3 stores it."""
        return self.ids - np.arange(len(self.ids))

    @property
    def t2d(self) -> Bools:
        """[vocab_size] whether a target id is in the static set."""
        mask = np.zeros(self.vocab_size, np.bool_)
        mask[self.ids] = True
        return mask

    def joined(self, token_ids: Ints) -> Ints:
        """The static ids, then those of `token_ids` that are not among them, sorted."""
        return np.concatenate([self.ids, np.setdiff1d(token_ids, self.ids)])


def positions_in(row_ids: Ints, vocab_size: int) -> Ints:
    """[vocab_size] where each id stands in `row_ids`, -1 where it does not."""
    places = np.full(vocab_size, -1, np.int64)
    places[row_ids] = np.arange(len(row_ids))
    return places
