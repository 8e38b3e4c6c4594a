"""A tiny Llama in GGUF form, as llama.cpp's converter would write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_tiny_gguf(model: Path, path: Path, **metadata: Any) -> Path:
    """Convert a directory of `write_tiny_llama` to one float32 .gguf file.

    Args:
        metadata: further keys of the architecture, e.g. `**{"expert_count": 4}`.
    """
    from gguf import GGUFWriter
    from safetensors.numpy import load_file

    config = json.loads((model / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    for name, value in metadata.items():
        key = f"llama.{name}"
        writer.add_uint32(key, value) if isinstance(value, int) else writer.add_string(key, value)
    _add_tokenizer(writer, model)
    for name, array in load_file(model / "model.safetensors").items():
        pairs = {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2])
        writer.add_tensor(_gguf_name(name), _interleave(array, pairs) if pairs else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rotary pairs side by side, as llama.cpp keeps them, instead of half a head apart."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _gguf_name(name: str) -> str:
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        layer, _, rest = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{names[rest]}.weight"
    return f"{names[stem]}.weight"


def _add_tokenizer(writer: Any, model: Path) -> None:
    from gguf import TokenType

    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template((model / "chat_template.jinja").read_text())
