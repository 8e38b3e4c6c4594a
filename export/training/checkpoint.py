"""A training's whole state in one file, replaced in one move.

There is no other randomness than the order of batches, which is a function of seed and epoch; so
weights, moments and three counters are all that a resumed training needs to go on to the bit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec.errors import InvalidArtifact

FILE = "checkpoint.pt"


@dataclass(slots=True)
class Position:
    """How far a training is."""

    step: int = 0  # batches done in all
    epoch: int = 0
    batch: int = 0  # of this epoch, the next one
    seconds: float = 0.0  # of training, those before an interruption included


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    position: Position
    settings: dict[str, Any]  # a resumed training must have the same
    head: dict[str, Any]
    optimizer: dict[str, Any]
    history: list[dict[str, float]]

    def write(self, directory: Path) -> None:
        """Atomic: a reader sees the file before or the one after."""
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f".{FILE}-{os.getpid()}"
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        position = {name: getattr(self.position, name) for name in Position.__dataclass_fields__}
        torch.save({**fields, "position": position}, partial)
        os.replace(partial, directory / FILE)

    @classmethod
    def read(cls, directory: Path) -> Checkpoint | None:
        """None where there is none; raises `InvalidArtifact` where it cannot be read."""
        path = directory / FILE
        if not path.is_file():
            return None
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            return cls(**{**found, "position": Position(**found["position"])})
        except Exception as error:  # unpickling raises whatever the file's bytes provoke
            raise InvalidArtifact(f"{path} cannot be read: {error}") from error
