"""A stand-in for Triton's Python bindings: what `triton_io` uses of them, and no more."""

from __future__ import annotations

import threading
import weakref
from types import ModuleType
from typing import Any


class TritonModelException(Exception):
    pass


class TritonError:
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = (
        "invalid",
        "unavailable",
        "cancelled",
        "internal",
    )

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        if isinstance(self._array, Exception):
            raise self._array
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors: Any = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def prune(self, asked: set[str]) -> list[str]:
        """Drop the other outputs, as `send` does; names of those that nobody else held."""
        dropped = {t.name(): weakref.ref(t) for t in self._tensors if t.name() not in asked}
        self._tensors = [t for t in self._tensors if t.name() in asked]
        return [name for name, tensor in dropped.items() if tensor() is None]

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Sender:
    """Records (response, flags); `faults` are raised by the next sends.

    With `asked`, outputs of other names are left out. Real Python lives on a lock that is not held
    then: `freed` has the names of those it would have corrupted its memory with.
    """

    def __init__(self) -> None:
        self.asked: set[str] | None = None
        self.freed: list[str] = []
        self.sent: list[tuple[Any, int]] = []
        self.threads: set[str] = set()
        self.faults: list[Exception] = []
        self.cancelled = False
        self.num_polls = 0

    def send(self, response: Any = None, flags: int = 0) -> None:
        self.threads.add(threading.current_thread().name)
        if self.faults:
            raise self.faults.pop(0)
        assert not any(sent for _, sent in self.sent), "a response after the final flag"
        if response is not None and self.asked is not None:
            self.freed += response.prune(self.asked)
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        # On the real server this reads freed memory.
        assert not any(sent for _, sent in self.sent), "a look at a closed request"
        self.num_polls += 1
        return self.cancelled


class Request:
    """What `execute` gets."""

    def __init__(self, parameters: str | Exception = "", **arrays: Any) -> None:
        self._parameters, self._arrays = parameters, arrays
        self.sender = Sender()

    def get_response_sender(self) -> Sender:
        return self.sender

    def parameters(self) -> str:
        if isinstance(self._parameters, Exception):
            raise self._parameters
        return self._parameters

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self._arrays.items()]


class InferenceRequest:
    """A BLS call; `handler(inputs by name, wanted outputs)` answers it."""

    handler: Any = None

    def __init__(self, model_name: str, requested_output_names: list[str], inputs: Any) -> None:
        self._wanted = requested_output_names
        self._inputs = {tensor.name(): tensor.as_numpy() for tensor in inputs}

    def exec(self) -> InferenceResponse:
        answer: InferenceResponse = type(self).handler(self._inputs, self._wanted)
        return answer


class Metric:
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.value = 0.0
        self.values: list[float] = []

    def increment(self, amount: float) -> None:
        assert self._kind == "counter"
        assert amount >= 0
        self.value += amount

    def set(self, value: float) -> None:
        assert self._kind == "gauge"
        self.value = value

    def observe(self, value: float) -> None:
        assert self._kind == "histogram"
        self.values.append(value)


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    all: dict[tuple[str, ...], Metric] = {}  # noqa: RUF012  by name and label values

    def __init__(self, name: str, description: str, kind: str) -> None:
        self._name, self._kind = name, kind

    def Metric(self, labels: dict[str, str], buckets: Any = None) -> Metric:  # noqa: N802
        assert (buckets is not None) == (self._kind == "histogram")
        metric = Metric(self._kind)
        type(self).all[(self._name, *labels.values())] = metric
        return metric


def module() -> ModuleType:
    """The module to put into sys.modules."""
    made = ModuleType("triton_python_backend_utils")
    made.__dict__.update({name: value for name, value in globals().items() if name[0].isupper()})
    made.__dict__["TRITONSERVER_RESPONSE_COMPLETE_FINAL"] = 1
    return made
