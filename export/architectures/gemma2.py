"""Gemma 2: four norms a layer, capped scores and logits, and every other layer sees a window.

A window is only a mask here: the cache keeps every position, so it can be rewound as any other.
"""

from __future__ import annotations

import numpy as np

from specdec.errors import UnsupportedModel
from specdec.export.architectures import llama
from specdec.export.graph import GraphWriter
from specdec.export.weights import Weights

_ACTIVATION = "gelu_pytorch_tanh"
WINDOWED = "sliding_attention"


class Architecture(llama.Architecture):
    masks_windows = True

    def refuse_unsupported(self) -> None:
        """See `llama.Architecture`."""
        if self.config.hidden_activation != _ACTIVATION:
            raise UnsupportedModel(
                f"hidden_activation {self.config.hidden_activation!r} is not supported: "
                f"supported is {_ACTIVATION}"
            )
        self.refuse_rope(self.config.rope_parameters)

    def write_tables(self, graph: GraphWriter) -> None:
        """Also the mask of windowed layers, which is the same for all of them.

        window 3:  position 5 sees 3, 4, 5      places > position - window
        """
        super().write_tables(graph)
        window = graph.constant("window", [self.config.sliding_window])
        start = graph.op("Sub", "position_ids", window)
        start = graph.op("Unsqueeze", start, graph.constant("window.axes", [1, 3]))  # [B, 1, T, 1]
        near = graph.op("Less", start, graph.cache_positions())
        graph.op("And", "attention_mask", near, out="window_mask")

    def mask(self, graph: GraphWriter, layer: int) -> str:
        windowed = self.config.layer_types[layer] == WINDOWED
        return "window_mask" if windowed else "attention_mask"

    def attention_attributes(self) -> dict[str, float]:
        cap = self.config.attn_logit_softcapping
        scale = float(self.config.query_pre_attn_scalar) ** -0.5
        return {"scale": scale, **({"softcap": float(cap)} if cap else {})}

    def activate(self, graph: GraphWriter, gate: str) -> str:
        return graph.op("Gelu", gate, approximate="tanh")

    def scale_embeddings(self, graph: GraphWriter, x: str) -> str:
        factor = np.array(self.hidden_size**0.5, np.float32)
        return graph.op("Mul", x, graph.constant("embedding_scale", factor))

    def write_layer(self, graph: GraphWriter, weights: Weights, x: str, layer: int) -> str:
        """x and the result: flat rows [N, hidden]."""
        prefix = f"model.layers.{layer}"

        def norm(y: str, name: str) -> str:
            return self.norm(graph, weights, y, f"{prefix}.{name}_layernorm.weight")

        y = self.attention(graph, weights, norm(x, "input"), layer)
        x = graph.op("Add", x, norm(y, "post_attention"))
        y = self.mlp(graph, weights, norm(x, "pre_feedforward"), f"{prefix}.mlp")
        return graph.op("Add", x, norm(y, "post_feedforward"))

    def norm(
        self, graph: GraphWriter, weights: Weights, x: str, name: str, size: int | None = None
    ) -> str:
        """The stored scale counts from 1."""
        scale = weights.get(name, (size or self.hidden_size,)) + np.float32(1)
        return graph.rms_norm(x, name, scale, self.config.rms_norm_eps)
