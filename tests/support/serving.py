"""The real server in a test: start it, send it raw requests, read its metrics and processes.

Requests are built from the contract's table and nothing of `specdec.client`, so that a fault in
one does not hide a fault in the other. Every call has a deadline: a hang is a failure.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from specdec.launcher.launch import launch
from specdec.launcher.ports import Ports
from specdec.launcher.repository import Models
from specdec.launcher.server import TritonServer
from specdec.launcher.stop_signal import StopSignal
from specdec.speculation.contract import INPUTS, NUMPY_TYPES
from support.processes import wait_until

MAX_RUNNING, MAX_WAITING = 16, 8  # of the server that most tests share
SECONDS = 30.0  # a deadline that only a hang reaches
SOURCE = Path(__file__).parents[2] / "model_repository"
PUBLISHED = 0.6  # metrics reach /metrics within this time

# What the tests compare: all of it, streamed, and no end but max_tokens.
ALL = {
    "adaptive": False,
    "stream": True,
    "max_tokens": 24,
    "end_id": -1,
    "return_output_ids": True,
    "return_log_probs": True,
    "return_num_output_tokens": True,
}
_TYPES = {field.name: NUMPY_TYPES[field.datatype] for field in INPUTS}


class Served:
    """A running server and ways to talk to it."""

    def __init__(self, server: TritonServer, stop: StopSignal | None = None) -> None:
        self.server = server
        self._stop = stop
        self.ports = server.ports
        # A kept-alive connection would delay the server's exit.
        self.http = httpx.Client(headers={"Connection": "close"}, timeout=SECONDS, trust_env=False)

    # ---- gRPC ----------------------------------------------------------------------------

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.ports.grpc}"

    @cached_property
    def stub(self) -> Any:
        channel = grpc.insecure_channel(self.grpc_url, [("grpc.max_send_message_length", -1)])
        return service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def call(self, request: Any = None, *, timeout: float = SECONDS, **inputs: Any) -> Call:
        """Send one request, `infer_request(**ALL, **inputs)` unless given; returns at once."""
        request = infer_request(**{**ALL, **inputs}) if request is None else request
        return Call(self.stub.ModelStreamInfer(iter([request]), timeout=timeout))

    def ask(self, text: str = "", **inputs: Any) -> Answer:
        return self.call(text_input=text, **inputs).finish()

    # ---- HTTP ----------------------------------------------------------------------------

    def url(self, verb: str, model: str = "speculative") -> str:
        return f"http://127.0.0.1:{self.ports.http}/v2/models/{model}/{verb}"

    def post(self, verb: str = "generate", *, model: str = "speculative", **sent: Any) -> Any:
        """`sent`: httpx's json= or content=."""
        return self.http.post(self.url(verb, model), **sent)

    def events(self, model: str = "speculative", **body: Any) -> Iterator[dict[str, Any]]:
        """The events of generate_stream; closing the iterator closes the connection."""
        with self.http.stream("POST", self.url("generate_stream", model), json=body) as response:
            for line in response.iter_lines():
                if line:
                    yield json.loads(line.removeprefix("data: "))

    def generate(self, **body: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.post(json=body).json()
        return answer

    # ---- what operators see --------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Our samples by name, the position label appended as [n]; others are left out."""
        url = f"http://127.0.0.1:{self.ports.metrics}/metrics"
        text = self.http.get(url).text
        samples = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("specdec:"):
                    label = sample.labels.get("position", sample.labels.get("le"))
                    name = sample.name.removeprefix("specdec:")
                    samples[f"{name}[{label}]" if label else name] = sample.value
                    assert math.isfinite(sample.value), sample
        return samples

    def settled_metrics(self) -> dict[str, float]:
        """The same once everything that was counted has been published."""
        time.sleep(PUBLISHED)
        return self.metrics()

    def wait_idle(self, seconds: float = 5.0) -> None:
        """Until nothing runs or waits."""
        names = ("num_requests_running", "num_requests_waiting")
        wait_until(lambda: not any(map(self.metrics().get, names)), seconds)

    def log(self) -> str:
        return self.server.log.read_text(errors="replace")

    def model_process(self, model: str) -> int:
        """Process id of the stub that runs a model."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                if f"{model}_0_0".encode() in words and int(stat[2]) == self.server.pid:
                    return int(path.name)
        raise AssertionError(f"no process runs {model}")

    def kill(self, model: str) -> None:
        """Triton then waits for the dead model at its own exit: this ends it without that."""
        os.kill(self.model_process(model), signal.SIGKILL)
        if self._stop is not None:
            self._stop.hurry = True


class Call:
    """One request on a stream of its own."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.messages: list[Any] = []

    def read(self) -> Any:
        """The next message."""
        self.messages.append(next(self._call))
        return self.messages[-1]

    def cancel(self) -> None:
        self._call.cancel()

    def finish(self) -> Answer:
        """Read until the server ends the stream, which it does after the final flag."""
        self.messages += self._call
        return Answer(self.messages)


class Answer:
    """All messages of one request."""

    def __init__(self, messages: list[Any]) -> None:
        self.errors = [m.error_message for m in messages if m.error_message]
        responses = [m.infer_response for m in messages]
        self.num_final = sum(r.parameters["triton_final_response"].bool_param for r in responses)
        self.bodies = [InferResult(r) for r in responses if r.outputs]

    def rows(self, name: str, index: int = 0) -> list[Any]:
        """An output's rows that belong to prompt `index`, one per response."""
        found = []
        for body in self.bodies:
            array = body.as_numpy(name)
            if array is not None:
                batch = body.as_numpy("batch_index")[:, 0].tolist()
                found += [array[row] for row, i in enumerate(batch) if i == index]
        return found

    def text(self, index: int = 0) -> str:
        return b"".join(self.rows("text_output", index)).decode()

    def ids(self, index: int = 0) -> list[int]:
        return [int(t) for row in self.rows("output_ids", index) for t in row if t >= 0]

    def logprobs(self, index: int = 0) -> list[float]:
        return [p for row in self.rows("output_log_probs", index) for p in row.ravel().tolist()]

    def count(self, name: str, index: int = 0) -> int:
        return sum(int(row[0]) for row in self.rows(name, index))

    def finish_reason(self, index: int = 0) -> str:
        return b"".join(self.rows("finish_reason", index)).decode()

    @property
    def bits(self) -> tuple[list[int], list[float], str]:
        """What exactness is about. An error shows up in a comparison of it."""
        assert not self.errors, self.errors
        return self.ids(), self.logprobs(), self.text()


def infer_request(model: str = "speculative", **inputs: Any) -> Any:
    """Plain values become [1, n] of the contract's type; a numpy array is sent as it is."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in inputs.items():
        if value is not None:
            add_input(request, name, _array(name, value))
    return request


def add_input(request: Any, name: str, array: np.ndarray) -> None:
    datatype = np_to_triton_dtype(array.dtype)
    request.inputs.add(name=name, datatype=datatype, shape=array.shape)
    is_text = datatype == "BYTES"
    data = serialize_byte_tensor(array).item() if is_text and array.size else array.tobytes()
    request.raw_input_contents.append(b"" if is_text and not array.size else data)


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    values = [v.encode() if isinstance(v, str) else v for v in values]
    return np.array([values], dtype=_TYPES[name])


@contextlib.contextmanager
def serve(
    run_dir: Path,
    target: Path,
    draft: Path | None = None,
    head: Path | None = None,
    **parameters: dict[str, str],
) -> Iterator[Served]:
    """Serve artifacts (directories that hold 1/); `parameters`: by model."""
    # What `make serve` left in the project's repository is no part of a test.
    models = Models(SOURCE, target, draft, head, parameters, no_head=head is None)
    stop = StopSignal()
    with launch(models, ports=Ports.free(), run_dir=run_dir, stop=stop) as launched:
        launched.server.wait_ready(timeout=120)
        yield Served(launched.server, stop)
