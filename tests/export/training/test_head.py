"""The unrolled head against one that drafts token by token, the slow and obvious way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specdec.export.training import batches
from specdec.export.training.evaluation import evaluate
from specdec.export.training.head import Head, Inputs
from specdec.export.training.norms import RMSNorm
from specdec.export.training.target import Target


def slow_draft(
    head: Head, target: Target, features: Tensor, next_ids: list[int], drafted: list[int]
) -> Tensor:
    """z [H] after a draft of some tokens: one causal pass over rows that grow by one each step.

    Args:
        features: [n, layers * H] of rows 0 ... n - 1.
        next_ids: [n] the token each of them reads.
        drafted: tokens the later rows read, beside the head's own hidden states.
    """
    rows, ids = head.fuse(features), list(next_ids)
    hidden = run_block(head, target, rows, ids)[-1:]
    for token in drafted:
        rows, ids = torch.cat([rows, hidden]), [*ids, token]
        hidden = run_block(head, target, rows, ids)[-1:]
    return head.projection(head.norm(hidden))[0]


def run_block(head: Head, target: Target, rows: Tensor, ids: list[int]) -> Tensor:
    """One block over one text, with torch's attention: [n, H] -> [n, H]."""
    (block,) = head.layers
    shape, n = head.shape, len(rows)
    y = torch.cat([target.unit_embedding[ids], block.hidden_norm(rows)], -1)

    def heads(name: str, count: int) -> Tensor:
        return block.self_attn[name](y).view(n, count, shape.head_size).transpose(0, 1)

    def turn(x: Tensor) -> Tensor:
        cos, sin = (torch.cat([t[:n], t[:n]], -1) for t in (target.cos, target.sin))
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin

    attended = functional.scaled_dot_product_attention(
        turn(heads("q_proj", shape.num_heads)),
        turn(heads("k_proj", shape.num_key_value_heads)),
        heads("v_proj", shape.num_key_value_heads),
        is_causal=True,
        enable_gqa=True,
    )
    rows = rows + block.self_attn["o_proj"](attended.transpose(0, 1).reshape(n, -1))
    y = block.post_attention_layernorm(rows)
    gate = functional.silu(block.mlp["gate_proj"](y)) * block.mlp["up_proj"](y)
    return rows + block.mlp["down_proj"](gate)


def test_unrolling_is_drafting_token_by_token(toy: Any) -> None:
    head, texts = toy.head(), toy.corpus.texts[:3]
    batch = batches.build(texts, num_steps=3)
    inputs = Inputs.of(
        batch,
        config=head.config,
        corpus_layers=toy.corpus.feature_layers,
        hidden_size=toy.target.hidden_size,
        device=torch.device("cpu"),
    )
    with torch.inference_mode():
        unrolled = list(head.unroll(inputs, toy.target, 3))
        for q in (0, 5, len(batch) - 1):
            text = texts[batch.text_of_scored[q]]
            i = int(batch.positions[batch.scored[q]])
            ids = text.token_ids.tolist()
            for step in range(3):
                if not batch.valid[step, q]:
                    continue
                expected = slow_draft(
                    head,
                    toy.target,
                    torch.from_numpy(text.features[: i + 1]),
                    ids[1 : i + 2],
                    ids[i + 2 : i + 2 + step],
                )
                assert torch.allclose(unrolled[step][q], expected, atol=2e-4)


def test_acceptance_is_that_of_drafts_made_one_by_one(toy: Any) -> None:
    """Along a text as a server would go: draft, keep what repeats the text, one more, again."""
    head, corpus = toy.head(seed=3), toy.corpus.select(lambda t: t is toy.corpus.texts[0])
    (text,) = corpus.texts
    for parameter in head.parameters():  # a head that is sometimes right
        parameter.requires_grad_(False)
    found = evaluate(head, toy.target, toy.vocabulary, corpus, num_steps=3).total()
    ids, row = text.token_ids.tolist(), text.num_prompt_tokens - 1
    features = torch.from_numpy(text.features)
    num_passes = 0
    while row < len(ids) - 2:
        drafted: list[int] = []
        for _ in range(3):
            z = slow_draft(head, toy.target, features[: row + 1], ids[1 : row + 2], drafted)
            drafted.append(int((toy.target.head @ z).argmax()))
        kept = 0
        while kept < 3 and ids[row + 2 + kept : row + 3 + kept] == drafted[kept : kept + 1]:
            kept += 1
        num_passes, row = num_passes + 1, row + kept + 1
    assert (found.num_passes, found.num_tokens) == (num_passes, len(text.likeliest) - 1)


def test_norm_and_its_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 16, generator=generator, dtype=torch.float32, requires_grad=True)
    norm, grad = RMSNorm(16, 1e-5), torch.randn(7, 16, generator=generator)
    norm.weight.data.normal_(generator=generator)
    mine = torch.autograd.grad(norm(x), (x, norm.weight), grad)
    theirs = torch.autograd.grad(
        functional.rms_norm(x, (16,), norm.weight, 1e-5), (x, norm.weight), grad
    )
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
