"""What the graphs of trained heads and drafts share: plain blocks, and tables of the target."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from specdec.export.architectures.llama import Architecture
from specdec.export.forms import Form
from specdec.export.graph import GraphWriter
from specdec.export.head_source import TargetTables, TrainedHead, llama_name
from specdec.export.weights import Array, LoadedWeights, Weights


class TrainedArchitecture(Architecture):
    """Blocks that were trained, between the target's embedding and rows of its LM head."""

    def __init__(self, head: TrainedHead, tables: TargetTables) -> None:
        shape = head.shape
        super().__init__(
            SimpleNamespace(
                num_hidden_layers=head.num_blocks,
                num_attention_heads=shape.num_heads,
                num_key_value_heads=shape.num_key_value_heads,
                hidden_size=shape.hidden_size,
                head_dim=shape.head_size,
                intermediate_size=shape.intermediate_size,
                rms_norm_eps=shape.rms_norm_eps,
                vocab_size=len(tables.embedding),
                max_position_embeddings=len(tables.cos),
                rope_parameters=None,  # their tables are the target's
                hidden_act="silu",
            )
        )
        self._head, self._tables = head, tables

    @property
    def columns(self) -> int | str:
        """Of the logits, as the graph declares them."""
        return self.vocab_size

    @property
    def metadata(self) -> dict[str, str]:
        """What whoever runs the graph must know of it."""
        return {}

    def writer(self, directory: Path, form: Form) -> GraphWriter:
        """One for this graph's inputs and outputs."""
        return GraphWriter(directory, form=form)

    def weights(self) -> Weights:
        """The trained tensors, by the names that `Architecture` reads them by."""
        tensors = self._head.weights.items()
        return LoadedWeights({f"model.{llama_name(name)}": t for name, t in tensors})

    def rotary_tables(self, *layer_type: str) -> tuple[Array, Array]:
        """The target's: positions mean the same in both."""
        return self._tables.cos, self._tables.sin

    def embed(self, graph: GraphWriter) -> str:
        """The target's embedding of every row's token: float32 [N, hidden]."""
        table = graph.constant("embedding", narrow(self._tables.embedding))
        return self.widen(graph, graph.op("Gather", table, "input_ids"))

    def score_static(self, graph: GraphWriter, weights: Weights, x: str) -> tuple[str, str]:
        """x [R, hidden], rows of the last block -> z [R, hidden], which rows of the LM head are
        multiplied with, and the logits of the static ids [R, C]."""
        x = self.norm(graph, weights, x, "model.norm.weight")
        square = (self.hidden_size, self.hidden_size)
        z = self.linear(graph, weights, x, "model.projection", square)
        return z, graph.linear(z, "lm_head", self._tables.head[self._head.static_ids])

    def widen(self, graph: GraphWriter, x: str) -> str:
        """As float32."""
        from onnx import TensorProto

        return graph.op("Cast", x, to=TensorProto.FLOAT)


def narrow(table: Any) -> Array:
    """Half the memory of a table of which a pass reads a few rows."""
    return np.asarray(table, np.float16)
