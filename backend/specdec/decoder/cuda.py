"""Memory and streams of one NVIDIA card, through torch, which only this file imports.

Knows nothing of TensorRT, plans or caches.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from specdec.decoder.runtimes import Draw
from specdec.errors import DecoderFailed, InvalidArtifact

Array = np.ndarray[Any, Any]

_ROWS_AT_ONCE = 16  # temporaries of 16 bytes for each of their logits
_SCALE = 1 << 43
_MAX_TOKENS = 1 << 19  # so many shares of at most _SCALE fit 63 bits


class Cuda:
    """What is needed of torch. Tests put the processor's memory in its place."""

    name = "cuda"
    captures = True

    def __init__(self) -> None:
        """Raises `InvalidArtifact`: no torch, or no card."""
        try:
            import torch
        except ModuleNotFoundError:
            raise InvalidArtifact("a TensorRT plan needs torch: pip install torch") from None
        if not torch.cuda.is_available():
            raise InvalidArtifact("a TensorRT plan needs an NVIDIA card: torch finds none")
        self.torch: Any = torch
        self._stream = self.torch.cuda.Stream()

    @property
    def capability(self) -> str:
        return "SM{}{}".format(*self.torch.cuda.get_device_capability())

    @property
    def stream(self) -> int:
        return int(self._stream.cuda_stream)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Work inside is queued in the stream."""
        with self.torch.cuda.stream(self._stream):
            yield

    def synchronize(self) -> None:
        self._stream.synchronize()

    def pinned(self, size: int, dtype: Any) -> Any:
        return self.torch.zeros(size, dtype=dtype).pin_memory()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record what `run` queues; the result replays it."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self._stream):
            run()
        replay: Callable[[], None] = graph.replay
        return replay


class Buffer:
    """An input on the card with its staging area on the host; neither moves."""

    def __init__(self, cuda: Any, size: int, dtype: Any) -> None:
        self.staging = cuda.pinned(size, dtype)
        self.device = cuda.torch.zeros(size, dtype=dtype, device=cuda.name)
        self._view: Array = self.staging.numpy()

    @property
    def address(self) -> int:
        return int(self.device.data_ptr())

    def write(self, array: Array) -> None:
        """Queue the copy. The stream must have used what was written before."""
        self._view[: array.size] = array.reshape(-1)
        self.device[: array.size].copy_(self.staging[: array.size], non_blocking=True)


class DeviceLogits:
    """Logits [R, V] on the card; a slice of rows is read when it is taken."""

    def __init__(self, cuda: Any, rows: Any) -> None:
        self._cuda, self._rows = cuda, rows

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    def __getitem__(self, rows: slice) -> Array:
        with self._cuda.active():
            found: Array = self._rows[rows].cpu().numpy()
        return found

    def most_likely(self, rows: slice, num_tokens: int) -> list[Draw]:
        """What `specdec.sampling.sample` draws greedily from ids below `num_tokens`.

        Of equally likely ids the lowest. The mass behind a log-probability is summed in integers
        of 2^-43, whose order cannot matter: it depends on the row alone, whatever stands beside.

        Raises `DecoderFailed`: a logit is NaN or infinite.
        """
        with self._cuda.active():
            parts = self._rows[rows, :num_tokens].split(_ROWS_AT_ONCE)
            return [draw for part in parts for draw in _most_likely(self._cuda.torch, part)]

    def likeliest(self, rows: slice, num_tokens: int, count: int) -> list[list[int]]:
        """What `specdec.sampling.likeliest` finds among ids below `num_tokens`, row by row."""
        with self._cuda.active():
            parts = self._rows[rows, :num_tokens].split(_ROWS_AT_ONCE)
            return [ids for part in parts for ids in _likeliest(self._cuda.torch, part, count)]


def _likeliest(torch: Any, logits: Any, count: int) -> list[list[int]]:
    """logits float32 [R, num_tokens], finite.

    A float's bits, those below the sign flipped where it is set, order as the float does. The id
    goes below them: `topk` chooses among equal values as it likes, and no two of these are equal.
    """
    bits = (logits + 0.0).view(torch.int32).long()  # -0.0 becomes 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(logits.shape[1], device=logits.device)
    found: list[list[int]] = ((ordered << 32) - ids).topk(count, dim=1).indices.tolist()
    return found


def _most_likely(torch: Any, logits: Any) -> list[Draw]:
    """logits float32 [R, num_tokens]."""
    num_tokens = logits.shape[1]
    assert num_tokens <= _MAX_TOKENS, num_tokens
    peaks = logits.amax(dim=1, keepdim=True)
    shares = (logits - peaks).double().exp()
    masses = (shares * _SCALE).round().long().sum(dim=1)
    ids = torch.arange(num_tokens, device=logits.device)
    best = torch.where(logits == peaks, ids, num_tokens).amin(dim=1)
    if not bool(torch.isfinite(logits).all()):
        raise DecoderFailed("some logits are not finite")
    return [
        Draw(token_id, -math.log(mass / _SCALE))
        for token_id, mass in zip(best.tolist(), masses.tolist(), strict=True)
    ]
