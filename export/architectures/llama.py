"""Llama: pre-norm layers of grouped-query attention with rotary positions, and a gated MLP.

Also the base of its relatives, which override one step each.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from specdec.errors import UnsupportedModel
from specdec.export import features
from specdec.export.graph import GraphWriter
from specdec.export.weights import Array, Weights

# Fixed tables of angles. `dynamic` and `longrope` change with the length of the text, so that
# keys already in the cache would have to be turned again.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class Architecture:
    """Writes one decoder; `config` is the transformers config of its `model_type`."""

    num_layers: int
    num_key_value_heads: int
    head_size: int
    vocab_size: int
    max_position_embeddings: int
    masks_windows = False  # whether layers of type `sliding_attention` are written as such

    def __init__(self, config: Any, features: features.Features = features.NONE) -> None:
        """Raises `UnsupportedModel`, and `InvalidRequest` about the features."""
        self.config = config
        self.num_layers = config.num_hidden_layers
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads or config.num_attention_heads
        self.hidden_size = config.hidden_size
        self.head_size = getattr(config, "head_dim", None) or self.hidden_size // self.num_heads
        self.vocab_size = config.vocab_size
        self.max_position_embeddings = config.max_position_embeddings
        self.feature_layers = features.of(self.num_layers)
        self.refuse_unsupported()

    @property
    def feature_size(self) -> int:
        """Of one row."""
        return len(self.feature_layers) * self.hidden_size

    def refuse_unsupported(self) -> None:
        """Raises `UnsupportedModel` for what this graph cannot express."""
        self.refuse_rope(self.config.rope_parameters)
        if self.config.hidden_act != "silu":
            raise UnsupportedModel(
                f"hidden_act {self.config.hidden_act!r} is not supported: supported is silu"
            )

    def refuse_rope(self, parameters: dict[str, Any] | None) -> None:
        rope_type = (parameters or {}).get("rope_type", "default")
        if rope_type not in _ROPE_TYPES:
            raise UnsupportedModel(
                f"rope type {rope_type!r} is not supported: supported are {', '.join(_ROPE_TYPES)}"
            )

    @property
    def num_linears(self) -> int:
        """Matrix products in the graph: what a progress bar counts to."""
        return 5 * self.num_layers + 1

    def write(self, graph: GraphWriter, weights: Weights) -> None:
        """Add every node and weight, from `input_ids` to `logits` and `features`."""
        graph.declare(self.num_layers, self.num_key_value_heads, self.head_size)
        self.write_tables(graph)
        # The largest tensors: read when they are written, and not kept.
        table, head = "model.embed_tokens.weight", "lm_head.weight"
        shape = (self.vocab_size, self.hidden_size)
        x = graph.op("Gather", graph.constant(table, weights.get(table, shape)), "input_ids")
        x = self.scale_embeddings(graph, x)
        inputs = [x]  # of every layer, then of the final norm
        for layer in range(self.num_layers):
            x = self.write_layer(graph, weights, x, layer)
            inputs.append(x)
        if self.feature_layers:
            graph.features([inputs[i] for i in self.feature_layers], size=self.feature_size)
        x = graph.op("Gather", x, "output_rows")  # the head runs on these rows only
        x = self.norm(graph, weights, x, "model.norm.weight")
        if self.config.tie_word_embeddings:
            weights.skip(head)
            head = table
        cap = getattr(self.config, "final_logit_softcapping", None)
        graph.head(x, "lm_head", weights.get(head, shape), softcap=cap)
        weights.refuse_unread()

    def write_layer(self, graph: GraphWriter, weights: Weights, x: str, layer: int) -> str:
        """x and the result: flat rows [N, hidden]."""
        prefix = f"model.layers.{layer}"
        y = self.norm(graph, weights, x, f"{prefix}.input_layernorm.weight")
        x = graph.op("Add", x, self.attention(graph, weights, y, layer))
        y = self.norm(graph, weights, x, f"{prefix}.post_attention_layernorm.weight")
        return graph.op("Add", x, self.mlp(graph, weights, y, f"{prefix}.mlp"))

    def attention(self, graph: GraphWriter, weights: Weights, x: str, layer: int) -> str:
        """Append this call's keys and values to the cache and attend to all of it: [N, hidden]."""
        prefix = f"model.layers.{layer}.self_attn"
        query_key, value = self.project(graph, weights, x, prefix)
        query_key = self.normalise_heads(graph, weights, query_key, prefix)
        rotated = self.rotate(graph, query_key, layer)
        query, key = self.split_heads(graph, rotated, [self.num_heads, self.num_key_value_heads])
        for kind, new in (("key", key), ("value", value)):
            graph.op(
                "TensorScatter",
                f"past_{kind}_{layer}",
                new,
                "write_index",
                out=f"present_{kind}_{layer}",
                axis=-2,
            )
        present = (f"present_key_{layer}", f"present_value_{layer}")
        mask = self.mask(graph, layer)
        y = graph.op("Attention", query, *present, mask, **self.attention_attributes())
        size = self.num_heads * self.head_size
        y = graph.op("Transpose", y, perm=[0, 2, 1, 3])  # [B, T, heads, D]
        y = graph.op("Reshape", y, graph.constant("attention.rows", [-1, size]))
        y = graph.op("Gather", y, "flat_index")  # [N, heads * D]
        return self.linear(graph, weights, y, f"{prefix}.o_proj", (self.hidden_size, size))

    def rotate(self, graph: GraphWriter, query_key: str, layer: int) -> str:
        """Hook for relatives whose layers differ in their positions."""
        return graph.op("RotaryEmbedding", query_key, "rotary.cos", "rotary.sin", "position_ids")

    def mask(self, graph: GraphWriter, layer: int) -> str:
        """Hook for relatives whose layers differ in what they see: bool [B, 1, T, S]."""
        return "attention_mask"

    def attention_attributes(self) -> dict[str, float]:
        """Hook for relatives that scale or cap the scores in their own way."""
        return {}

    def activate(self, graph: GraphWriter, gate: str) -> str:
        return graph.op("Mul", gate, graph.op("Sigmoid", gate))

    def scale_embeddings(self, graph: GraphWriter, x: str) -> str:
        """Hook for relatives that do: [N, hidden]."""
        return x

    def project(self, graph: GraphWriter, weights: Weights, x: str, prefix: str) -> tuple[str, str]:
        """One product for queries, keys and values: it reads x once.

        Returns queries and keys [B, heads + kv_heads, T, D], and values [B, kv_heads, T, D].
        """
        heads, kv_heads = self.num_heads, self.num_key_value_heads
        width = self.attention_width(prefix)
        sizes = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
        parts = [
            _parameters(weights, f"{prefix}.{name}", (n * self.head_size, width))
            for name, n in sizes.items()
        ]
        biases = [bias for _, bias in parts if bias is not None]
        if len(biases) not in (0, 3):
            raise UnsupportedModel(
                f"{prefix} has {len(biases)} biases: expected none or q, k and v"
            )
        weight = np.concatenate([weight for weight, _ in parts])
        bias = np.concatenate(biases) if biases else None
        y = graph.linear(x, f"{prefix}.qkv_proj", weight, bias)
        y = graph.op("Gather", y, "row_index")  # [B, T, (heads + 2 kv_heads) * D]
        shape = graph.constant("attention.heads", [0, 0, heads + 2 * kv_heads, self.head_size])
        y = graph.op("Transpose", graph.op("Reshape", y, shape), perm=[0, 2, 1, 3])
        query_key, value = self.split_heads(graph, y, [heads + kv_heads, kv_heads])
        return query_key, value

    def attention_width(self, prefix: str) -> int:
        """Hook for relatives whose layers attend with more than the stream: columns of x."""
        return self.hidden_size

    def normalise_heads(
        self, graph: GraphWriter, weights: Weights, query_key: str, prefix: str
    ) -> str:
        """Hook for relatives that normalise queries and keys before rotating them."""
        return query_key

    def split_heads(self, graph: GraphWriter, x: str, sizes: list[int]) -> list[str]:
        """Split x [B, heads, T, D] along its heads."""
        name = graph.constant(f"split.{'.'.join(map(str, sizes))}", sizes)
        return graph.ops("Split", x, name, outputs=[f"{x}.{i}" for i in range(len(sizes))], axis=1)

    def mlp(self, graph: GraphWriter, weights: Weights, x: str, prefix: str) -> str:
        """down(silu(gate(x)) * up(x)): [N, hidden]."""
        wide, narrow = self.config.intermediate_size, self.hidden_size
        gate = self.linear(graph, weights, x, f"{prefix}.gate_proj", (wide, narrow))
        up = self.linear(graph, weights, x, f"{prefix}.up_proj", (wide, narrow))
        y = graph.op("Mul", self.activate(graph, gate), up)
        return self.linear(graph, weights, y, f"{prefix}.down_proj", (narrow, wide))

    def linear(
        self, graph: GraphWriter, weights: Weights, x: str, name: str, shape: tuple[int, int]
    ) -> str:
        weight, bias = _parameters(weights, name, shape)
        return graph.linear(x, name, weight, bias)

    def norm(
        self, graph: GraphWriter, weights: Weights, x: str, name: str, size: int | None = None
    ) -> str:
        scale = weights.get(name, (size or self.hidden_size,))
        return graph.rms_norm(x, name, scale, self.config.rms_norm_eps)

    def write_tables(self, graph: GraphWriter) -> None:
        """What all layers share."""
        self.write_rotary_tables(graph)

    def write_rotary_tables(self, graph: GraphWriter) -> None:
        cos, sin = self.rotary_tables()
        graph.constant("rotary.cos", cos)
        graph.constant("rotary.sin", sin)

    def rotary_tables(self, *layer_type: str) -> tuple[Array, Array]:
        """cos and sin, float32 [max_position_embeddings, D/2] each.

        Made by transformers' own module, in its precision, so that every scaling it knows is
        exactly the one the model was trained with.
        """
        import torch

        kind = self.config.model_type.removesuffix("_text")  # the folder of a model with images
        module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        rotary = next(
            v for n, v in vars(module).items() if n.endswith("RotaryEmbedding") and n[0] != "_"
        )(self.config)
        positions = torch.arange(self.max_position_embeddings)[None]
        cos, sin = (t[0].numpy() for t in rotary(torch.zeros(1), positions, *layer_type))
        if cos.shape[-1] != self.head_size:
            raise UnsupportedModel(
                f"rotary size {cos.shape[-1]} is not supported: expected the head size, "
                f"{self.head_size}"
            )
        half = self.head_size // 2
        return cos[:, :half], sin[:, :half]


def _parameters(weights: Weights, name: str, shape: tuple[int, int]) -> tuple[Array, Array | None]:
    """Weight [out, in] and, where the checkpoint has one, bias [out] of one linear layer."""
    bias = f"{name}.bias"
    return (
        weights.get(f"{name}.weight", shape),
        weights.get(bias, shape[:1]) if bias in weights else None,
    )
