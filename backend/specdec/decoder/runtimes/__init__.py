"""Runtimes: what evaluates an exported graph and owns the keys and values. One file each.

A file here has the function `load(artifact, directory, *, num_slots, num_threads) -> Runtime`;
an artifact names its file. Knows nothing of sequences, sampling or requests.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from specdec.artifact import Artifact
from specdec.decoder.batch import Batch
from specdec.errors import InvalidArtifact


class Runtime(Protocol):
    """A loaded graph and its cache: keys and values of `num_slots` x `length` positions.

    One caller at a time. After a failed `forward` the positions it was to write are garbage.
    """

    num_slots: int
    length: int  # cache positions a slot has now, the graph's S

    def forward(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate one pass; return logits [R, V], valid until the next call.

        Writes keys and values of slots [first, last) at write_index ... write_index + T - 1.
        """
        ...

    def resize(self, length: int, kept: Seq[int]) -> None:
        """Give every slot `length` positions; slot i keeps its first `kept[i]` (<= length)."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        ...


def load_runtime(
    artifact: Artifact, directory: Path, *, num_slots: int, num_threads: int
) -> Runtime:
    """Load the artifact's graph with the runtime it names.

    Raises `InvalidArtifact`: no such runtime, or the graph cannot be loaded.
    """
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if artifact.runtime not in known:
        raise InvalidArtifact(
            f"{directory} needs runtime {artifact.runtime!r}: known are {', '.join(known)}"
        )
    module = importlib.import_module(f"{__name__}.{artifact.runtime}")
    runtime: Runtime = module.load(
        artifact, directory, num_slots=num_slots, num_threads=num_threads
    )
    return runtime
