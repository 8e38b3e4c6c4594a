"""What the exporter refuses by name, told from a model's raw config before anything is loaded.

Speculation drops rejected tokens by moving a write position back. That needs a cache whose past
entries never change: one key and one value per position, all of them kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec.errors import UnsupportedModel
from specdec.export import architectures

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
# Keys only configs of state-space, linear-attention and convolution-cache models have.
_RECURRENT_KEYS = (
    "state_size",
    "ssm_cfg",
    "ssm_state_size",
    "mamba_d_state",
    "lru_width",
    "attention_hidden_size",
    "linear_num_key_heads",
    "linear_attn_config",
    "conv_L_cache",
    "time_step_rank",
)


def refuse_config(config: Mapping[str, Any]) -> None:
    """Raises `UnsupportedModel` with the reason, what was found and what is supported."""
    kind = config.get("model_type")
    reason = _reason(config)
    if reason:
        raise UnsupportedModel(
            f"model type {kind!r} {reason}; supported are dense decoders with full attention: "
            f"{', '.join(architectures.names())}"
        )
    if not isinstance(kind, str):
        raise UnsupportedModel(
            f"the config names no model_type: supported are {', '.join(architectures.names())}"
        )
    architectures.find(kind)


def _reason(config: Mapping[str, Any]) -> str | None:
    for key in _EXPERT_KEYS:
        if isinstance(config.get(key), int) and config[key] > 1:
            return f"is a mixture of experts ({key} {config[key]})"
    for key in _RECURRENT_KEYS:
        if config.get(key):
            return f"keeps a recurrent state ({key}), which cannot be rewound"
    if config.get("is_encoder_decoder"):
        return "is an encoder-decoder"
    method = (config.get("quantization_config") or {}).get("quant_method", "gguf")
    if method != "gguf":  # a dequantised GGUF keeps this note
        return f"is quantised with {method}: export from the unquantised checkpoint"
    return _attention_reason(config)


def _attention_reason(config: Mapping[str, Any]) -> str | None:
    kind = config.get("model_type")
    if kind in architectures.names() and architectures.find(kind).masks_windows:
        return None
    layer_types = config.get("layer_types")
    if layer_types:
        other = sorted({t for t in layer_types if t != "full_attention"})
        return f"has layers of {', '.join(other)}, which cannot be rewound" if other else None
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return None
    if window >= config.get("max_position_embeddings", 0):
        return None  # the window never closes
    return f"attends through a sliding window ({window} tokens), which cannot be rewound"


def refuse_gguf(fields: Mapping[str, Any], tensor_names: set[str]) -> None:
    """The same for a GGUF's metadata: what transformers would drop silently is refused.

    Args:
        fields: metadata by key, e.g. `general.architecture` and `llama.expert_count`.
        tensor_names: the file's own names, e.g. `rope_freqs.weight`.
    """
    kind = fields.get("general.architecture")
    experts = fields.get(f"{kind}.expert_count")
    window = fields.get(f"{kind}.attention.sliding_window")
    state = next((k for k in fields if k.startswith((f"{kind}.ssm.", f"{kind}.wkv."))), None)
    refuse_config(
        {
            "model_type": kind,
            "num_experts": experts,
            "sliding_window": window,
            "max_position_embeddings": fields.get(f"{kind}.context_length", 0),
            "state_size": state,
        }
    )
    scaling = fields.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensor_names:
        found = "rope_freqs" if scaling == "none" else f"rope scaling {scaling!r}"
        raise UnsupportedModel(
            f"this GGUF scales its rotary positions ({found}), which transformers does not read: "
            f"export from the Hugging Face directory of the model"
        )
