"""The fused loss against torch's own, gradient included."""

from __future__ import annotations

import torch
from torch.nn import functional

from specdec.export.training import loss as module
from specdec.export.training.loss import draft_loss, teacher_probs


def test_loss_hits_and_gradient(monkeypatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 5)  # several chunks, the last one short
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(13, 8, generator=generator, requires_grad=True)
    rows = torch.randn(21, 8, generator=generator)
    probs = teacher_probs(torch.randn(13, 8, generator=generator), rows)
    assert torch.allclose(probs.sum(-1), torch.ones(13))
    weight = torch.rand(13, generator=generator) * (torch.arange(13) % 3 > 0)
    likeliest = probs.argmax(-1)
    found = draft_loss(z, rows, probs, likeliest, weight)
    logits = z @ rows.T
    expected = functional.cross_entropy(logits, probs, reduction="none") @ weight
    assert torch.allclose(found.loss, expected, atol=1e-5)
    assert int(found.num_hits) == int(((logits.argmax(-1) == likeliest) & (weight > 0)).sum())
    mine = torch.autograd.grad(3 * found.loss, z)[0]
    assert torch.allclose(mine, torch.autograd.grad(3 * expected, z)[0], atol=1e-5)
