"""Where a head starts: at random, or as the target's own last layer.

The projection starts as the identity and the last norm as the target's final one, so that the
head's hidden states mean from the first step what the target's LM head understands.
"""

from __future__ import annotations

from enum import Enum
from math import sqrt

import torch
from torch import Tensor, nn

from specdec.export.training.block import Block
from specdec.export.training.head import Head
from specdec.export.training.target import Target
from specdec.export.weights import Weights


class Start(str, Enum):
    """How a head's block starts."""

    random = "random"
    last_layer = "last-layer"


_TOKEN_SCALE = 0.3  # of the token's half of q, k and v, where the other half is the target's


def initialise(
    head: Head, target: Target, weights: Weights, features: Tensor, start: Start, *, seed: int
) -> None:
    """Set every parameter; the same seed gives the same head.

    Args:
        features: [N, layers * H] a sample, for `feature_scale`.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=1 / sqrt(module.in_features), generator=generator)
        for block in head.layers:  # residual branches start small
            assert isinstance(block, Block)
            for linear in (block.self_attn["o_proj"], block.mlp["down_proj"]):
                linear.weight.mul_(0.5)
        head.feature_scale.copy_(even_scale(head, features))
        nn.init.eye_(head.projection.weight)
        head.norm.weight.copy_(target.norm)
        if start is Start.last_layer:
            _copy_last_layer(head, target, weights)


def even_scale(head: Head, features: Tensor) -> Tensor:
    """[layers * H] what brings every column to a mean square of 1.

    Residual streams have a few columns a hundred times larger than the rest, which would have a
    hundred times the say in every step of the optimiser.
    """
    square = head.normalise(features).square().mean(0)
    return square.clamp(min=1e-4).rsqrt()


def _copy_last_layer(head: Head, target: Target, weights: Weights) -> None:
    """The last block becomes the target's last layer, which reads the latest feature before it."""
    number = target.num_layers - 1
    prefix = f"model.layers.{number}"
    block = head.layers[-1]
    assert isinstance(block, Block)
    for name, parameter in block.named_parameters():
        if name == "hidden_norm.weight":
            continue
        rows, columns = parameter.shape[0], parameter.shape[-1]
        hidden = head.shape.hidden_size
        source = f"{prefix}.{name}"
        if columns == 2 * hidden and parameter.ndim == 2:  # [token | hidden]
            half = torch.from_numpy(weights.get(source, (rows, hidden)))
            parameter[:, hidden:] = half
            parameter[:, :hidden] *= _TOKEN_SCALE * half.std() * sqrt(columns)
        else:
            parameter.copy_(torch.from_numpy(weights.get(source, tuple(parameter.shape))))
    block.hidden_norm.weight.copy_(
        torch.from_numpy(weights.get(f"{prefix}.input_layernorm.weight", (head.shape.hidden_size,)))
    )
    late = [i for i, n in enumerate(head.config.feature_layers) if n < target.num_layers]
    if late:  # the fusion passes the latest feature on, and learns the rest
        hidden = head.shape.hidden_size
        head.fc.weight.mul_(0.1)
        begin = late[-1] * hidden
        scale = head.feature_scale[begin : begin + hidden]
        head.fc.weight[:, begin : begin + hidden] += torch.diag(1 / scale)
