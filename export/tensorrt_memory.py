"""How much memory of a card a plan will need, told from the model's config before any work.

An estimate: weights and cache are exact to a percent, the workspace is an upper bound of what
TensorRT keeps of one pass at the largest shapes.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple

from specdec.errors import InvalidRequest, UnsupportedModel
from specdec.export.exporter import VERSION_DIRECTORY
from specdec.export.tensorrt_graph import TensorRTPrecision
from specdec.plan import Plan

GIB = 1 << 30
# CUDA's own context, kernels, temporaries of draws, and what the allocator cannot use; every model
# is a process and has its own.
_CONTEXT_BYTES = GIB
_REAL_BYTES = 2  # activations, cache, embedding table


class Card(NamedTuple):
    capability: str
    memory_gib: float


# What `--card` knows; any other card: --capability and --memory-gib.
CARDS = {
    "t4": Card("SM75", 15),
    "a100-40gb": Card("SM80", 40),
    "a100-80gb": Card("SM80", 80),
    "a10": Card("SM86", 23),
    "rtx-3090": Card("SM86", 24),
    "l4": Card("SM89", 23),
    "l40s": Card("SM89", 45),
    "rtx-4090": Card("SM89", 24),
    "h100-80gb": Card("SM90", 80),
    "h200": Card("SM90", 140),
    "b200": Card("SM100", 180),
    "rtx-5090": Card("SM120", 32),
    "rtx-pro-6000": Card("SM120", 95),
    "dgx-spark": Card("SM121", 119),
}


def find_card(name: str) -> Card:
    """Raises `InvalidRequest` listing what is known."""
    if name not in CARDS:
        raise InvalidRequest(
            f"--card {name!r} is not known: known are {', '.join(CARDS)}; for any other, "
            f"--capability and --memory-gib"
        )
    return CARDS[name]


class Estimate(NamedTuple):
    """Bytes on the card."""

    weights: int
    cache: int
    workspace: int

    @property
    def total(self) -> int:
        return sum(self) + _CONTEXT_BYTES

    def __str__(self) -> str:
        parts = zip(self._fields, self, strict=True)
        listed = ", ".join(f"{name} {count / GIB:.2f}" for name, count in parts)
        return f"{listed}, CUDA {_CONTEXT_BYTES / GIB:.0f}: {self.total / GIB:.2f} GiB in all"


def estimate(
    architecture: Any,
    precision: TensorRTPrecision,
    *,
    max_sequences: int,
    max_rows: int,
    cache_length: int,
) -> Estimate:
    """What `architecture` (of architectures/) will need at these limits."""
    model, hidden = architecture, architecture.hidden_size
    attention = (2 * model.num_heads + 2 * model.num_key_value_heads) * model.head_size * hidden
    wide = model.config.intermediate_size
    layers = model.num_layers * (attention + 3 * hidden * wide)
    table = model.vocab_size * hidden
    head_bits = max(precision.bits, 8)  # see TensorRTForm.product
    weights = (layers * precision.bits + table * head_bits) // 8 + table * _REAL_BYTES
    if precision is TensorRTPrecision.int4:  # a scale for every 128 or fewer weights
        weights += layers // 64 * _REAL_BYTES
    positions = max_sequences * cache_length * model.num_layers
    row = model.num_key_value_heads * model.head_size * _REAL_BYTES
    places = max_sequences * max_rows
    heads = (model.num_heads + 2 * model.num_key_value_heads) * model.head_size
    workspace = places * (3 * heads * _REAL_BYTES + cache_length)
    workspace += max_rows * (4 * hidden + 3 * wide) * _REAL_BYTES
    workspace += max_rows * (model.vocab_size + model.feature_size) * (_REAL_BYTES + 4)
    return Estimate(weights, 2 * positions * row, workspace)


class Neighbour(NamedTuple):
    """An exported model that is to share the card."""

    name: str
    needed: Estimate

    @classmethod
    def read(cls, directory: Path) -> Neighbour:
        """Of a Triton model directory. Raises `InvalidArtifact`: there is no plan in it."""
        plan = Plan.read(directory / VERSION_DIRECTORY)
        return cls(directory.name, Estimate(**plan.memory))


def together(needed: Estimate, beside: Seq[Neighbour]) -> str:
    """What one model and those beside it need, for people."""
    if not beside:
        return str(needed)
    others = ", ".join(f"{other.name} {other.needed.total / GIB:.2f}" for other in beside)
    total = needed.total + sum(other.needed.total for other in beside)
    return f"{needed}; beside it {others}: {total / GIB:.2f} GiB together"


def refuse_too_large(
    needed: Estimate, *, card: str, memory_gib: float, beside: Seq[Neighbour] = ()
) -> None:
    """Raises `UnsupportedModel` when it cannot fit."""
    if needed.total + sum(other.needed.total for other in beside) > memory_gib * GIB:
        raise UnsupportedModel(
            f"this does not fit {card} ({memory_gib:g} GiB): {together(needed, beside)}; lower "
            f"--max-sequences, --max-sequence-length or --max-rows, or choose --precision int8 or "
            f"int4"
        )
