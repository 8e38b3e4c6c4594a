"""ONNX Runtime on the CPU. Keys and values live in NumPy arrays and are updated in place.

    slots  0 1 2 3 4 5 6 7     one array [num_slots, Hkv, S, D] for each layer's keys, and values
               ^^^^^           a pass over slots [2, 5) binds their memory as past and as present

`past_*` and `present_*` are bound to the same memory, so `TensorScatter` writes only the new
positions and nothing is copied.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from specdec.artifact import GRAPH, Artifact
from specdec.decoder.batch import INPUTS, Batch
from specdec.decoder.runtimes import Content, Features, Place
from specdec.errors import DecoderFailed, InvalidArtifact

Array = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

FIRST_LENGTH = 256  # cache positions before anything needs more
MAX_BINDINGS = 16
_ALIGNMENT = 64  # bytes; a cache line, and what ONNX Runtime gives its own tensors


def _aligned(shape: tuple[int, ...]) -> Array:
    """Zeroed float32 array that starts on a cache line. The system maps pages when touched."""
    size = int(np.prod(shape)) * 4
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    return raw[offset : offset + size].view(np.float32).reshape(shape)


class Pass(Protocol):
    """What a graph is fed: a `Batch`, or what another kind of model needs."""

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    def inputs(self) -> dict[str, Array]: ...


class OnnxRuntime:
    """See `Runtime`."""

    max_length: int | None = None
    max_rows: int | None = None

    def __init__(self, session: Any, artifact: Artifact, *, num_slots: int) -> None:
        self.num_slots = num_slots
        self.length = FIRST_LENGTH
        self._session = session
        self._row_shape = (artifact.num_key_value_heads, artifact.head_size)  # of one position
        names = [f"{kind}_{i}" for i in range(artifact.num_layers) for kind in ("key", "value")]
        # What `resize` gives up stays ours: fresh pages cost more than moving what they hold.
        self._memory = {name: _aligned((self._num_values(FIRST_LENGTH),)) for name in names}
        self._caches = {name: self._view(name, FIRST_LENGTH) for name in names}
        sizes = {"logits": artifact.vocab_size, "features": artifact.feature_size}
        self._outputs = {name: _aligned((1, size)) for name, size in sizes.items()}
        # (first, last, outputs) -> binding of those slots' memory: 2 x 2 x layers calls that only
        # change with `resize`. Each keeps the other inputs of its last pass alive, so few stay.
        self._bindings: dict[tuple[int, int, tuple[str, ...]], Any] = {}

    def _num_values(self, length: int) -> int:
        heads, size = self._row_shape
        return self.num_slots * heads * length * size

    def _new_memory(self, length: int) -> Array:
        """For `length` positions, and later up to twice as many: pages are mapped when touched."""
        try:
            return _aligned((self._num_values(1 << (length - 1).bit_length()),))
        except MemoryError:
            return _aligned((self._num_values(length),))

    def _view(self, name: str, length: int) -> Array:
        """A cache [num_slots, Hkv, length, D] at the beginning of its memory."""
        heads, size = self._row_shape
        memory = self._memory[name][: self._num_values(length)]
        return memory.reshape(self.num_slots, heads, length, size)

    def forward(self, batch: Batch) -> Array:
        """See `Runtime`. Raises `DecoderFailed` with ONNX Runtime's reason."""
        (logits,) = self._evaluate(batch, logits=len(batch.output_rows))
        return logits

    def forward_with_features(self, batch: Batch) -> tuple[Array, Features]:
        """See `Runtime`. Raises `DecoderFailed` with ONNX Runtime's reason."""
        num_rows = {"logits": len(batch.output_rows), "features": len(batch.input_ids)}
        logits, features = self._evaluate(batch, **num_rows)
        return logits, features

    def _evaluate(self, batch: Pass, **num_rows: int) -> list[Array]:
        """The outputs that are named, of so many rows each."""
        binding = self._binding(batch.first, batch.last, tuple(num_rows))
        inputs = {name: np.ascontiguousarray(a) for name, a in batch.inputs().items()}
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        outputs = [self._room_for(name, count) for name, count in num_rows.items()]
        for name, array in zip(num_rows, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype, list(array.shape), array.ctypes.data)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's exceptions share no other base class
            self._bindings.clear()
            raise DecoderFailed(f"the forward pass failed: {error}") from error
        return outputs

    def draw(self, logits: Any, places: Seq[Place], num_tokens: int) -> None:
        """See `Runtime`: rows lie in this process's memory."""

    def likeliest(self, logits: Any, rows: slice, num_tokens: int, count: int) -> None:
        """See `Runtime`: rows lie in this process's memory."""

    def _room_for(self, output: str, num_rows: int) -> Array:
        room = self._outputs[output]
        if num_rows > len(room):
            room = self._outputs[output] = _aligned((num_rows, room.shape[1]))
        return room[:num_rows]

    def _binding(self, first: int, last: int, outputs: tuple[str, ...]) -> Any:
        """Of the cache; what else was ever bound to it stays bound, so one for each `outputs`."""
        binding = self._bindings.pop((first, last, outputs), None)
        if binding is None:
            binding = self._session.io_binding()
            for name, cache in self._caches.items():
                part = cache[first:last]
                memory = ("cpu", 0, np.float32, list(part.shape), part.ctypes.data)
                binding.bind_input(f"past_{name}", *memory)
                binding.bind_output(f"present_{name}", *memory)
            if len(self._bindings) == MAX_BINDINGS:
                del self._bindings[next(iter(self._bindings))]
        self._bindings[first, last, outputs] = binding
        return binding

    def resize(self, length: int, kept: Seq[int]) -> None:
        """See `Runtime`. In place where memory allows, else one layer at a time; no memory is ever
        given back."""
        self._bindings.clear()
        heads, _ = self._row_shape
        parts = [(slot, head) for slot, count in enumerate(kept) if count for head in range(heads)]
        if length > self.length:
            parts.reverse()  # a part must not be overwritten by one that comes before it
        for name, old in self._caches.items():
            if self._num_values(length) > self._memory[name].size:
                self._memory[name] = self._new_memory(length)
            new = self._view(name, length)
            for slot, head in parts:
                new[slot, head, : kept[slot]] = old[slot, head, : kept[slot]]
            self._caches[name] = new
        self.length = length

    def copy(self, source: int, target: int, length: int) -> None:
        """See `Runtime`."""
        for cache in self._caches.values():
            cache[target, :, :length] = cache[source, :, :length]

    def read(self, slot: int, length: int) -> Content:
        """See `Runtime`."""
        return [cache[slot, :, :length].copy() for cache in self._caches.values()]

    def write(self, slot: int, content: Content, length: int) -> None:
        """See `Runtime`."""
        for cache, part in zip(self._caches.values(), content, strict=True):
            cache[slot, :, :length] = part[:, :length]


def load(
    artifact: Artifact, directory: Path, *, num_slots: int, num_threads: int, device: int
) -> OnnxRuntime:
    """Create the session. Raises `InvalidArtifact` if the graph is missing or does not fit."""
    session, path = open_session(directory, num_threads)
    _check(session, artifact, path)
    if artifact.precision == "w8a8" and saturates():
        logger.warning("%s: w8a8 on a processor without VNNI rounds more; int8 does not", path)
    return OnnxRuntime(session, artifact, num_slots=num_slots)


def saturates() -> bool:
    """Whether sums of two products of bytes can be too large for what holds them here.

    ONNX Runtime's kernels for x86 without VNNI add such pairs in 16 bits.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False  # not known


def open_session(directory: Path, num_threads: int) -> tuple[Any, Path]:
    """The session of an artifact's graph, and the file it is from. Raises `InvalidArtifact`."""
    path = (directory / GRAPH).resolve()  # the weights lie beside the file, not beside a link
    if not path.is_file():
        raise InvalidArtifact(f"no graph in {directory} ({GRAPH} is missing): export again")
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 3
    # Threads spin inside a run (15 % faster steps) and sleep between runs: another process then
    # has the processors.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Patterns are remembered for every combination of shapes, and ours never stop varying.
    options.enable_mem_pattern = False
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no other base class
        raise InvalidArtifact(f"{path} cannot be loaded: {error}") from error
    return session, path


def check_cache(session: Any, artifact: Artifact, path: Path) -> dict[str, list[Any]]:
    """Compare the graph's cache with its description: a mix-up would read foreign memory.

    Returns the shapes of the other inputs. Raises `InvalidArtifact`.
    """
    shapes = {tensor.name: tensor.shape for tensor in session.get_inputs()}
    wanted = [artifact.num_key_value_heads, artifact.head_size]
    for i in range(artifact.num_layers):
        for name in (f"past_key_{i}", f"past_value_{i}"):
            shape = shapes.pop(name, None)
            if shape is None or [shape[1], shape[3]] != wanted:
                raise InvalidArtifact(
                    f"{path}: {name} is {shape}, expected [B, {wanted[0]}, S, {wanted[1]}]"
                )
    return shapes


def _check(session: Any, artifact: Artifact, path: Path) -> None:
    """Compare the graph with its description."""
    shapes = check_cache(session, artifact, path)
    if set(shapes) != set(INPUTS):
        raise InvalidArtifact(f"{path}: inputs are {sorted(shapes)}, expected {sorted(INPUTS)}")
    columns = {tensor.name: tensor.shape[-1] for tensor in session.get_outputs()}
    for name, size in (("logits", artifact.vocab_size), ("features", artifact.feature_size)):
        if columns.get(name, 0) != size:
            raise InvalidArtifact(
                f"{path}: {name} have {columns.get(name, 0)} columns, expected {size}"
            )
