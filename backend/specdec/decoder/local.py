"""Models in the process of their caller: the way to another process and back takes a third as long
as a small head's passes do, and a twentieth of a small target's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Generic, TypeVar

from specdec.artifact import Artifact
from specdec.config import DecoderConfig
from specdec.decoder.decoder import load_decoder
from specdec.decoder.head import load_head
from specdec.errors import DecoderFailed, SpecdecError
from specdec.types import (
    Decoder,
    DecoderInfo,
    Extend,
    ExtendResult,
    Head,
    HeadCall,
    HeadResult,
    SamplingParams,
)

M = TypeVar("M", bound="Decoder | Head")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_ANY_LENGTH = 1 << 20  # the head's own limit counts: its cache grows as it is needed


class _Local(Generic[M]):
    """Whatever goes wrong is a `DecoderFailed`, as of a model behind a wire."""

    def __init__(self, model: M) -> None:
        self._model = model

    def describe(self) -> DecoderInfo:
        return self._guarded(self._model.describe)

    def reset(self) -> None:
        self._guarded(self._model.reset)

    def close(self, sequences: Seq[tuple[int, int]]) -> None:
        self._guarded(lambda: self._model.close(sequences))

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except DecoderFailed:
            raise
        except SpecdecError as error:
            raise DecoderFailed(str(error)) from error
        except Exception as error:
            logger.exception("a model of this process failed")
            raise DecoderFailed("internal error of a model, see the server's log") from error


class LocalHead(_Local[Head]):
    """See `Head`: requests lose a failing one's drafts and nothing else."""

    def open(
        self,
        sequence_id: int,
        prompt_ids: Seq[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
        first: int = 0,
    ) -> int:
        return self._guarded(
            lambda: self._model.open(sequence_id, prompt_ids, sampling, cache_salt, first)
        )

    def draft(self, calls: Seq[HeadCall]) -> HeadResult:
        return self._guarded(lambda: self._model.draft(calls))


class LocalDecoder(_Local[Decoder]):
    """See `Decoder`."""

    def __init__(self, decoder: Decoder, before_pass: Callable[[], None] = lambda: None) -> None:
        """`before_pass` is called when this thread is about to wait for a pass; it may raise
        `DecoderFailed`."""
        super().__init__(decoder)
        self._before_pass = before_pass

    def open(
        self,
        sequence_id: int,
        prompt_ids: Seq[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
    ) -> int:
        return self._guarded(
            lambda: self._model.open(sequence_id, prompt_ids, sampling, cache_salt)
        )

    def extend(self, calls: Seq[Extend]) -> ExtendResult:
        self._before_pass()
        return self._guarded(lambda: self._model.extend(calls))


def load_local_head(directory: Path, *, max_sequences: int, num_threads: int) -> LocalHead:
    """Load an exported head.

    Args:
        directory: the artifact's.
        num_threads: 0: one per processor.

    Raises `InvalidArtifact`: it is missing or damaged, or no head.
    """
    artifact = Artifact.read_head(directory)
    sizes = DecoderConfig(
        max_sequences=max_sequences, max_sequence_length=_ANY_LENGTH, num_threads=num_threads
    )
    return LocalHead(load_head(sizes, artifact, directory))


def load_local_decoder(
    directory: Path, config: DecoderConfig, before_pass: Callable[[], None] = lambda: None
) -> LocalDecoder:
    """Load an exported target.

    Args:
        directory: the artifact's.
        before_pass: see `LocalDecoder`.

    Raises `InvalidArtifact`: it is missing or damaged.
    """
    return LocalDecoder(load_decoder(config, directory), before_pass)
