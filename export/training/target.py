"""The parts of the target that a draft uses and never changes.

Its embedding table, its LM head's rows, its final norm and its rotary angles. Its layers, as
which a draft's blocks can start, are read in initialise.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specdec.errors import UnsupportedModel
from specdec.export import architectures
from specdec.export.training.norms import normalised
from specdec.export.weights import Weights

# Decoders whose embedding, final norm and head are the plain ones: no scale, offset or cap.
SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "smollm3")


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """V vocabulary, H hidden size, D head size, P positions."""

    config: Any  # the transformers config
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    hidden_size: int
    unit_embedding: Tensor  # [V, H] every row divided by its root mean square
    head: Tensor  # [V, H]
    norm: Tensor  # [H] scale of the final norm
    cos: Tensor  # [P, D/2]
    sin: Tensor  # [P, D/2]

    @classmethod
    def read(cls, config: Any, weights: Weights) -> Target:
        """Read them from a checkpoint. Raises `UnsupportedModel`."""
        if config.model_type not in SUPPORTED:
            raise UnsupportedModel(
                f"a draft for model type {config.model_type!r} cannot be trained: supported are "
                f"{', '.join(SUPPORTED)}"
            )
        architecture = architectures.find(config.model_type)(config)
        shape = (architecture.vocab_size, architecture.hidden_size)
        table = torch.from_numpy(weights.get("model.embed_tokens.weight", shape))
        tied = config.tie_word_embeddings
        cos, sin = (torch.from_numpy(part.copy()) for part in architecture.rotary_tables())
        return cls(
            config=config,
            num_layers=architecture.num_layers,
            num_heads=architecture.num_heads,
            num_key_value_heads=architecture.num_key_value_heads,
            head_size=architecture.head_size,
            hidden_size=architecture.hidden_size,
            unit_embedding=normalised(table, config.rms_norm_eps),
            head=table if tied else torch.from_numpy(weights.get("lm_head.weight", shape)),
            norm=torch.from_numpy(weights.get("model.norm.weight", shape[1:])),
            cos=cos,
            sin=sin,
        )

    def final_hidden(self, features: Tensor) -> Tensor:
        """What the LM head reads, from what enters the final norm: [N, H]."""
        return normalised(features, self.config.rms_norm_eps) * self.norm

    def to(self, *, device: torch.device, tables: torch.dtype = torch.float32) -> Target:
        """The same on another device.

        Args:
            tables: type of the embedding and of the head's rows.
        """
        return replace(
            self,
            unit_embedding=self.unit_embedding.to(device, tables),
            head=self.head.to(device, tables),
            norm=self.norm.to(device),
            cos=self.cos.to(device),
            sin=self.sin.to(device),
        )
