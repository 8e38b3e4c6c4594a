"""Memory and streams of one NVIDIA card, through torch, which only this file imports.

Knows nothing of TensorRT, plans or caches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from specdec.decoder import device_sampling
from specdec.decoder.runtimes import Draw, Place
from specdec.errors import DecoderFailed, InvalidArtifact

Array = np.ndarray[Any, Any]


class Cuda:
    """What is needed of torch. Tests put the processor's memory in its place."""

    captures = True

    def __init__(self, device: int = 0) -> None:
        """`device`: number of the card. Raises `InvalidArtifact`: no torch, or no such card."""
        try:
            import torch
        except ModuleNotFoundError:
            raise InvalidArtifact("a TensorRT plan needs torch: pip install torch") from None
        if not torch.cuda.is_available():
            raise InvalidArtifact("a TensorRT plan needs an NVIDIA card: torch finds none")
        found = torch.cuda.device_count()
        if device >= found:
            raise InvalidArtifact(
                f"device is {device}: this process sees {found} NVIDIA cards, from 0 on"
            )
        self.torch: Any = torch
        self.name = f"cuda:{device}"
        self._stream = self.torch.cuda.Stream(device=self.name)

    @property
    def capability(self) -> str:
        return "SM{}{}".format(*self.torch.cuda.get_device_capability(self.name))

    @property
    def stream(self) -> int:
        return int(self._stream.cuda_stream)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Work inside is queued in the stream, on its card."""
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


@contextlib.contextmanager
def _faults() -> Iterator[None]:
    """`DecoderFailed` for what torch raises for every fault of CUDA."""
    try:
        yield
    except RuntimeError as error:
        raise DecoderFailed(f"the card failed behind the forward pass: {error}") from error


class DeviceLogits:
    """Logits [R, V] on the card; a slice of rows is read when it is taken."""

    def __init__(self, cuda: Any, rows: Any) -> None:
        self._cuda, self._rows = cuda, rows

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    def __getitem__(self, rows: slice) -> Array:
        with _faults(), self._cuda.active():
            found: Array = self._rows[rows].cpu().numpy()
        return found

    def draw(self, places: Seq[Place], num_tokens: int) -> list[Draw]:
        """See `device_sampling.draw`."""
        with _faults(), self._cuda.active():
            return device_sampling.draw(self._cuda.torch, self._rows, places, num_tokens)

    def likeliest(self, rows: slice, num_tokens: int, count: int) -> list[list[int]]:
        """What `specdec.sampling.likeliest` finds among ids below `num_tokens`, row by row."""
        with _faults(), self._cuda.active():
            found = self._rows[rows, :num_tokens]
            return device_sampling.likeliest(self._cuda.torch, found, count)
