"""The knobs of both rooms: frozen, typed, strict, read once from config.pbtxt parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from specdec.errors import InvalidConfig

C = TypeVar("C", bound="DecoderConfig | SpeculativeConfig")


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidConfig(f"parameter {name} is {value}: allowed are {low} to {high}")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Parameters of a model that uses the `specdec` backend (target, draft or head)."""

    max_sequences: int = 16
    max_sequence_length: int = 2048  # capped by the model's own maximum
    num_threads: int = 0  # 0: one per processor this process may use
    device: int = 0  # which NVIDIA card, of those this process sees, holds a TensorRT plan
    artifact_dir: str = ""  # empty: the model's version directory

    def __post_init__(self) -> None:
        _check("max_sequences", self.max_sequences, 1, 256)
        _check("max_sequence_length", self.max_sequence_length, 16, 1 << 20)
        _check("num_threads", self.num_threads, 0, 1024)
        _check("device", self.device, 0, 255)

    @property
    def threads(self) -> int:
        return self.num_threads or len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Parameters of the `speculative` model."""

    target_model_name: str = "target"
    draft_model_name: str = ""  # empty: no draft model, the `draft_model` drafter is not offered
    head_model_name: str = ""  # empty: no trained head, the `eagle` drafter is not offered
    target_artifact_dir: str = ""  # empty: the target's version directory in this repository
    draft_artifact_dir: str = ""
    head_artifact_dir: str = ""  # empty: inside this model's version folder, else as the others
    target_in_process: bool = False  # run the target here; false: call the model of its name
    target_max_sequence_length: int = 2048  # of a target that runs here; capped by its own maximum
    target_num_threads: int = 0  # of a target that runs here; 0: one per processor
    target_device: int = 0  # of a target that runs here: its NVIDIA card
    head_in_process: bool = True  # run the head here; false: call the model of its name
    head_num_threads: int = 0  # of a head that runs here; 0: one per processor
    drafter: str = "auto"  # the default; a request may choose another
    num_draft_tokens: int = 8  # the default; a request may choose another
    adaptive: bool = True  # fewer than that where they do not pay; a request may choose
    max_draft_tokens: int = 16  # cap on what a request may ask
    max_running: int = 16  # also capped by the target's slots
    max_waiting: int = 128
    prefill_chunk_tokens: int = 128  # prompt tokens a step may carry while others decode
    idle_prefill_chunk_tokens: int = 256  # the same while nobody decodes
    max_prompt_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        _check("max_draft_tokens", self.max_draft_tokens, 0, 64)
        _check("num_draft_tokens", self.num_draft_tokens, 0, self.max_draft_tokens)
        _check("max_running", self.max_running, 1, 256)
        _check("target_max_sequence_length", self.target_max_sequence_length, 16, 1 << 20)
        _check("target_num_threads", self.target_num_threads, 0, 1024)
        _check("target_device", self.target_device, 0, 255)
        _check("head_num_threads", self.head_num_threads, 0, 1024)
        _check("max_waiting", self.max_waiting, 0, 100_000)
        _check("prefill_chunk_tokens", self.prefill_chunk_tokens, 1, 1 << 16)
        _check("idle_prefill_chunk_tokens", self.idle_prefill_chunk_tokens, 1, 1 << 16)
        _check("max_prompt_bytes", self.max_prompt_bytes, 1, 1 << 30)


def from_parameters(kind: type[C], parameters: Mapping[str, str]) -> C:
    """Build a config from Triton's string parameters.

    Raises `InvalidConfig`: unknown names, unfilled `${...}` templates and wrong types are errors.
    """
    known: dict[str, Any] = {f.name: f.default for f in fields(kind)}
    values: dict[str, Any] = {}
    for name, text in parameters.items():
        if name not in known:
            raise InvalidConfig(f"unknown parameter {name!r}: known are {', '.join(sorted(known))}")
        if "${" in text:
            raise InvalidConfig(f"parameter {name} still holds a template: {text!r}")
        values[name] = _value(name, text, type(known[name]))
    return kind(**values)


def _value(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InvalidConfig(f"parameter {name} is {text!r}: expected true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        wanted = kind.__name__
        raise InvalidConfig(f"parameter {name} is {text!r}: expected {wanted}") from None
