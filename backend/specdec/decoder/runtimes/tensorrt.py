"""TensorRT and TensorRT-RTX on one NVIDIA card.

    slots  0 1 2 3 4 5 6 7     one tensor [num_slots, Hkv, S, D] for each layer's keys, and values
               ^^^^^           a pass over slots [2, 5) has their addresses as past and as present

Everything happens in one CUDA stream. Inputs lie in buffers that never move; passes are padded to
a few shapes (see buckets.py), and one that comes again is replayed as a CUDA graph. Logits stay
on the card until rows of them are read.

A graph goes on with the state of the execution context that it was recorded from, and other shapes
change that state. So each graph has a context of its own (what TensorRT's developer guide advises
for dynamic shapes, "CUDA Graphs"); as they never run at once, all share one scratch memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from specdec.artifact import Artifact
from specdec.decoder.batch import MAX_SHARED_ROWS, Batch
from specdec.decoder.buckets import pad
from specdec.decoder.cuda import Buffer, Cuda, DeviceLogits
from specdec.decoder.loaded_plan import LoadedPlan, load_plan
from specdec.decoder.runtimes import Content, Draw, Features, Place
from specdec.errors import DecoderFailed, InvalidArtifact
from specdec.plan import PLAN, Plan, import_tensorrt

_FIRST_LENGTH = 256  # cache positions in use before anything needs more
_MAX_GRAPHS = 32  # that are kept; the one not used longest goes, and its context
_MAX_SEEN = 1024  # passes that came once and are not recorded yet
_GRAPH_PLACES = 32  # passes of more places compute for long: a replay would save nothing

log = logging.getLogger(__name__)


class _Pass(NamedTuple):
    """What decides the addresses and shapes of a pass: equal ones can be replayed."""

    first: int
    last: int
    places: int
    num_rows: int
    num_outputs: int


class TensorRTRuntime:
    """See `Runtime`."""

    def __init__(
        self,
        loaded: LoadedPlan,
        cuda: Any,
        *,
        plan: Plan,
        artifact: Artifact,
        num_slots: int,
    ) -> None:
        """Raises `RuntimeError`: the card has not enough memory."""
        torch = cuda.torch
        self.num_slots = num_slots
        self.length = min(_FIRST_LENGTH, plan.cache_length)
        self.max_length: int | None = plan.cache_length
        self.max_rows: int | None = plan.max_rows
        self._loaded, self._cuda, self._plan = loaded, cuda, plan
        shape = (num_slots, artifact.num_key_value_heads, plan.cache_length, artifact.head_size)
        dtype = getattr(torch, plan.dtype)
        self._caches = {
            f"{kind}_{i}": torch.zeros(shape, dtype=dtype, device=cuda.name)
            for i in range(artifact.num_layers)
            for kind in ("key", "value")
        }
        places = max(num_slots * MAX_SHARED_ROWS, plan.max_rows)
        sizes = {
            "input_ids": plan.max_rows,
            "row_index": places,
            "flat_index": plan.max_rows,
            "position_ids": places,
            "write_index": num_slots,
            "output_rows": plan.max_rows,
        }
        self._inputs = {name: Buffer(cuda, size, torch.int64) for name, size in sizes.items()}
        self._inputs["attention_mask"] = Buffer(cuda, places * plan.cache_length, torch.bool)
        self._logits = torch.zeros(
            (plan.max_rows, artifact.vocab_size), dtype=torch.float32, device=cuda.name
        )
        # A plan writes all its outputs, wanted or not; one of no size is not there.
        self._features = torch.zeros(
            (plan.max_rows, artifact.feature_size), dtype=torch.float32, device=cuda.name
        )
        self._context = loaded.new_context()  # of passes that are not recorded
        self._captures = cuda.captures and plan.runtime == "tensorrt"  # RTX captures by itself
        self._replays: OrderedDict[_Pass, Callable[[], None]] = OrderedDict()
        self._seen: OrderedDict[_Pass, None] = OrderedDict()

    def forward(self, batch: Batch) -> DeviceLogits:
        """See `Runtime`. Raises `DecoderFailed` with TensorRT's or CUDA's reason."""
        plan = self._plan
        arrays = pad(batch, cache_length=plan.cache_length, max_rows=plan.max_rows)
        key = _Pass(
            batch.first,
            batch.last,
            arrays["row_index"].shape[1],
            arrays["input_ids"].size,
            arrays["output_rows"].size,
        )
        try:
            with self._cuda.active():
                for name, array in arrays.items():
                    self._inputs[name].write(array)
                self._run(key, {name: array.shape for name, array in arrays.items()})
            self._cuda.synchronize()
        except RuntimeError as error:  # what torch raises for every fault of CUDA
            with contextlib.suppress(RuntimeError):  # what is queued still uses its context
                self._cuda.synchronize()
            self._replays.clear()
            raise DecoderFailed(f"the forward pass failed: {error}") from error
        return DeviceLogits(self._cuda, self._logits[: len(batch.output_rows)])

    def forward_with_features(self, batch: Batch) -> tuple[DeviceLogits, Features]:
        """See `Runtime`."""
        logits = self.forward(batch)
        with self._cuda.active():
            features: Features = self._features[: len(batch.input_ids)].cpu().numpy()
        return logits, features

    def _run(self, key: _Pass, shapes: dict[str, tuple[int, ...]]) -> None:
        """Replay the pass if it was recorded, else queue it; record it when it comes again."""
        replay = self._replays.get(key)
        if replay is not None:
            self._replays.move_to_end(key)
            replay()
            return
        context = self._context_of(key)
        try:
            self._bind(context, key, shapes)
            self._enqueue(context)  # a context cannot be recorded before it has run
        except RuntimeError as error:
            if context is self._context:
                raise
            self._capture_no_more(error)  # the card may be full: the first context has its memory
            self._cuda.synchronize()
            self._bind(self._context, key, shapes)
            self._enqueue(self._context)
            return
        if context is not self._context:
            self._record(key, context)

    def _context_of(self, key: _Pass) -> Any:
        """One of its own for a pass that is to be recorded: one that comes again."""
        if not self._captures or key.places > _GRAPH_PLACES:
            return self._context
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            return self._context
        try:
            return self._loaded.new_context()
        except RuntimeError as error:
            self._capture_no_more(error)
            return self._context

    def _record(self, key: _Pass, context: Any) -> None:
        try:
            replay = self._cuda.capture(partial(self._enqueue, context))
        except RuntimeError as error:
            self._capture_no_more(error)
            return
        self._replays[key] = partial(_replay, replay, context)
        del self._seen[key]
        if len(self._replays) > _MAX_GRAPHS:
            self._replays.popitem(last=False)

    def _capture_no_more(self, error: RuntimeError) -> None:
        log.warning("no more CUDA graphs are recorded: %s", error)
        self._captures = False

    def _bind(self, context: Any, key: _Pass, shapes: dict[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise RuntimeError(f"the plan does not take {name} of shape {list(shape)}")
            context.set_tensor_address(name, self._inputs[name].address)
        for name, cache in self._caches.items():
            part = cache[key.first : key.last]
            context.set_input_shape(f"past_{name}", tuple(part.shape))
            for kind in ("past", "present"):
                context.set_tensor_address(f"{kind}_{name}", part.data_ptr())
        context.set_tensor_address("logits", self._logits.data_ptr())
        if self._features.numel():
            context.set_tensor_address("features", self._features.data_ptr())

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._cuda.stream):
            raise RuntimeError("; ".join(self._loaded.errors[-1:]) or "TensorRT gives no reason")

    def draw(self, logits: DeviceLogits, places: Seq[Place], num_tokens: int) -> list[Draw]:
        """See `Runtime`."""
        return logits.draw(places, num_tokens)

    def likeliest(
        self, logits: DeviceLogits, rows: slice, num_tokens: int, count: int
    ) -> list[list[int]]:
        """See `Runtime`."""
        return logits.likeliest(rows, num_tokens, count)

    def resize(self, length: int, kept: Seq[int]) -> None:
        """See `Runtime`. The plan's length never changes, only how much of it is in use."""
        assert length <= self._plan.cache_length, (length, self._plan.cache_length)
        self.length = length

    def copy(self, source: int, target: int, length: int) -> None:
        """See `Runtime`."""
        with self._cuda.active():
            for cache in self._caches.values():
                cache[target, :, :length].copy_(cache[source, :, :length], non_blocking=True)

    def read(self, slot: int, length: int) -> Content:
        """See `Runtime`. As float32: NumPy knows no bfloat16."""
        with self._cuda.active():
            parts = [cache[slot, :, :length] for cache in self._caches.values()]
            copies = (part.to("cpu", self._cuda.torch.float32, copy=True) for part in parts)
            return [copy.numpy() for copy in copies]

    def write(self, slot: int, content: Content, length: int) -> None:
        """See `Runtime`."""
        with self._cuda.active():
            for cache, part in zip(self._caches.values(), content, strict=True):
                cache[slot, :, :length].copy_(self._cuda.torch.from_numpy(part[:, :length]))


def load(
    artifact: Artifact, directory: Path, *, num_slots: int, num_threads: int, device: int
) -> TensorRTRuntime:
    """Load the plan. Raises `InvalidArtifact`: missing, of another machine, or too large."""
    plan = Plan.read(directory)
    plan.check(artifact, directory, num_slots=num_slots)
    trt = import_tensorrt(plan.runtime)
    cuda = Cuda(device)
    plan.check_machine(runtime_version=trt.__version__, compute_capability=cuda.capability)
    with cuda.active():  # TensorRT takes the card that is current
        try:
            loaded = load_plan(trt, cuda, plan=plan, artifact=artifact, path=directory / PLAN)
            return TensorRTRuntime(loaded, cuda, plan=plan, artifact=artifact, num_slots=num_slots)
        except RuntimeError as error:
            raise InvalidArtifact(
                f"{directory / PLAN} with {num_slots} sequences of {plan.cache_length} positions "
                f"does not fit the card: {error}"
            ) from error


def _replay(replay: Callable[[], None], context: Any) -> None:
    """`context` is only kept: the graph uses what belongs to it."""
    replay()
