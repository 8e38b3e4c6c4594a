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

import json
from pathlib import Path

import numpy as np

from specdec.artifact import STATIC_IDS
from specdec.export.forms import Form
from specdec.export.graph import GraphWriter, Port
from specdec.export.trained_graph import TrainedArchitecture, narrow
from specdec.export.weights import Weights

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


class HeadArchitecture(TrainedArchitecture):
    """Writes one trained head, with the tables of its target."""

    columns = "C + M"

    @property
    def metadata(self) -> dict[str, str]:
        """The static ids, in the order of the logits' first columns."""
        return {STATIC_IDS: json.dumps(self._head.static_ids.tolist())}

    def writer(self, directory: Path, form: Form) -> HeadWriter:
        """See `TrainedArchitecture`."""
        sizes = {"feature_size": self._head.feature_size, "hidden_size": self.hidden_size}
        return HeadWriter(directory, form=form, **sizes)

    def write(self, graph: GraphWriter, weights: Weights | None = None) -> None:
        """Add every node and weight. `weights`: the head's own, by default."""
        weights = weights or self.weights()
        graph.declare(self.num_layers, self.num_key_value_heads, self.head_size)
        self.write_tables(graph)
        parts = graph.op("Concat", self._fuse(graph, weights), "hidden", axis=0)
        x = graph.op("Gather", parts, "source")
        for layer in range(self.num_layers):
            x = self.write_layer(graph, weights, x, layer)
        graph.op("Identity", x, out="hidden_out")
        x = graph.op("Gather", x, "output_rows")
        z, static = self.score_static(graph, weights, x)
        logits = graph.op("Concat", static, self._score_extra(graph, z), out="logits", axis=-1)
        logprobs = graph.op("LogSoftmax", logits, axis=-1)
        best = ["best_logprobs", "best_columns"]
        graph.ops("TopK", logprobs, "width", outputs=best, axis=-1, largest=1, sorted=1)
        weights.refuse_unread()

    def write_layer(self, graph: GraphWriter, weights: Weights, x: str, layer: int) -> str:
        """x and the result: flat rows [N, hidden]."""
        prefix = f"model.layers.{layer}"
        y = self.norm(graph, weights, x, f"{prefix}.input_layernorm.weight")
        if layer == 0:  # it reads the token beside the hidden state
            y = graph.op("Concat", self._token(graph), y, axis=-1)
        x = graph.op("Add", x, self.attention(graph, weights, y, layer))
        y = self.norm(graph, weights, x, f"{prefix}.post_attention_layernorm.weight")
        return graph.op("Add", x, self.mlp(graph, weights, y, f"{prefix}.mlp"))

    def attention_width(self, prefix: str) -> int:
        """See `Architecture`."""
        return self.hidden_size * (2 if prefix.startswith("model.layers.0.") else 1)

    def _fuse(self, graph: GraphWriter, weights: Weights) -> str:
        """Of each layer's stream by its own root mean square: [P, hidden]."""
        hidden, size = self.hidden_size, self._head.feature_size
        x = self.widen(graph, "features")
        x = graph.op("Reshape", x, graph.constant("features.layers", [-1, size // hidden, hidden]))
        x = graph.op("Reshape", self._unit(graph, x), graph.constant("features.flat", [-1, size]))
        # A scale before a matrix is that matrix with its columns scaled.
        scale = weights.get("model.feature_scale", (size,))
        return graph.linear(x, "model.fc", weights.get("model.fc.weight", (hidden, size)) * scale)

    def _token(self, graph: GraphWriter) -> str:
        """The normalised embedding of every row's token: [N, hidden]."""
        return self._unit(graph, self.embed(graph))

    def _score_extra(self, graph: GraphWriter, z: str) -> str:
        """z [R, hidden] times the LM head's rows of `extra_ids`, where allowed: [R, M]."""
        tables = self._tables
        name = "embedding" if tables.is_tied else "lm_head.table"
        rows = graph.op("Gather", graph.constant(name, narrow(tables.head)), "extra_ids")
        columns = graph.op("Transpose", self.widen(graph, rows), perm=[1, 0])
        never = graph.constant("never", np.array(-np.inf, np.float32))
        return graph.op("Where", "allowed", graph.op("MatMul", z, columns), never)

    def _unit(self, graph: GraphWriter, x: str) -> str:
        """x / rms(x) over the last axis, of size `hidden_size`."""
        ones = np.ones(self.hidden_size, np.float32)
        return graph.rms_norm(x, "ones", ones, self.config.rms_norm_eps)
