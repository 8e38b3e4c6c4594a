"""TensorRT's and CUDA's interfaces, as far as the runtime uses them, on this processor.

The "plan" names a graph in TensorRT's form but float32; the "engine" lets ONNX Runtime evaluate
it at the very addresses it is given, and is as strict about shapes, limits, aliases and order as
the documentation of the real one. Every call is noted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

import numpy as np

from specdec.artifact import GRAPH, Artifact
from specdec.export.tensorrt import Shapes
from specdec.export.tensorrt_graph import TensorRTForm, TensorRTPrecision
from specdec.plan import PLAN, Plan

VERSION, CAPABILITY = "11.1.0.106", "SM89"
_TYPES = {"tensor(int64)": np.int64, "tensor(bool)": np.bool_, "tensor(float)": np.float32}


class FakeCompiler:
    """See `Compiler` of the exporter: keeps the graph, writes a plan that names it."""

    provenance = {"fake": "yes"}  # noqa: RUF012

    def __init__(self, shapes: Shapes, runtime: str = "tensorrt") -> None:
        self.runtime, self.shapes = runtime, shapes
        self.form = TensorRTForm(
            TensorRTPrecision.bf16, cache_length=shapes.cache_length, dtype=np.float32
        )

    def accept(self, architecture: object) -> None:
        """Everything."""

    def provenance_of(self, directory: Path) -> None:
        """Never up to date."""

    def reuse(self, directory: Path) -> None:
        """Never."""

    def compile(self, directory: Path, *, weights_sha256: str, provenance: Any, progress: Any):
        graphs = directory.parent / "graphs"
        graphs.mkdir()
        for name in (GRAPH, f"{GRAPH}.data"):
            (directory / name).rename(graphs / name)
        limits = dict(self.shapes._asdict(), graph=str(graphs / GRAPH), name=weights_sha256)
        (directory / PLAN).write_text(json.dumps(limits))
        Plan(
            runtime=self.runtime,
            runtime_version=VERSION,
            compute_capability=CAPABILITY,
            dtype="float32",
            max_sequences=self.shapes.max_sequences,
            max_rows=self.shapes.max_rows,
            cache_length=self.shapes.cache_length,
            weights_sha256=weights_sha256,
            num_bytes=(directory / PLAN).stat().st_size,
            memory={"weights": 3 << 30, "cache": 1 << 30, "workspace": 0},
            provenance=provenance,
        ).write(directory)


class FakeTensorRT(ModuleType):
    """The module. `calls` notes (name, argument, ...) in order."""

    __version__ = VERSION

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING = "internal error", "error", "warning"

    class ExecutionContextAllocationStrategy:
        STATIC, USER_MANAGED = "static", "user managed"

    def __init__(self) -> None:
        super().__init__("tensorrt")
        self.calls: list[tuple[Any, ...]] = []
        self.recording: list[Callable[[], None]] | None = None  # of a CUDA graph
        self.scratch_bytes = 4096  # that a context needs
        self.contexts: WeakSet[_Context] = WeakSet()
        self.max_contexts = 100
        self.fail_first_run = False  # of a context
        self.fail_with: str | None = None  # what the next pass reports

    def Runtime(self, logger: Any) -> Any:  # noqa: N802
        return _Runtime(self, logger)


class FakeRTX(FakeTensorRT):
    """TensorRT-RTX has CUDA graphs of its own."""

    class CudaGraphStrategy:
        WHOLE_GRAPH_CAPTURE = "whole graph"


class _Runtime:
    def __init__(self, trt: FakeTensorRT, logger: Any) -> None:
        self._trt, self._logger = trt, logger

    def deserialize_cuda_engine(self, data: Any) -> _Engine | None:
        try:
            limits = json.loads(bytes(data))
        except ValueError:
            self._logger.log("warning", "ignored")
            self._logger.log("error", "magic tag does not match")
            return None
        return _Engine(self._trt, self._logger, limits)


class _Engine:
    def __init__(self, trt: FakeTensorRT, logger: Any, limits: dict[str, Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            limits["graph"], options, providers=["CPUExecutionProvider"]
        )
        self.trt, self.logger, self.limits = trt, logger, limits
        self.inputs = {t.name: t for t in self.session.get_inputs()}
        self.outputs = {t.name: t for t in self.session.get_outputs()}
        self._names = [*self.inputs, *self.outputs]
        self.num_io_tensors, self.name = len(self._names), limits["name"]

    def get_tensor_name(self, index: int) -> str:
        return self._names[index]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        tensor = self.inputs.get(name) or self.outputs[name]
        return tuple(d if isinstance(d, int) else -1 for d in tensor.shape)

    @property
    def device_memory_size_v2(self) -> int:
        return self.trt.scratch_bytes

    def create_runtime_config(self) -> Any:
        return type("RuntimeConfig", (), {})()

    def create_execution_context(self, how: Any = None) -> _Context | None:
        """`how`: an allocation strategy, or a runtime config."""
        how = getattr(how, "cuda_graph_strategy", how)
        self.trt.calls.append(("create_execution_context", how))
        if len(self.trt.contexts) >= self.trt.max_contexts:
            self.logger.log("error", "out of memory")
            return None
        strategies = self.trt.ExecutionContextAllocationStrategy
        context = _Context(self, brings_memory=how != strategies.USER_MANAGED)
        self.trt.contexts.add(context)
        return context


class _Context:
    """Its `state` changes with shapes and addresses, and spoils what was recorded before."""

    def __init__(self, engine: _Engine, *, brings_memory: bool) -> None:
        self._engine, self._trt = engine, engine.trt
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._has_memory, self._has_run, self._state = brings_memory, False, 0

    def set_device_memory(self, memory: int, size: int) -> None:
        assert memory
        assert size >= self._engine.device_memory_size_v2
        self._trt.calls.append(("set_device_memory", memory))
        self._has_memory, self._state = True, self._state + 1

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._trt.calls.append(("set_input_shape", name, tuple(shape)))
        limits, declared = self._engine.limits, self._engine.inputs[name].shape
        most = {"B": limits["max_sequences"], **dict.fromkeys("NTR", limits["max_rows"])}
        for size, axis in zip(shape, declared, strict=True):
            if size != axis and not (isinstance(axis, str) and 1 <= size <= most[axis]):
                self._engine.logger.log("error", f"{name}: {shape} is outside the profile")
                return False
        self._shapes[name], self._state = tuple(shape), self._state + 1
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert isinstance(address, int)
        self._trt.calls.append(("set_tensor_address", name, address))
        self._addresses[name], self._state = address, self._state + 1
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == FakeCuda.stream
        assert set(self._shapes) == set(self._engine.inputs), "a shape was not set"
        assert set(self._addresses) == {*self._engine.inputs, *self._engine.outputs}
        assert self._has_memory, "a context without scratch memory"
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        if self._trt.fail_with is not None:
            self._engine.logger.log("error", self._trt.fail_with)
            return False
        if self._trt.fail_first_run and not self._has_run:
            self._engine.logger.log("error", "out of memory")
            return False
        if self._trt.recording is not None:
            assert self._has_run, "recorded before its first run"
            self._trt.recording.append(self._recorded(shapes, addresses))
        else:
            self._has_run = True
            self._trt.calls.append(("execute",))
            self._evaluate(shapes, addresses)
        return True

    def _recorded(self, shapes: dict[str, Any], addresses: dict[str, int]) -> Callable[[], None]:
        state = self._state

        def replay() -> None:
            assert self._state == state, "its context has changed since it was recorded"
            self._evaluate(shapes, addresses)

        return replay

    def _evaluate(self, shapes: dict[str, Any], addresses: dict[str, int]) -> None:
        binding = self._engine.session.io_binding()
        for name, tensor in self._engine.inputs.items():
            kind, shape = _TYPES[tensor.type], list(shapes[name])
            binding.bind_input(name, "cpu", 0, kind, shape, addresses[name])
        rows = {"logits": shapes["output_rows"][0], "features": shapes["input_ids"][0]}
        for name in self._engine.outputs:
            if name in rows:
                shape = [rows[name], self._engine.get_tensor_shape(name)[1]]
            else:
                past = name.replace("present", "past")
                assert addresses[name] == addresses[past], f"{name} does not alias {past}"
                shape = list(shapes[past])
            binding.bind_output(name, "cpu", 0, np.float32, shape, addresses[name])
        self._engine.session.run_with_iobinding(binding)


class FakeCuda:
    """See `Cuda`: the processor's memory, and graphs that replay what was recorded."""

    name = "cpu"
    captures = True
    capability = CAPABILITY
    stream = 7

    def __init__(self, trt: FakeTensorRT, *, can_record: bool = True) -> None:
        import torch

        self.torch = torch
        self._trt, self._can_record = trt, can_record
        self.num_replays = 0

    def active(self) -> Any:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        self._trt.calls.append(("synchronize",))

    def pinned(self, size: int, dtype: Any) -> Any:
        return self.torch.zeros(size, dtype=dtype)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        if not self._can_record:
            raise RuntimeError("operation not permitted when stream is capturing")
        self._trt.recording = []
        run()
        (recorded,), self._trt.recording = self._trt.recording, None
        self._trt.calls.append(("capture",))

        def replay() -> None:
            self.num_replays += 1
            recorded()

        return replay


def export_fake(
    directory: Path, shapes: Shapes, *, runtime: str = "tensorrt", model: Path | None = None
) -> Path:
    """Export a tiny model, or `model`, for the fake; returns the version directory."""
    from rich.progress import Progress

    from specdec.export.exporter import export
    from specdec.export.sources import HuggingFaceSource
    from support.tiny import write_tiny_llama

    source = HuggingFaceSource(model or write_tiny_llama(directory / "model"))
    with Progress(disable=True) as progress:
        made = export(
            source,
            directory / "artifact",
            progress=progress,
            compiler=FakeCompiler(shapes, runtime),
        )
    assert isinstance(made.artifact, Artifact)
    return made.directory
