"""An EAGLE head's graph on ONNX Runtime: as a decoder's, with more inputs and other outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec.artifact import STATIC_IDS, Artifact
from specdec.decoder.batch import INPUTS as BATCH_INPUTS
from specdec.decoder.batch import Batch
from specdec.decoder.head_batch import INPUTS as HEAD_INPUTS
from specdec.decoder.head_batch import HeadBatch
from specdec.decoder.head_vocabulary import Floats, Ints
from specdec.decoder.runtimes.onnxruntime import Array, OnnxRuntime, check_cache, open_session
from specdec.errors import InvalidArtifact

_TYPICAL_EXTRA_IDS, _TYPICAL_WIDTH = 256, 4  # of one call, where costs are measured


class HeadOutputs(NamedTuple):
    """Of one pass over N rows, R of them with logits, of which the K largest are told."""

    best_columns: Ints  # [R, K] likeliest first: a static id's number, or behind those an extra's
    best_logprobs: Floats  # [R, K]
    hidden: Floats  # [N, H]


class HeadRuntime(OnnxRuntime):
    """See `Runtime`."""

    def __init__(self, session: Any, artifact: Artifact, *, num_slots: int) -> None:
        super().__init__(session, artifact, num_slots=num_slots)
        metadata = session.get_modelmeta().custom_metadata_map
        self.static_ids = np.array(json.loads(metadata[STATIC_IDS]), np.int64)
        self._hidden_size = artifact.hidden_size
        self._feature_size = artifact.feature_size
        self._width = 0  # of the present pass

    def evaluate(self, batch: HeadBatch) -> HeadOutputs:
        """Evaluate one pass. Raises `DecoderFailed` with ONNX Runtime's reason."""
        num_outputs = len(batch.base.output_rows)
        self._width = int(batch.width[0])
        num_rows = dict.fromkeys(("best_columns", "best_logprobs"), num_outputs)
        return HeadOutputs(*self._evaluate(batch, **num_rows, hidden_out=len(batch.base.input_ids)))

    def _room_for(self, output: str, num_rows: int) -> Array:
        if output == "hidden_out":
            return np.empty((num_rows, self._hidden_size), np.float32)
        dtype = np.int64 if output == "best_columns" else np.float32
        return np.empty((num_rows, self._width), dtype)

    def forward(self, batch: Batch) -> Floats:
        """One pass over rows that go on with hidden states, as a typical draft has it: for
        measuring."""
        num_rows = len(batch.input_ids)
        nothing = np.zeros((0, self._feature_size), np.float16)
        hidden = np.zeros((num_rows, self._hidden_size), np.float32)
        extra_ids = np.arange(_TYPICAL_EXTRA_IDS) % len(self.static_ids)
        allowed = np.ones((len(batch.output_rows), len(extra_ids)), np.bool_)
        width = np.array([_TYPICAL_WIDTH])
        source = np.arange(num_rows)
        fed = HeadBatch(batch, nothing, hidden, source, extra_ids, allowed, width)
        return self.evaluate(fed).best_logprobs


def load(artifact: Artifact, directory: Path, *, num_slots: int, num_threads: int) -> HeadRuntime:
    """Create the session. Raises `InvalidArtifact` if the graph is missing or does not fit."""
    session, path = open_session(directory, num_threads)
    shapes = check_cache(session, artifact, path)
    wanted = {*BATCH_INPUTS, *HEAD_INPUTS}
    if set(shapes) != wanted:
        raise InvalidArtifact(
            f"{path}: inputs are {sorted(shapes)}, expected {sorted(wanted)}: an earlier version "
            f"wrote it, export it again (specdec export head --model FOLDER)"
        )
    sizes = (shapes["features"][1], shapes["hidden"][1])
    if sizes != (artifact.feature_size, artifact.hidden_size):
        raise InvalidArtifact(
            f"{path}: features and hidden states of {sizes} numbers, expected "
            f"{(artifact.feature_size, artifact.hidden_size)}"
        )
    if STATIC_IDS not in session.get_modelmeta().custom_metadata_map:
        raise InvalidArtifact(f"{path} does not say which ids it proposes: export again")
    return HeadRuntime(session, artifact, num_slots=num_slots)
