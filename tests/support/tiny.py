"""A real Llama of toy size: directory, tokenizer and artifact in a second or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "def add(a, b):\n    return a + b\n",
    "user and assistant talk about the weather and the time",
)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tiny_llama(
    directory: Path,
    *,
    vocab_size: int = 320,
    num_layers: int = 2,
    hidden_size: int = 64,
    seed: int = 0,
    model_type: str = "llama",
    spread: float = 0.25,
    **config: Any,
) -> Path:
    """Write a random model in Hugging Face form; returns `directory`.

    Args:
        vocab_size: columns of the logits; the tokenizer has at most as many tokens, and the same
            ones whatever the model's seed.
        spread: standard deviation of the weights; large enough that greedy text wanders.
        config: anything else of the transformers config, e.g. `num_key_value_heads=1`.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    directory.mkdir(parents=True, exist_ok=True)
    fields = {
        "vocab_size": vocab_size,
        "num_hidden_layers": num_layers,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": spread,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    fields |= {"head_dim": hidden_size // fields["num_attention_heads"], **config}
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):  # else they start as zeros and ones
                parameter.add_(0.1 * torch.randn(parameter.shape))
    torch.random.set_rng_state(generator_state)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    tensors = {k: v.contiguous() for k, v in model.state_dict().items() if k not in tied}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)
    write_tiny_tokenizer(directory, max_tokens=vocab_size)
    return directory


def write_tiny_tokenizer(directory: Path, *, max_tokens: int = 320) -> None:
    """Byte-level BPE: three special tokens, 256 bytes, and merges up to 320 tokens in all."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(320, max_tokens),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "unk_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(CHATML)


def export_tiny(
    directory: Path, precision: str = "fp32", *, features: str = "auto", **tiny: Any
) -> Path:
    """Export a tiny model; returns the artifact's directory, `directory`/artifact/1.

    `directory`/artifact is a Triton model directory; `directory`/model the Hugging Face one.
    """
    from rich.progress import Progress

    from specdec.export.exporter import export
    from specdec.export.features import Features
    from specdec.export.quantize import Precision
    from specdec.export.sources import HuggingFaceSource

    source = HuggingFaceSource(write_tiny_llama(directory / "model", **tiny))
    with Progress(disable=True) as progress:
        made = export(
            source,
            directory / "artifact",
            precision=Precision(precision),
            progress=progress,
            features=Features.parse(features),
        )
    return made.directory
