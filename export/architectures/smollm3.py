"""SmolLM3: Llama's layers, every few of which do not rotate queries and keys at all."""

from __future__ import annotations

from specdec.export.architectures import llama
from specdec.export.graph import GraphWriter


class Architecture(llama.Architecture):
    def rotate(self, graph: GraphWriter, query_key: str, layer: int) -> str:
        if not self.config.no_rope_layers[layer]:  # despite its name, 1 is a layer that rotates
            return query_key
        return super().rotate(graph, query_key, layer)
