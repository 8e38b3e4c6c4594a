"""A plan as TensorRT has loaded it: compared with its description, and with execution contexts.

Knows nothing of passes, caches or CUDA graphs.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from specdec.artifact import Artifact
from specdec.decoder.batch import INPUTS
from specdec.errors import InvalidArtifact
from specdec.plan import FILE, Plan

log = logging.getLogger(__name__)


class LoadedPlan(NamedTuple):
    """A loaded plan; its parts need one another to stay."""

    runtime: Any
    engine: Any
    new_context: Callable[[], Any]  # raises `RuntimeError`: the card has not enough memory
    errors: list[str]  # what TensorRT has reported


def load_plan(trt: Any, cuda: Any, *, plan: Plan, artifact: Artifact, path: Path) -> LoadedPlan:
    """Load the plan onto the card that is current.

    Raises:
        InvalidArtifact: it is damaged, or another one than its description says.
        RuntimeError: the card has not enough memory.
    """
    errors: list[str] = []
    runtime = trt.Runtime(_error_log(trt, errors))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise InvalidArtifact(f"{path} cannot be loaded: {'; '.join(errors) or 'no reason given'}")
    _check(engine, artifact, plan, path)
    return LoadedPlan(runtime, engine, _contexts(trt, engine, cuda, errors), errors)


def _contexts(trt: Any, engine: Any, cuda: Any, errors: list[str]) -> Callable[[], Any]:
    """Makes execution contexts. TensorRT-RTX, told to record CUDA graphs itself, needs but one."""
    if hasattr(trt, "CudaGraphStrategy"):
        how = engine.create_runtime_config()
        how.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        size, scratch = 0, None
    else:
        how = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        size = engine.device_memory_size_v2
        scratch = cuda.torch.zeros(max(size, 1), dtype=cuda.torch.uint8, device=cuda.name)

    def new() -> Any:
        context = engine.create_execution_context(how)
        if context is None:
            raise RuntimeError("; ".join(errors[-1:]) or "TensorRT makes no execution context")
        if scratch is not None:
            context.set_device_memory(scratch.data_ptr(), size)
        return context

    return new


def _error_log(trt: Any, errors: list[str]) -> Any:
    """An ILogger that appends errors to `errors`."""

    class ErrorLog(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                errors.append(message)
                log.error("TensorRT: %s", message)

    return ErrorLog()


def _check(engine: Any, artifact: Artifact, plan: Plan, path: Path) -> None:
    """Compare the plan with its description: a mix-up would write to foreign memory, or answer
    with another model's weights."""
    if engine.name != plan.weights_sha256:
        raise InvalidArtifact(
            f"{path} calls itself {engine.name[:12]!r}, {FILE} says it is of weights "
            f"{plan.weights_sha256[:12]}: export again"
        )
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    shapes = {name: list(engine.get_tensor_shape(name)) for name in names}
    cache = [-1, artifact.num_key_value_heads, plan.cache_length, artifact.head_size]
    wanted = {
        f"{time}_{kind}_{i}": cache
        for time in ("past", "present")
        for kind in ("key", "value")
        for i in range(artifact.num_layers)
    }
    wanted["logits"] = [-1, artifact.vocab_size]
    if artifact.feature_layers:
        wanted["features"] = [-1, artifact.feature_size]
    for name, shape in wanted.items():
        if shapes.pop(name, None) != shape:
            raise InvalidArtifact(f"{path}: {name} is not {shape}: export again")
    if set(shapes) != set(INPUTS):
        raise InvalidArtifact(f"{path}: inputs are {sorted(shapes)}, expected {sorted(INPUTS)}")
