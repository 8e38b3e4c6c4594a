"""How sure a model was of a draft token, in a few steps: what its omens are made of."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import exp

EDGES = (0.05, 0.12, 0.25, 0.4, 0.6, 0.8, 0.93)  # between buckets of probabilities
BUCKET_ODDS = tuple((a + b) / 2 for a, b in pairwise((0.0, *EDGES, 1.0)))  # if it is right


def bucket_of(logprob: float) -> int:
    """What a model's own probability of a draft token counts as: 0 ... len(EDGES)."""
    return bisect_right(EDGES, exp(logprob))
