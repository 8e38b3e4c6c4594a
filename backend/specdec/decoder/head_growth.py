"""A draft tree while an EAGLE head grows it. Pure: no model, no cache.

As EAGLE-2 (arXiv 2406.16858, section 4) expands and reranks: a token is worth the product of the
probabilities along its path, the worthiest tokens are gone on from, a few per pass, and what is
proposed are the worthiest of all that were ever made. Values only fall along a path, so that is a
tree. A token that is not among the worthiest now will never be: others only push it down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

from specdec.types import HeadCall, HeadDraft

ROOT = -1


class Growth:
    """One sequence's tree."""

    def __init__(self, call: HeadCall) -> None:
        self._max_tokens, self._width = call.max_tokens, call.width
        self._max_depth = call.max_depth
        self._least = math.log(call.least) if call.least > 0 else -math.inf
        self._token_ids: list[int] = []
        self._parents: list[int] = []
        self._logprobs: list[float] = []
        self._values: list[float] = []  # sums of log-probabilities along the path
        self._depths: list[int] = []
        self._is_open: list[bool] = []  # nothing was added behind it yet
        self._passes_left = call.max_depth - 1

    def add(self, parent: int, token_ids: Seq[int], logprobs: Seq[float]) -> None:
        """Tokens that may follow `parent`, the likeliest first, with their log-probabilities given
        it; those beyond the width are ignored."""
        value = 0.0 if parent == ROOT else self._values[parent]
        depth = 0 if parent == ROOT else self._depths[parent] + 1
        for token_id, logprob in zip(token_ids[: self._width], logprobs, strict=False):
            worth = value + min(logprob, 0.0)  # rounding must not make a child worthier
            if worth < self._least:
                continue
            self._token_ids.append(token_id)
            self._parents.append(parent)
            self._logprobs.append(logprob)
            self._values.append(worth)
            self._depths.append(depth)
            self._is_open.append(depth + 1 < self._max_depth)

    def next(self) -> list[int]:
        """Tokens to go on from in the next pass, by number; none: the tree is done."""
        if self._passes_left == 0:
            return []
        self._passes_left -= 1
        chosen = [i for i in self._best() if self._is_open[i]][: self._width]
        for i in chosen:
            self._is_open[i] = False
        return chosen

    def token_id(self, number: int) -> int:
        return self._token_ids[number]

    def parent(self, number: int) -> int:
        return self._parents[number]

    def draft(self) -> HeadDraft:
        """The worthiest tokens."""
        best = self._best()
        places = {number: place for place, number in enumerate(best)}
        places[ROOT] = -1
        return HeadDraft(
            tuple(self._token_ids[i] for i in best),
            tuple(places[self._parents[i]] for i in best),
            tuple(self._logprobs[i] for i in best),
        )

    def _best(self) -> list[int]:
        """Of equals the shallower, then the one that was made first."""
        order = sorted(
            range(len(self._values)), key=lambda i: (-self._values[i], self._depths[i], i)
        )
        return order[: self._max_tokens]
