"""A head in the process of its caller: for one so small, the way to another process and back takes
a third as long as its passes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TypeVar

from specdec.artifact import Artifact
from specdec.config import DecoderConfig
from specdec.decoder.head import load_head
from specdec.errors import DecoderFailed, SpecdecError
from specdec.types import DecoderInfo, Head, HeadCall, HeadResult, SamplingParams

T = TypeVar("T")

logger = logging.getLogger(__name__)

_ANY_LENGTH = 1 << 20  # the head's own limit counts: its cache grows as it is needed


class LocalHead:
    """See `Head`. Whatever goes wrong is a `DecoderFailed`, as of one behind a wire: requests lose
    its drafts and nothing else."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def describe(self) -> DecoderInfo:
        return self._guarded(self._head.describe)

    def reset(self) -> None:
        self._guarded(self._head.reset)

    def open(self, sequence_id: int, prompt_ids: Seq[int], sampling: SamplingParams) -> int:
        return self._guarded(lambda: self._head.open(sequence_id, prompt_ids, sampling))

    def draft(self, calls: Seq[HeadCall]) -> HeadResult:
        return self._guarded(lambda: self._head.draft(calls))

    def close(self, sequences: Seq[tuple[int, int]]) -> None:
        self._guarded(lambda: self._head.close(sequences))

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except SpecdecError:
            raise
        except Exception as error:
            logger.exception("the head failed")
            raise DecoderFailed("internal error of the head, see the server's log") from error


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
