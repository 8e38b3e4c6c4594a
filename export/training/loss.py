"""Cross-entropy of a draft against the target's distribution, a few rows at a time.

Logits of a whole batch would be hundreds of megabytes that are written and read several times;
those of a few hundred rows stay in the cache. Both distributions are over the same ids, `rows`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

_CHUNK = 256  # rows whose logits exist at once


class Scores(NamedTuple):
    """Of one step of a draft."""

    loss: Tensor  # weighted sum of cross-entropies in nats, with a gradient
    num_hits: Tensor  # rows of some weight where the draft's likeliest id is the target's


def teacher_probs(hidden: Tensor, rows: Tensor) -> Tensor:
    """The target's distribution over `rows` alone, renormalised.

    Args:
        hidden: [Q, H] what its LM head reads.
        rows: [V', H] of that head, in the type to compute in.

    Returns:
        [Q, V'] in the type of `rows`.
    """
    probs = hidden.new_empty(len(hidden), len(rows), dtype=rows.dtype)
    for part, out in zip(hidden.split(_CHUNK), probs.split(_CHUNK), strict=True):
        torch.softmax(part.to(rows.dtype) @ rows.T, -1, out=out)
    return probs


def draft_loss(
    z: Tensor, rows: Tensor, target_probs: Tensor, likeliest: Tensor, weight: Tensor
) -> Scores:
    """Weighted sum of CE(target || draft) over rows.

    Args:
        z: [Q, H] of the draft.
        rows: [V', H] frozen rows of the LM head.
        target_probs: [Q, V'].
        likeliest: int64 [Q] index in `rows` of the target's likeliest id.
        weight: float32 [Q] of each row; 0: not counted.
    """
    loss, num_hits = _CrossEntropy.apply(z, rows, target_probs, likeliest, weight)
    return Scores(loss, num_hits)


class _CrossEntropy(torch.autograd.Function):
    """Both passes at once: of softmax and cross-entropy the gradient is probs - target."""

    @staticmethod
    def forward(  # noqa: PLR0917 - torch passes them by position
        ctx: Any, z: Tensor, rows: Tensor, target_probs: Tensor, likeliest: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(z)
        loss = z.new_zeros((), dtype=torch.float32)
        num_hits = loss.clone()
        chunks = (t.split(_CHUNK) for t in (z, target_probs, likeliest, weight, gradient))
        for part, half_target, wanted, share, out in zip(*chunks, strict=True):
            logits = (part.to(rows.dtype) @ rows.T).float()
            probs = logits.softmax(-1)
            best_prob, best = probs.max(-1)
            log_total = logits.gather(1, best[:, None])[:, 0] - best_prob.log()
            target = half_target.float()
            loss += (log_total - torch.linalg.vecdot(target, logits)) @ share
            num_hits += ((best == wanted) & (share > 0)).sum()
            error = probs.sub_(target).to(rows.dtype)
            torch.mul(error @ rows, share[:, None], out=out)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(num_hits)
        return loss, num_hits

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None, None
