"""A model repository the real server loads in a second: no weights, echoing models."""

import json
from pathlib import Path
from typing import Any

from specdec.artifact import FILE, Artifact

ECHO = """\
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        names = os.listdir(pb_utils.get_model_dir())
        self.names = sorted(n for n in names if n != "__pycache__")

    def execute(self, requests):
        text = "|".join([sys.prefix, *self.names]).encode()
        tensor = pb_utils.Tensor("TEXT", np.array([text], dtype=np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
CONFIG = """\
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
ENSEMBLE = """\
platform: "ensemble"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [ { model_name: "speculative" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "TEXT" value: "TEXT" } } ] }
"""


def write_artifact(directory: Path, *, source: str = "tiny", **changed: Any) -> Path:
    """An exported model without a graph; `changed`: other fields of its description."""
    version = directory / "1"
    version.mkdir(parents=True, exist_ok=True)
    Artifact(
        architecture="llama",
        runtime="onnxruntime",
        precision="fp32",
        num_layers=1,
        num_key_value_heads=1,
        head_size=8,
        hidden_size=8,
        feature_layers=(),
        vocab_size=16,
        num_tokens=16,
        max_position_embeddings=64,
        end_ids=(2,),
        vocabulary_sha256="v",
        weights_sha256="w",
        source=source,
    ).write(version)
    description = json.loads((version / FILE).read_text())
    (version / FILE).write_text(json.dumps(description | changed))
    (version / "model.onnx").write_bytes(b"graph")
    return directory


def write_repository(directory: Path) -> Path:
    """speculative, ensemble, target and draft, the last two without an artifact."""
    for name in ("speculative", "target", "draft", "eagle"):
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(CONFIG)
    (directory / "ensemble").mkdir()
    (directory / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    (directory / "speculative" / "1" / "model.py").write_text(ECHO)
    return directory


def write_servable(directory: Path) -> Path:
    """The same with a target that the real server can load."""
    repository = write_repository(directory)
    version = write_artifact(repository / "target") / "1"
    (version / "model.py").write_text(ECHO)
    return repository
