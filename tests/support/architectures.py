"""Every architecture at toy size, and its graph in TensorRT's form but float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specdec.export.tensorrt_graph import TensorRTForm, TensorRTPrecision

LENGTH = 64  # of a cache
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# A window shorter than the texts; a scale of scores that is not the head size's.
GEMMA: dict[str, Any] = {
    "tie_word_embeddings": True,
    "sliding_window": 9,
    "query_pre_attn_scalar": 24,
    "pad_token_id": 0,
}
GEMMA3_LAYERS = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
MODELS: dict[str, dict[str, Any]] = {
    "llama 3.1": {"rope_parameters": LLAMA3_ROPE},
    "llama 3.2": {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "smollm2": {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "smollm3": {
        "model_type": "smollm3",
        "num_layers": 4,
        "no_rope_layer_interval": 2,
        "pad_token_id": 0,
    },
    "gemma 2": {"model_type": "gemma2", **GEMMA},
    "gemma 3": {"model_type": "gemma3_text", "num_layers": 3, **GEMMA, **GEMMA3_LAYERS},
}


class KeepGraph:
    """A compiler that leaves the graph where it is."""

    runtime = "onnxruntime"
    provenance: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, precision: str = "bf16", dtype: Any = np.float32) -> None:
        self.form = TensorRTForm(TensorRTPrecision(precision), cache_length=LENGTH, dtype=dtype)

    def accept(self, architecture: object) -> None: ...

    def provenance_of(self, directory: Path) -> None: ...

    def compile(self, directory: Path, **_: object) -> None: ...


def tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 320, length).tolist()
