"""Qwen3: Llama's layers with queries and keys normalised per head before the rotation."""

from __future__ import annotations

from specdec.export.architectures import llama
from specdec.export.graph import GraphWriter
from specdec.export.weights import Weights


class Architecture(llama.Architecture):
    def normalise_heads(
        self, graph: GraphWriter, weights: Weights, query_key: str, prefix: str
    ) -> str:
        parts = self.split_heads(graph, query_key, [self.num_heads, self.num_key_value_heads])
        normed = [
            self.norm(graph, weights, part, f"{prefix}.{name}_norm.weight", self.head_size)
            for name, part in zip("qk", parts, strict=True)
        ]
        return graph.op("Concat", *normed, axis=1)
