"""The graph of an EAGLE head: the decoder's conventions, fed with hidden states beside tokens.

    features [P] --cast, norm per layer, fc--> fused --+
    hidden   [Q] --------------------------------------+--Gather(source)--> rows [N]
    rows, unit rows of the embedding --block(s)--> hidden_out [N]
    hidden_out --Gather(output_rows), norm, projection--> z [R]
    logits = z times the static rows of the LM head | z times the rows of extra_ids, where allowed
    logits --LogSoftmax, TopK(width)--> best_columns, best_logprobs [R]

What is likeliest is found here: in thousands of columns of every row it would cost the caller as
much time as the pass itself. A row reads features the target gave, or goes on with a hidden state
of the head's own. Attention, cache and rotary positions are those of a decoder's layer; see
graph.py for the other inputs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from specdec.export.architectures.llama import Architecture
from specdec.export.forms import Form
from specdec.export.graph import GraphWriter, Port
from specdec.export.head_source import TargetTables, TrainedHead
from specdec.export.weights import Array, LoadedWeights, Weights

VERSION = 3  # raise it when the same head would give another graph

# Beside those of a decoder. P rows with features, Q hidden states, F features of H numbers each,
# C static columns, M extra ones, K the likeliest.
INPUTS: dict[str, Port] = {
    "features": Port("float16", ("P", "FH"), "of the target, the head's layers side by side"),
    "hidden": Port("float32", ("Q", "H"), "hidden_out of earlier rows"),
    "source": Port("int64", ("N",), "what each row reads: 0 ... P - 1 features, then hidden"),
    "extra_ids": Port("int64", ("M",), "target ids to score beside the static ones"),
    "allowed": Port("bool", ("R", "M"), "which of those are the row's to propose"),
    "width": Port("int64", (1,), "K"),
}
OUTPUTS: dict[str, Port] = {
    "hidden_out": Port("float32", ("N", "H"), "what rows that follow these go on with"),
    "best_columns": Port("int64", ("R", "K"), "of the logits, the likeliest first"),
    "best_logprobs": Port("float32", ("R", "K"), "theirs; -inf: it was not allowed"),
}


class HeadWriter(GraphWriter):
    """A `GraphWriter` with the head's inputs and outputs."""

    def __init__(self, directory: Path, *, form: Form, feature_size: int, hidden_size: int) -> None:
        super().__init__(directory, form=form)
        self._sizes = {"FH": feature_size, "H": hidden_size}

    def declare(self, num_layers: int, num_key_value_heads: int, head_size: int) -> None:
        """See `GraphWriter`."""
        super().declare(num_layers, num_key_value_heads, head_size)
        for name, port in INPUTS.items():
            self._inputs.append(self._value_info(name, port, self._sizes))
        outputs = [self._value_info(name, port, self._sizes) for name, port in OUTPUTS.items()]
        self._outputs[:0] = outputs


class HeadArchitecture(Architecture):
    """Writes one trained head, with the tables of its target."""

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

    def write(self, graph: GraphWriter, weights: Weights | None = None) -> None:
        """Add every node and weight. `weights`: the head's own, by default."""
        weights = weights or LoadedWeights(
            {f"model.{name}": tensor for name, tensor in self._head.weights.items()}
        )
        graph.declare(self.num_layers, self.num_key_value_heads, self.head_size)
        self.write_tables(graph)
        parts = graph.op("Concat", self._fuse(graph, weights), "hidden", axis=0)
        x = graph.op("Gather", parts, "source")
        for layer in range(self.num_layers):
            x = self.write_layer(graph, weights, x, layer)
        graph.op("Identity", x, out="hidden_out")
        x = graph.op("Gather", x, "output_rows")
        x = self.norm(graph, weights, x, "model.norm.weight")
        square = (self.hidden_size, self.hidden_size)
        z = self.linear(graph, weights, x, "model.projection", square)
        static = graph.linear(z, "lm_head", self._tables.head[self._head.static_ids])
        logits = graph.op("Concat", static, self._score_extra(graph, z), out="logits", axis=-1)
        logprobs = graph.op("LogSoftmax", logits, axis=-1)
        best = ["best_logprobs", "best_columns"]
        graph.ops("TopK", logprobs, "width", outputs=best, axis=-1, largest=1, sorted=1)
        weights.refuse_unread()

    def write_layer(self, graph: GraphWriter, weights: Weights, x: str, layer: int) -> str:
        """x and the result: flat rows [N, hidden]."""
        prefix = f"model.layers.{layer}"
        y = self.norm(graph, weights, x, f"{prefix}.hidden_norm.weight")
        if layer == 0:  # it reads the token beside the hidden state
            y = graph.op("Concat", self._token(graph), y, axis=-1)
        x = graph.op("Add", x, self.attention(graph, weights, y, layer))
        y = self.norm(graph, weights, x, f"{prefix}.post_attention_layernorm.weight")
        return graph.op("Add", x, self.mlp(graph, weights, y, f"{prefix}.mlp"))

    def attention_width(self, prefix: str) -> int:
        """See `Architecture`."""
        return self.hidden_size * (2 if prefix.startswith("model.layers.0.") else 1)

    def rotary_tables(self, *layer_type: str) -> tuple[Array, Array]:
        """The target's: positions mean the same in both."""
        return self._tables.cos, self._tables.sin

    def _fuse(self, graph: GraphWriter, weights: Weights) -> str:
        """Of each layer's stream by its own root mean square: [P, hidden]."""
        hidden, size = self.hidden_size, self._head.feature_size
        x = self._widen(graph, "features")
        x = graph.op("Reshape", x, graph.constant("features.layers", [-1, size // hidden, hidden]))
        x = graph.op("Reshape", self._unit(graph, x), graph.constant("features.flat", [-1, size]))
        # A scale before a matrix is that matrix with its columns scaled.
        scale = weights.get("model.feature_scale", (size,))
        return graph.linear(x, "model.fc", weights.get("model.fc.weight", (hidden, size)) * scale)

    def _token(self, graph: GraphWriter) -> str:
        """The normalised embedding of every row's token: [N, hidden]."""
        table = graph.constant("embedding", _narrow(self._tables.embedding))
        return self._unit(graph, self._widen(graph, graph.op("Gather", table, "input_ids")))

    def _score_extra(self, graph: GraphWriter, z: str) -> str:
        """z [R, hidden] times the LM head's rows of `extra_ids`, where allowed: [R, M]."""
        tables = self._tables
        name = "embedding" if tables.is_tied else "lm_head.table"
        rows = graph.op("Gather", graph.constant(name, _narrow(tables.head)), "extra_ids")
        columns = graph.op("Transpose", self._widen(graph, rows), perm=[1, 0])
        never = graph.constant("never", np.array(-np.inf, np.float32))
        return graph.op("Where", "allowed", graph.op("MatMul", z, columns), never)

    def _unit(self, graph: GraphWriter, x: str) -> str:
        """x / rms(x) over the last axis, of size `hidden_size`."""
        ones = np.ones(self.hidden_size, np.float32)
        return graph.rms_norm(x, "ones", ones, self.config.rms_norm_eps)

    def _widen(self, graph: GraphWriter, x: str) -> str:
        from onnx import TensorProto

        return graph.op("Cast", x, to=TensorProto.FLOAT)


def _narrow(table: Any) -> Array:
    """Half the memory of a table of which a pass reads a few rows."""
    return np.asarray(table, np.float16)
