"""Which draft tokens are worth their rows: one choice over the whole batch.

A draft token is worth its survival probability in tokens; its row is worth the time it adds to
the pass. With the price of time (tokens per second this batch makes anyway) both are tokens:

    worth of the best c rows = sum of their survivals - price * (seconds with c rows - with none)

The best c rows are the c likeliest ones of the batch, and a draft token is never likelier than
the one before it, so whatever is taken is a beginning of every proposal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from specdec.speculation.costs import Floats

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Plans(NamedTuple):
    """The best choice for every draft length from 1 on; one draft pass per position."""

    offers: Offers
    worth: Floats  # [lengths] tokens gained over taking none, after paying for the rows
    sizes: Ints  # [lengths, positions] sequences that take part in each draft pass

    def lengths(self, longest: int) -> Ints:
        """[sequences] draft tokens of each, at most `longest`."""
        return self.offers.lengths(int(self.sizes[longest - 1].sum()), longest)


class Offers:
    """All draft tokens on offer, likeliest first."""

    def __init__(self, survival: Floats, limits: Ints) -> None:
        """survival [sequences, positions]; limits [sequences]: tokens there are, or are allowed."""
        self.num_sequences, self.num_positions = survival.shape
        there = np.arange(self.num_positions) < limits[:, None]
        places = np.flatnonzero(there)
        odds = survival.ravel()[places]
        order = np.argsort(-odds, kind="stable")  # equal ones: the earlier position first
        self.odds: Floats = odds[order]
        self._places: Ints = places[order]

    def choose(self, seconds: Floats, price: float) -> int:
        """How many offers pay, likeliest first.

        Args:
            seconds: [more than offers] of the pass with 0, 1, ... of them.
            price: tokens per second.
        """
        if not len(self.odds):
            return 0
        gains = self.odds.cumsum() - price * (seconds[1 : len(self.odds) + 1] - seconds[0])
        best = int(gains.argmax())
        return best + 1 if gains[best] > 0.0 else 0

    def lengths(self, num_taken: int, longest: int | None = None) -> Ints:
        """[sequences] draft tokens of each among the likeliest `num_taken`, of those that stand
        at one of the first `longest` positions."""
        places = self._places
        if longest is not None:
            places = places[places % self.num_positions < longest]
        sequences = places[:num_taken] // self.num_positions
        return np.bincount(sequences, minlength=self.num_sequences)

    def plans(self, seconds: Floats, price: float) -> Plans:
        """`choose` among the first 1, 2, ... positions of every sequence, all at once."""
        lengths = np.arange(1, self.num_positions + 1)
        if not len(self.odds):
            none = np.zeros((len(lengths), len(lengths)), np.int64)
            return Plans(self, np.zeros(len(lengths)), none)
        positions = self._places % self.num_positions
        allowed = positions < lengths[:, None]  # [lengths, offers]
        num_rows = allowed.cumsum(axis=1)
        gains = (self.odds * allowed).cumsum(axis=1) - price * (seconds[num_rows] - seconds[0])
        best = gains.argmax(axis=1)
        worth = gains[np.arange(len(lengths)), best]
        taken = allowed & (np.arange(len(self.odds)) <= best[:, None]) & (worth > 0.0)[:, None]
        at = positions[:, None] == np.arange(self.num_positions)  # [offers, positions]
        sizes = (taken.astype(np.float64) @ at).astype(np.int64)
        return Plans(self, np.maximum(worth, 0.0), sizes)
