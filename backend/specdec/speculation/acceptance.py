"""The acceptance rule: sample first, then compare.

The target draws its own token at every row of the verify pass; a draft token is kept while it
equals that draw. Whatever was proposed, the output is the target's own samples: exact for greedy
and for any sampling transform. Each draft token x is kept with probability target_probs(x), the
one-hot case of Leviathan et al. 2022 (arXiv 2211.17192), section 2.3.
"""

from __future__ import annotations

from collections.abc import Sequence


def accept_chain(draft_ids: Sequence[int], sampled_ids: Sequence[int]) -> int:
    """Length of the longest prefix of `draft_ids` that the target drew itself.

    Args:
        draft_ids: [num_draft_tokens], what was proposed after the last committed token.
        sampled_ids: [num_draft_tokens + 1], the target's draw after each row of
            [last committed token, *draft_ids]; draw j is only meaningful if drafts 0..j-1 hold.

    Returns:
        num_accepted, so that sampled_ids[: num_accepted + 1] are the tokens to emit: the accepted
        ones, then the recovered token (at the first mismatch) or the bonus token (all matched).

            draft_ids      7  3  9
            sampled_ids    7  3  4  1     -> 2 accepted, emit 7 3 4 (4 is recovered)
    """
    assert len(sampled_ids) == len(draft_ids) + 1, (len(sampled_ids), len(draft_ids))
    num_accepted = 0
    for draft_id, sampled_id in zip(draft_ids, sampled_ids, strict=False):
        if draft_id != sampled_id:
            break
        num_accepted += 1
    return num_accepted
