"""The server's own record of one drafter's draft tokens: log-odds by omen and depth.

Knows no sequences; see outlook.py for what they add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from specdec.speculation.costs import Floats

Ints = np.ndarray[Any, np.dtype[np.int64]]

POSITIONS = 8  # greater depths share the last level
FIRST_ODDS, FIRST_VARIANCE = 0.5, 4.0  # before anything was seen: half of them, or any rate
KNOWN_VARIANCE = 1.0  # where a drafter brings first odds: a few looks outweigh them
NEXT_VARIANCE = 0.1  # of a depth's level about the one before it
MEMORY = 0.998  # what a level keeps of its evidence at each further observation
AGING = 0.9995  # and at each step without one
LEAST_EVIDENCE = 0.005  # of one token, however sure it was
LIMIT = 5.0  # log-odds stay within: 0.7 % to 99.3 %
MAX_STEP = 2.0  # log-odds one look may move a level


class Levels:
    """A table of them, [omens, POSITIONS], that grows with the omens; a cell is its place in the
    flat table."""

    def __init__(self, first_odds: Mapping[int, float]) -> None:
        """`first_odds`: by omen, before anything was seen; else a half."""
        self.starts: dict[int, int] = {}  # omen -> its first cell
        self._first_odds = first_odds
        self._evidence = np.zeros((0, POSITIONS))  # Fisher information
        self._score = np.zeros((0, POSITIONS))  # evidence times the level it speaks for
        self._filtered: tuple[Floats, Floats] | None = None  # means, variances; None when stale
        for omen in first_odds:
            self.start(omen)

    def start(self, omen: int) -> int:
        """The omen's first cell; a new one makes the tables longer."""
        if omen not in self.starts:
            self.starts[omen] = len(self.starts) * POSITIONS
            empty = np.zeros((1, POSITIONS))
            self._evidence = np.concatenate([self._evidence, empty])
            self._score = np.concatenate([self._score, empty])
            self._filtered = None
        return self.starts[omen]

    def cells(self) -> tuple[Floats, Floats]:
        """Means and variances of all levels, [cells]."""
        if self._filtered is None:
            self._filtered = self._filter()
        return self._filtered

    def move(self, by: float) -> None:
        """All that was seen speaks for other levels now."""
        self._score += by * self._evidence
        self._filtered = None

    def seen(self) -> dict[tuple[int, int], float]:
        """Conditional acceptance by (omen, depth), where there is any evidence."""
        odds, evidence = expit(self.cells()[0]).tolist(), self._evidence.ravel().tolist()
        return {
            (omen, depth): odds[start + depth]
            for omen, start in self.starts.items()
            for depth in range(POSITIONS)
            if evidence[start + depth] > 0
        }

    def learn(self, cells: Ints, means: Floats, held: Floats, odds: Floats) -> None:
        """All arrays [looks]; the tables [omens, POSITIONS].

        A run of failures moves a level less than it should (see `Shift.learn`), and that is as
        well: a kind of draft token that is thought to be poor is offered no more, and could not
        show that it was only unlucky.
        """
        shape, size = self._evidence.shape, self._evidence.size

        def total(values: Floats | None) -> Floats:
            summed: Any = np.bincount(cells, values, size).reshape(shape)
            return cast(Floats, summed)

        evidence = np.maximum(odds * (1 - odds), LEAST_EVIDENCE)
        kept = AGING * MEMORY ** total(None)
        self._evidence *= kept
        self._score *= kept
        new = total(evidence)
        limit = MAX_STEP * (self._evidence + new + 1 / FIRST_VARIANCE)
        self._score += total(evidence * means) + np.clip(total(held - odds), -limit, limit)
        self._evidence += new
        self._filtered = None

    def _filter(self) -> tuple[Floats, Floats]:
        """Every depth's level, leaning on the one before it."""
        first = np.array([self._first_odds.get(omen, FIRST_ODDS) for omen in self.starts])
        is_known = np.array([omen in self._first_odds for omen in self.starts])
        mean = np.log(first / (1 - first))
        precision = 1 / np.where(is_known, KNOWN_VARIANCE, FIRST_VARIANCE)
        means, variances = np.empty((2, POSITIONS, len(first)))
        for depth in range(POSITIONS):
            known = precision + self._evidence[:, depth]
            mean = (mean * precision + self._score[:, depth]) / known
            mean = np.minimum(np.maximum(mean, -LIMIT), LIMIT)
            means[depth], variances[depth] = mean, 1 / known
            precision = 1 / (variances[depth] + NEXT_VARIANCE)
        return means.T.ravel(), variances.T.ravel()


def expit(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
