"""Runtimes: what evaluates an exported graph and owns the keys and values. One file each.

A file here has the function `load(artifact, directory, *, num_slots, num_threads) -> Runtime`;
an artifact names its file. Knows nothing of sequences, sampling or requests.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from specdec.artifact import Artifact
from specdec.decoder.batch import Batch
from specdec.errors import InvalidArtifact
from specdec.types import SamplingParams


class Draw(NamedTuple):
    """A token and its natural log-probability, NaN where that is not wanted."""

    token_id: int
    logprob: float


class Place(NamedTuple):
    """Where a token is to be drawn, and how."""

    row: int  # of a pass's logits
    sampling: SamplingParams
    position: int  # of the token: selects the noise


class Logits(Protocol):
    """Logits [R, V] of one pass; a NumPy array is one. Rows may be elsewhere until a slice of
    them is taken."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Any:
        """float32 [rows, V], a NumPy array."""
        ...


# Features of a pass's rows: float32 [N, feature_size].
Features = np.ndarray[Any, np.dtype[np.float32]]


# Keys and values of one slot's first positions: of every layer [Hkv, positions, D].
Content = list[np.ndarray[Any, Any]]


class Runtime(Protocol):
    """A loaded graph and its cache: keys and values of `num_slots` x `length` positions.

    One caller at a time. After a failed `forward` the positions it was to write are garbage.
    """

    num_slots: int
    length: int  # cache positions a slot has now, the graph's S
    max_length: int | None  # the most `resize` can give; None: as memory allows
    max_rows: int | None  # the most a pass can have, N, T and R each; None: as memory allows

    def forward(self, batch: Batch) -> Logits:
        """Evaluate one pass; return logits [R, V], valid until the next call.

        Writes keys and values of slots [first, last) at write_index ... write_index + T - 1.
        """
        ...

    def forward_with_features(self, batch: Batch) -> tuple[Logits, Features]:
        """The same, and the features of all N rows, valid as long. Needs a graph that has some."""
        ...

    def draw(self, logits: Any, places: Seq[Place], num_tokens: int) -> list[Draw] | None:
        """What `sample` draws at each of `places` from ids below `num_tokens` of what `forward`
        returned, where `leaves_logits` holds of every sampling; None where rows are cheap to read
        and the caller should draw.

        A runtime answers always or never, so that a sequence's draws are all of one kind.
        Raises `DecoderFailed`: a logit is not finite.
        """
        ...

    def likeliest(
        self, logits: Any, rows: slice, num_tokens: int, count: int
    ) -> list[list[int]] | None:
        """The `count` ids below `num_tokens` of the largest logits, in falling order, of equal
        ones the lowest, at some rows of what `forward` returned; None as in `draw`.
        """
        ...

    def resize(self, length: int, kept: Seq[int]) -> None:
        """Give every slot `length` positions; slot i keeps its first `kept[i]` (<= length)."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        ...

    def read(self, slot: int, length: int) -> Content:
        """Copy the first `length` positions of a slot out of the cache."""
        ...

    def write(self, slot: int, content: Content, length: int) -> None:
        """Copy the first `length` positions of what `read` gave into a slot."""
        ...


def load_runtime(
    artifact: Artifact, directory: Path, *, num_slots: int, num_threads: int, device: int = 0
) -> Runtime:
    """Load the artifact's graph with the runtime it names.

    Args:
        num_threads: of a runtime on the processor.
        device: number of the card, of one on NVIDIA's.

    Raises `InvalidArtifact`: no such runtime, or the graph cannot be loaded.
    """
    modules = {m.name.replace("_", "-"): m.name for m in pkgutil.iter_modules(__path__)}
    if artifact.runtime not in modules:
        known = ", ".join(sorted(modules))
        raise InvalidArtifact(f"{directory} needs runtime {artifact.runtime!r}: known are {known}")
    module = importlib.import_module(f"{__name__}.{modules[artifact.runtime]}")
    runtime: Runtime = module.load(
        artifact, directory, num_slots=num_slots, num_threads=num_threads, device=device
    )
    return runtime
