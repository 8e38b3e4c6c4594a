"""A draft that needs no features, as a Hugging Face directory that any program reads.

    the target's embedding -> its first E layers -> the trained blocks -> norm -> LM head

With E = 0 it is a small decoder of its own; with E > 0 an exit from the target's first layers. The
projection goes into the LM head's rows; rows beyond the draft vocabulary follow by the same
projection and are merely less certain.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import UnsupportedModel
from specdec.export.head_source import llama_name
from specdec.export.sources import Source
from specdec.export.training.head import Head

_PLAIN = ("llama", "mistral")  # whose layers are those of a block, without biases or other norms


def refuse_layers(model_type: str, layer: int) -> None:
    """Raises `UnsupportedModel`: an exit behind layers that a Llama has no place for."""
    if layer and model_type not in _PLAIN:
        raise UnsupportedModel(
            f"an exit from the layers of model type {model_type!r} is not supported: supported "
            f"are {', '.join(_PLAIN)}"
        )


def write(directory: Path, head: Head, source: Source) -> None:
    """Write config, weights and tokenizer; `head` reads no tokens."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    (layer,) = head.config.feature_layers
    refuse_layers(source.config.model_type, layer)
    weights, shape = source.weights, head.shape
    state = {name: tensor.detach().float().cpu() for name, tensor in head.state_dict().items()}
    table = torch.from_numpy(
        weights.get("model.embed_tokens.weight", (source.config.vocab_size, shape.hidden_size))
    )
    tied = source.config.tie_word_embeddings
    rows = table if tied else torch.from_numpy(weights.get("lm_head.weight", tuple(table.shape)))
    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": table,
        "model.norm.weight": state["norm.weight"],
        "lm_head.weight": rows @ state["projection.weight"],
    }
    for name, like in state.items():
        if name.startswith("layers.0."):
            part = llama_name(name.removeprefix("layers.0."))
            for number in range(layer):
                target_name = f"model.layers.{number}.{part}"
                tensors[target_name] = torch.from_numpy(weights.get(target_name, tuple(like.shape)))
        if name.startswith("layers."):
            _, number, rest = name.split(".", 2)
            tensors[f"model.layers.{layer + int(number)}.{llama_name(rest)}"] = like
    config = LlamaConfig(
        vocab_size=len(table),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=layer + head.config.num_blocks,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_size,
        rms_norm_eps=shape.rms_norm_eps,
        max_position_embeddings=source.config.max_position_embeddings,
        rope_parameters=source.config.rope_parameters,
        bos_token_id=source.config.bos_token_id,
        eos_token_id=source.config.eos_token_id,
        tie_word_embeddings=False,
    )
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    source.tokenizer.save_pretrained(directory)
    half = {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}
    save_file(half, directory / "model.safetensors", metadata={"format": "pt"})
