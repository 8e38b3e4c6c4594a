"""What cannot be rewound or expressed is refused by name, before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdec.errors import UnsupportedModel
from specdec.export import architectures
from specdec.export.refusals import refuse_config, refuse_gguf
from specdec.export.sources import HuggingFaceSource
from support.tiny import write_tiny_llama

LLAMA: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": 4096}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": ({"model_type": "gpt_neox"}, "'gpt_neox' is not supported"),
    "no type": ({"model_type": None}, "names no model_type"),
    "sliding window": (
        {"model_type": "mistral", "sliding_window": 1024},
        r"'mistral' attends through a sliding window \(1024 tokens\)",
    ),
    "sliding layers": (
        {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
        "'qwen3' has layers of sliding_attention",
    ),
    "linear attention": (
        {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
        "layers of linear_attention",
    ),
    "experts": ({"model_type": "mixtral", "num_local_experts": 8}, "mixture of experts"),
    "routed experts": ({"model_type": "deepseek_v3", "n_routed_experts": 256}, "mixture of"),
    "state space": ({"model_type": "mamba", "state_size": 16}, "recurrent state"),
    "recurrence": ({"model_type": "recurrent_gemma", "lru_width": 2560}, "recurrent state"),
    "encoder-decoder": ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantised with gptq"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name_with_what_is_supported(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message) as caught:
        refuse_config({**LLAMA, **fields})
    assert "llama, mistral, qwen2, qwen3" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sliding_window": None},
        {"model_type": "mistral", "sliding_window": 4096},  # as long as the text can be
        {"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False},
        {"model_type": "qwen3", "sliding_window": 99, "layer_types": ["full_attention"]},
        {"num_experts": 0, "quantization_config": {"quant_method": "gguf"}},
    ],
)
def test_what_looks_alike_but_is_dense_and_full_is_allowed(fields: dict[str, Any]) -> None:
    refuse_config({**LLAMA, **fields})


def test_a_window_that_only_the_defaults_set_is_refused(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path, model_type="mistral", max_position_embeddings=8192)
    config = json.loads((model / "config.json").read_text())
    del config["sliding_window"]  # transformers then takes 4096
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="sliding window"):
        _ = HuggingFaceSource(model).config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "dynamic",
        ),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ],
)
def test_llama_variants_the_graph_cannot_express(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    config = HuggingFaceSource(write_tiny_llama(tmp_path, **fields)).config
    with pytest.raises(UnsupportedModel, match=message):
        architectures.find("llama")(config)


@pytest.mark.parametrize(
    ("fields", "tensors", "message"),
    [
        ({"general.architecture": "rwkv6"}, set(), "'rwkv6' is not supported"),
        ({"llama.expert_count": 8}, set(), "mixture of experts"),
        ({"llama.attention.sliding_window": 1024}, set(), "sliding window"),
        ({"llama.rope.scaling.type": "yarn"}, set(), "rope scaling 'yarn'"),
        ({}, {"rope_freqs.weight"}, "rope_freqs"),
    ],
)
def test_gguf_metadata(fields: dict[str, Any], tensors: set[str], message: str) -> None:
    base = {"general.architecture": "llama", "llama.context_length": 4096}
    refuse_gguf(base, set())
    with pytest.raises(UnsupportedModel, match=message):
        refuse_gguf({**base, **fields}, tensors)


def test_code_in_a_checkpoint_never_runs(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path)
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (model / "config.json").write_text(json.dumps(config))
    witness = tmp_path / "ran"
    (model / "evil.py").write_text(f"open({str(witness)!r}, 'w')\n")
    assert HuggingFaceSource(model).config.model_type == "llama"
    assert not witness.exists()
