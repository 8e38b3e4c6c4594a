"""Where a draft starts: at random, or as layers of the target: a head its last, others the first.

The projection starts as the identity and the last norm as the target's final one, so that the
head's hidden states mean from the first step what the target's LM head understands.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from specdec.errors import InvalidRequest
from specdec.export.head_source import llama_name
from specdec.export.training.block import Block
from specdec.export.training.head import Head, HeadConfig
from specdec.export.training.options import Start
from specdec.export.training.target import Target
from specdec.export.weights import Weights

_QKV = ("q_proj", "k_proj", "v_proj")
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
        if head.config.reads_token:
            head.feature_scale.copy_(even_scale(head, features))
        nn.init.eye_(head.projection.weight)
        head.norm.weight.copy_(target.norm)
        if start is Start.target:
            for block, number in zip(head.layers, layers_of(head.config, target), strict=True):
                assert isinstance(block, Block)
                _copy_layer(block, weights, number)
            _pass_on(head, target)


def even_scale(head: Head, features: Tensor) -> Tensor:
    """[layers * H] what brings every column to a mean square of 1.

    Residual streams have a few columns a hundred times larger than the rest, which would have a
    hundred times the say in every step of the optimiser.
    """
    square = head.normalise(features).square().mean(0)
    return square.clamp(min=1e-4).rsqrt()


def layers_of(config: HeadConfig, target: Target) -> list[int]:
    """The number of each block's layer: those that follow the features. A head that reads features
    of all heights (`reads_token`) takes the last ones.

    Raises `InvalidRequest`: the target has not so many.
    """
    num_blocks, num_layers = config.num_blocks, target.num_layers
    first = num_layers - num_blocks if config.reads_token else config.feature_layers[0]
    if not 0 <= first <= num_layers - num_blocks:
        raise InvalidRequest(
            f"--start target: {num_blocks} blocks from layer {first} on, the target has "
            f"{num_layers} layers: use fewer --blocks, or --start random"
        )
    return list(range(first, first + num_blocks))


def _copy_layer(block: Block, weights: Weights, number: int) -> None:
    """`block` becomes this layer of the target."""
    hidden = block.shape.hidden_size
    for name, parameter in block.named_parameters():
        is_double = parameter.ndim == 2 and block.reads_token and name.split(".")[1] in _QKV
        shape = (parameter.shape[0], hidden) if is_double else tuple(parameter.shape)
        layer = torch.from_numpy(weights.get(f"model.layers.{number}.{llama_name(name)}", shape))
        if is_double:  # [token | hidden]
            parameter[:, hidden:] = layer
            parameter[:, :hidden] *= _TOKEN_SCALE * layer.std() * sqrt(2 * hidden)
        else:
            parameter.copy_(layer)


def _pass_on(head: Head, target: Target) -> None:
    """The fusion passes on the latest feature that enters a layer, and learns the rest."""
    late = [i for i, n in enumerate(head.config.feature_layers) if n < target.num_layers]
    if head.config.reads_token and late:
        hidden = head.shape.hidden_size
        columns = slice(late[-1] * hidden, (late[-1] + 1) * hidden)
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, columns] += torch.diag(1 / head.feature_scale[columns])
