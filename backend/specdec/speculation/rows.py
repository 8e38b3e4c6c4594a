"""Which draft tokens are worth their rows: one choice over the whole batch.

A draft token is worth its survival probability in tokens; its row is worth the time it adds to
the pass. With the price of time (tokens per second this batch makes anyway) both are tokens:

    worth of the best c rows = sum of their survivals - price * (seconds with c rows - with none)

The best c rows are the c likeliest ones of the batch, and a draft token is never likelier than
the one before it, so whatever is taken is a beginning of every proposal.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np

from specdec.speculation.costs import Floats
from specdec.types import Proposal

Bools = np.ndarray[Any, np.dtype[np.bool_]]
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

    def gains(self, seconds: Floats, price: float) -> Floats:
        """[offers] tokens gained over none by the likeliest 1, 2, ... offers.

        Args:
            seconds: [more than offers] of the pass with 0, 1, ... of them.
            price: tokens per second.
        """
        added = seconds[1 : len(self.odds) + 1] - seconds[0]
        found: Floats = self.odds.cumsum() - price * added
        return found

    def within(self, seconds: Floats, price: float, idle: float) -> tuple[int, Floats]:
        """The best number of tokens that any one sequence may have, and the `gains` within it.

        Where one has more than the others, the pass has empty places for those.

        Args:
            idle: seconds of an empty place.
        """
        limits = np.arange(1, self.num_positions + 1)
        allowed = self._places % self.num_positions < limits[:, None]  # [limits, offers]
        num_rows = allowed.cumsum(axis=1)
        empty = self.num_sequences * limits[:, None] - num_rows
        spent = seconds[num_rows] - seconds[0] + idle * empty
        gains = (self.odds * allowed).cumsum(axis=1) - price * spent
        best = int(gains.max(axis=1).argmax())
        found: Floats = gains[best, allowed[best]]
        return best + 1, found

    def choose(self, seconds: Floats, price: float) -> int:
        """How many offers pay, likeliest first."""
        return most(self.gains(seconds, price))

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


def most(gains: Floats) -> int:
    """How many offers to take, by what 1, 2, ... of them gain: none, if nothing is gained."""
    if not len(gains):
        return 0
    best = int(gains.argmax())
    return best + 1 if gains[best] > 0.0 else 0


def on_trunk(proposals: Seq[Proposal], num_tokens: int) -> Bools:
    """[sequences, num_tokens], see `Proposal.trunk`. Only these draft tokens give output in their
    own step; a branch gives the next step sure draft tokens."""
    found = np.ones((len(proposals), num_tokens), np.bool_)
    for row, proposal in zip(found, proposals, strict=True):
        if proposal.parents:
            row[: len(proposal.parents)] = False
            row[proposal.trunk] = True
    return found


def worth_of(survival: Floats, trunk: Bools, toll: float) -> Floats:
    """What draft tokens are worth: [sequences, positions], never rising.

    Args:
        toll: tokens that a row costs; a branch that holds has to pay a second one, when the next
            step proposes it again.
    """
    if trunk.all():
        return survival
    found: Floats = np.where(trunk, survival, survival * (1 - min(toll, 1.0)))
    return np.minimum.accumulate(found, axis=1)
