"""The exported graph, run directly on flat rows: no slots, no batching policy, no sampling.

The decoder backend does this for serving; here it is kept small enough to be read beside the
table of inputs, for the exporter's own check.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.artifact import GRAPH, Artifact

Array = np.ndarray[Any, Any]


class GraphRunner:
    """One ONNX Runtime session and a cache for a fixed number of sequences."""

    def __init__(self, directory: Path, *, num_sequences: int, cache_length: int) -> None:
        import onnxruntime

        description = Artifact.read(directory)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(directory / GRAPH), options, providers=["CPUExecutionProvider"]
        )
        self._max_position = description.max_position_embeddings - 1
        self._cache_length = cache_length
        heads, size = description.num_key_value_heads, description.head_size
        shape = (num_sequences, heads, cache_length, size)
        self._cache = {
            f"{kind}_{layer}": np.zeros(shape, np.float32)
            for kind in ("key", "value")
            for layer in range(description.num_layers)
        }

    def extend(
        self, token_ids: Sequence[Sequence[int]], starts: Sequence[int], *, output: str = "logits"
    ) -> list[Array]:
        """Append tokens to every sequence of the cache; logits after each of them.

        Args:
            token_ids: per sequence, at least one token; lengths may differ.
            starts: per sequence, the cache length to build on. A smaller one than the present
                length is a rewind.
            output: `features` for each token's features instead.

        Returns:
            Per sequence, float32 [num_tokens, vocab_size], or as many columns as features.
        """
        lengths = [len(tokens) for tokens in token_ids]
        inputs = flat_inputs(
            token_ids, starts, cache_length=self._cache_length, max_position=self._max_position
        )
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output(output, "cpu")  # outputs come back in the order they are bound
        for name, array in self._cache.items():
            place = ("cpu", 0, np.float32, array.shape, array.ctypes.data)
            binding.bind_input(f"past_{name}", *place)
            binding.bind_output(f"present_{name}", *place)
        self._session.run_with_iobinding(binding)
        rows = binding.get_outputs()[0].numpy()
        return np.split(rows, np.cumsum(lengths)[:-1])


def flat_inputs(
    token_ids: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    cache_length: int,
    max_position: int,
) -> dict[str, Array]:
    """The graph's inputs for a ragged batch, logits for every row.

    Two sequences of 3 and 1 tokens, T = 3:

        flat row      0  1  2  3          row_index   0 1 2
        flat_index    0  1  2  3                      3 3 3   (past the end: its last row)
    """
    lengths = np.array([len(tokens) for tokens in token_ids])
    ends = np.cumsum(lengths)
    places = np.arange(lengths.max())  # [T]
    first = ends - lengths
    row_index = np.minimum(first[:, None] + places, ends[:, None] - 1)  # [B, T]
    flat_index = np.concatenate([b * len(places) + places[:n] for b, n in enumerate(lengths)])
    positions = np.asarray(starts)[:, None] + places  # [B, T]
    visible = np.arange(cache_length) <= positions[..., None]  # [B, T, S]
    return {
        "input_ids": np.concatenate([np.asarray(t, np.int64) for t in token_ids]),
        "row_index": row_index.astype(np.int64),
        "flat_index": flat_index.astype(np.int64),
        "position_ids": np.minimum(positions, max_position).astype(np.int64),
        "write_index": np.asarray(starts, np.int64),
        "attention_mask": visible[:, None],
        "output_rows": np.arange(ends[-1], dtype=np.int64),
    }
