"""The stock tritonclient, used the way its own examples do."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from specdec.speculation.contract import INPUTS, NUMPY_TYPES

SECONDS = 30.0
_TYPES = {field.name: NUMPY_TYPES[field.datatype] for field in INPUTS}


def infer_inputs(**inputs: Any) -> list[Any]:
    """Plain values as [1, n] tensors; numpy arrays as they are."""
    return [_tensor(name, value) for name, value in inputs.items()]


def _tensor(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        values = value if isinstance(value, list) else [value]
        items = [v.encode() if isinstance(v, str) else v for v in values]
        return _tensor(name, np.array([items], dtype=_TYPES[name]))
    tensor = triton.InferInput(name, value.shape, np_to_triton_dtype(value.dtype))
    tensor.set_data_from_numpy(value)
    return tensor


class Stream:
    """A client with an open stream; results arrive in a queue as (result, error)."""

    def __init__(self, url: str) -> None:
        self.client = triton.InferenceServerClient(url)
        self.results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(callback=lambda result, error: self.results.put((result, error)))

    def send(self, model: str = "speculative", request_id: str = "", **inputs: Any) -> None:
        self.client.async_stream_infer(
            model,
            infer_inputs(**inputs),
            request_id=request_id,
            enable_empty_final_response=True,
        )

    def read(self) -> tuple[Any, Any]:
        return self.results.get(timeout=SECONDS)

    def close(self, *, cancel: bool = False) -> None:
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


def is_final(result: Any) -> bool:
    return result.get_response().parameters["triton_final_response"].bool_param


def stream_text(url: str, model: str, text: str, **options: Any) -> str:
    """Send one request; join its deltas."""
    stream = Stream(url)
    stream.send(model, text_input=text, stream=True, **options)
    deltas = []
    while True:
        result, error = stream.read()
        assert error is None, error
        array = result.as_numpy("text_output")
        if array is not None:
            deltas.append(array[0])
        if is_final(result):
            stream.close()
            return b"".join(deltas).decode()
