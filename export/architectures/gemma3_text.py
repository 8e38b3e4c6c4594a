"""Gemma 3 (text): Gemma 2 with norms on queries and keys, and other rotations in windows."""

from __future__ import annotations

from specdec.errors import UnsupportedModel
from specdec.export.architectures import gemma2, qwen3
from specdec.export.graph import GraphWriter


class Architecture(gemma2.Architecture):
    normalise_heads = qwen3.Architecture.normalise_heads

    def refuse_unsupported(self) -> None:
        """See `llama.Architecture`."""
        super().refuse_unsupported()
        if self.config.use_bidirectional_attention:
            raise UnsupportedModel("this model attends in both directions: it writes no text")

    def refuse_rope(self, parameters: dict[str, dict[str, object]] | None) -> None:
        for of_type in (parameters or {}).values():
            super().refuse_rope(of_type)

    def write_rotary_tables(self, graph: GraphWriter) -> None:
        for layer_type in sorted(set(self.config.layer_types)):
            cos, sin = self.rotary_tables(layer_type)
            graph.constant(f"rotary.cos.{layer_type}", cos)
            graph.constant(f"rotary.sin.{layer_type}", sin)

    def rotate(self, graph: GraphWriter, query_key: str, layer: int) -> str:
        tables = [f"rotary.{name}.{self.config.layer_types[layer]}" for name in ("cos", "sin")]
        return graph.op("RotaryEmbedding", query_key, *tables, "position_ids")
