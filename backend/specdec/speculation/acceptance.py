"""The acceptance rule: sample first, then compare.

The target draws its own token at every row of the verify pass; a draft token is kept while it
equals that draw. Whatever was proposed, the output is the target's own samples: exact for greedy
and for any sampling transform. Each draft token x is kept with probability target_probs(x), the
one-hot case of Leviathan et al. 2022 (arXiv 2211.17192), section 2.3.

A tree is walked from its root to the child that equals the draw (EAGLE-2, arXiv 2406.16858). Only
its trunk lies in the cache as plain decoding would have it, so only draws of trunk rows, which are
plain decoding's to the last bit, become output. What was drawn further along a branch is almost
surely right and is proposed again as the next step's first drafts: no token is lost, none is
emitted that another layout of the cache might have changed.

    trunk     root - a - b - c          drawn: a, x; then y behind x
    branch           a - x - ...        emit a x, carry y: the next pass gets rows x y ...
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from specdec.types import Proposal


class Accepted(NamedTuple):
    """Where the target's draws lead through a proposal."""

    num_accepted: int  # trunk tokens; draws 0..num_accepted are the tokens to emit
    carry: tuple[int, ...]  # drawn on a branch behind those


def lay_out(proposal: Proposal) -> Proposal:
    """The same tree, its trunk first.

    Rows of the trunk lie in the cache one behind the other, as in plain decoding.
    """
    if not proposal.parents:
        return proposal
    trunk = proposal.trunk
    if len(trunk) == len(proposal.parents):
        return proposal._replace(parents=())  # a chain after all
    on_trunk = set(trunk)
    order = [*trunk, *(n for n in range(len(proposal.parents)) if n not in on_trunk)]
    place = {node: i for i, node in enumerate(order)}
    place[-1] = -1
    return Proposal(
        tuple(proposal.token_ids[n] for n in order),
        tuple(proposal.omens[n] for n in order) if proposal.omens else (),
        tuple(place[proposal.parents[n]] for n in order),
    )


def accept(proposal: Proposal, sampled_ids: Seq[int]) -> Accepted:
    """Follow the target's draws.

    Args:
        proposal: laid out, trunk first.
        sampled_ids: [num_draft_tokens + 1], the target's draw after the last committed token and
            after each draft token; it means something, and may be there, only where its row's
            path holds.

    Returns:
        num_accepted, so that sampled_ids[: num_accepted + 1] are the tokens to emit: the accepted
        ones, then the recovered token (at the first mismatch) or the bonus token (all matched).

            token_ids      7  3  9
            sampled_ids    7  3  4  1     -> 2 accepted, emit 7 3 4 (4 is recovered)
    """
    draft_ids = proposal.token_ids
    assert len(sampled_ids) == len(draft_ids) + 1, (len(sampled_ids), len(draft_ids))
    children: dict[tuple[int, int], int] = {}
    for node, link in enumerate(zip(proposal.links, draft_ids, strict=True)):
        children.setdefault(link, node)
    num_accepted, node = 0, -1
    carry: list[int] = []
    while (child := children.get((node, sampled_ids[node + 1]), -1)) >= 0:
        if child == num_accepted and not carry:
            num_accepted += 1
        else:
            carry.append(sampled_ids[child + 1])
        node = child
    return Accepted(num_accepted, tuple(carry))
