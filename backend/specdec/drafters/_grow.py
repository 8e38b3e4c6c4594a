"""Grows a draft tree by its likeliest branches, from whatever knows continuations.

Best first, as EAGLE-2 (arXiv 2406.16858, section 4) expands and reranks: a branch is worth the
product of the odds along its path, and the worthiest branch not yet in the tree is next. Since a
path's odds only fall, the result is the best connected tree of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from specdec.drafters.base import Odds
from specdec.types import Proposal

MAX_DEPTH = 16
ELSEWHERE = -2


class Branch(NamedTuple):
    """One way the text may go on."""

    before: int  # the token it follows
    token_id: int
    omen: int
    place: int = -1  # where in the text it was copied from; -1: it was not
    node: int = ELSEWHERE  # which draft token of a head's tree it is; -1: the end of the text


class Tree(NamedTuple):
    """A proposal, and what it was chosen by."""

    proposal: Proposal
    odds: tuple[float, ...]  # P(it and all it follows hold) of each draft token

    @property
    def trunk_odds(self) -> list[float]:
        """See `Proposal.trunk`."""
        return [self.odds[node] for node in self.proposal.trunk]


def grow(
    root: Branch,
    follow: Callable[[Branch], Iterable[Branch]],
    odds: Odds,
    *,
    max_tokens: int,
    least: float,
) -> Tree:
    """The best tree of at most `max_tokens`, the likeliest first.

    Args:
        root: the end of the text.
        follow: distinct continuations of a branch.
        least: a branch whose path is less likely is left out.
    """
    token_ids: list[int] = []
    omens: list[int] = []
    parents: list[int] = []
    paths: list[float] = []
    # (-odds of the path, number of the entry, parent, depth, branch): the number breaks ties.
    heap: list[tuple[float, int, int, int, Branch]] = []
    num_entries = 0

    def push(branch: Branch, path_odds: float, parent: int, depth: int) -> None:
        nonlocal num_entries
        for child in follow(branch):
            child_odds = path_odds * odds(child.omen, depth)
            if child_odds >= least:
                num_entries += 1
                heappush(heap, (-child_odds, num_entries, parent, depth, child))

    push(root, 1.0, -1, 0)
    while heap and len(token_ids) < max_tokens:
        negative, _, parent, depth, branch = heappop(heap)
        token_ids.append(branch.token_id)
        omens.append(branch.omen)
        parents.append(parent)
        paths.append(-negative)
        if depth + 1 < MAX_DEPTH and len(token_ids) < max_tokens:
            push(branch, -negative, len(token_ids) - 1, depth + 1)
    return Tree(Proposal(tuple(token_ids), tuple(omens), tuple(parents)), tuple(paths))
