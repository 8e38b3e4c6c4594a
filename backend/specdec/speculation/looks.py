"""What a proposal turned out to be worth, token by token."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from specdec.types import Proposal


class Look(NamedTuple):
    """One draft token that the text reached, compared with what the target wrote."""

    omen: int
    depth: int
    held: bool


def compare(proposal: Proposal, output_ids: Seq[int]) -> list[Look]:
    """A look at every draft token whose parent holds and whose place the text has reached.

    The target's tokens do not depend on the proposal, so a draft token that was cut off before
    the pass is judged for free as far as the text now reaches.
    """
    looks = []
    token_ids, num_known = proposal.token_ids, len(output_ids)
    omens = proposal.omens or (0,) * len(token_ids)
    reached = {-1: 0}  # a draft token that holds -> depth of its children
    for node, parent in enumerate(proposal.links):
        depth = reached.get(parent, num_known)
        if depth < num_known:
            held = token_ids[node] == output_ids[depth]
            looks.append(Look(omens[node], depth, held))
            if held:
                reached[node] = depth + 1
    return looks
