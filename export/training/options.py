"""What can be chosen: plain data, so that the command line loads nothing heavy for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from specdec.export.training.kinds import Kind


class Precision(str, Enum):
    """Of matrix products; weights and moments are float32 always."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class Start(str, Enum):
    """How a draft's blocks start."""

    random = "random"
    target = "target"  # as layers of the target: its last of a head, its first of others


@dataclass(frozen=True, slots=True)
class Writing:
    """How answers are written."""

    rounds: int = 2
    temperature: float = 0.8  # from the second round on
    num_self_prompts: int = 0  # that the target writes itself
    max_prompt_tokens: int = 256
    max_new_tokens: int = 192
    batch: int = 32
    seed: int = 0
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Draft:
    """What is trained."""

    kind: Kind = Kind.eagle
    layer: int | None = None  # see `head_config`
    num_blocks: int | None = None
    vocabulary_size: int = 4096
    start: Start = Start.random
    start_from: Path | None = None  # a trained folder: its weights
    held_out: float = 0.03


@dataclass(frozen=True, slots=True)
class Settings:
    """How it is trained, the schedule aside."""

    seed: int = 0
    rows_per_batch: int = 3072
    num_threads: int = 2  # that share a batch; also decides how its sums are rounded
    decay: float = 0.8  # of the loss from one step of a draft to the next
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.05
    clip: float = 0.5
    half: bool = True  # matrix products in bfloat16; weights and moments stay float32
    checkpoint_minutes: float = 5.0
