"""The graph of a trained stand-alone draft: a decoder with few blocks and a reduced LM head.

    input_ids [N] --embedding--> block(s) --Gather(output_rows), norm, projection--> z [R]
    z times the static rows of the LM head --every other id: NEVER--> logits [R, V]

Inputs and outputs are a decoder's (see graph.py), so whatever runs a draft model runs this one. The
LM head of the whole vocabulary would be read in every step and cost more than the blocks; ids that
the target seldom writes are never proposed instead, which loses acceptance alone.
"""

from __future__ import annotations

import numpy as np

from specdec.export.graph import GraphWriter
from specdec.export.trained_graph import TrainedArchitecture
from specdec.export.weights import Weights

VERSION = 1  # raise it when the same draft would give another graph
NEVER = -1e4  # the logit of an id that is never proposed: finite, as a sampler asks of logits


class DraftArchitecture(TrainedArchitecture):
    """Writes one trained draft that reads its own embedding (layer 0), with its target's tables."""

    def write(self, graph: GraphWriter, weights: Weights | None = None) -> None:
        """Add every node and weight. `weights`: the draft's own, by default."""
        weights = weights or self.weights()
        graph.declare(self.num_layers, self.num_key_value_heads, self.head_size)
        self.write_tables(graph)
        x = self.embed(graph)
        for layer in range(self.num_layers):
            x = self.write_layer(graph, weights, x, layer)
        x = graph.op("Gather", x, "output_rows")
        _, static = self.score_static(graph, weights, x)
        self._spread(graph, static)
        weights.refuse_unread()

    def _spread(self, graph: GraphWriter, static: str) -> None:
        """Each static column [R, C] to its id: `logits` [R, V]."""
        ids = self._head.static_ids
        column = np.full(self.vocab_size, len(ids), np.int64)  # of each id; last: what is padded
        column[ids] = np.arange(len(ids))
        sides = graph.constant("spread.sides", [0, 0, 0, 1])
        never = graph.constant("spread.never", np.array(NEVER, np.float32))
        padded = graph.op("Pad", static, sides, never)
        graph.op("Gather", padded, graph.constant("spread.column", column), out="logits", axis=1)
