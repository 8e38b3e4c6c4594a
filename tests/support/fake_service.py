"""A KServe gRPC server in this process that streams what a test scripts.

A script is called with the request and yields messages; it may block, look at `cancelled`, or
abort the call, all as the real server does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

Request = service_pb2.ModelInferRequest
Message = service_pb2.ModelStreamInferResponse
Script = Callable[["Call"], Iterator[Message]]

_TYPES = {
    "output_ids": ("INT32", np.int32),
    "from_draft": ("BOOL", np.bool_),
    "output_log_probs": ("FP32", np.float32),
    "num_input_tokens": ("INT32", np.int32),
    "num_output_tokens": ("INT32", np.int32),
    "total_draft_tokens": ("INT32", np.int32),
    "total_accepted_draft_tokens": ("INT32", np.int32),
    "text_lengths": ("INT32", np.int32),
}


class Call:
    """What a script sees of one request."""

    def __init__(self, request: Request, context: grpc.ServicerContext) -> None:
        self.request, self._context = request, context
        self.cancelled = threading.Event()
        context.add_callback(self.cancelled.set)

    @property
    def inputs(self) -> dict[str, Any]:
        """Flat lists by input name; asserts that every shape is [1, n]."""
        found = {}
        for tensor, raw in zip(self.request.inputs, self.request.raw_input_contents, strict=True):
            if tensor.datatype == "BYTES":
                values = [x.decode() for x in deserialize_bytes_tensor(raw)]
            else:
                kind = {"INT32": "i4", "FP32": "f4", "UINT64": "u8", "BOOL": "?"}[tensor.datatype]
                values = np.frombuffer(raw, kind).tolist()
            assert list(tensor.shape) == [1, len(values)], tensor
            found[tensor.name] = values
        return found

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self._context.abort(code, details)


class FakeService(service_pb2_grpc.GRPCInferenceServiceServicer):
    """`scripts[model]` answers the requests for that model."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.calls: list[Call] = []
        self.metadata: list[dict[str, str]] = []

    def ModelStreamInfer(self, request_iterator, context):  # noqa: N802
        request = next(request_iterator)
        self.metadata.append(dict(context.invocation_metadata()))
        call = Call(request, context)
        self.calls.append(call)
        yield from self.scripts[request.model_name](call)

    def ModelReady(self, request, context):  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=request.name in self.scripts)


def start(service: FakeService) -> tuple[grpc.Server, str]:
    """A running server and its address."""
    server = grpc.server(ThreadPoolExecutor(16))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def chunk(text: str, *, finish_reason: str = "", final: bool = False, **arrays: Any) -> Message:
    """A response as `speculative` sends it: every output has a leading batch dim of 1."""
    message = Message()
    response = message.infer_response
    for name, value in {"text_output": [text], "finish_reason": [finish_reason]}.items():
        data = b"".join(len(x.encode()).to_bytes(4, "little") + x.encode() for x in value)
        response.outputs.add(name=name, datatype="BYTES", shape=[1, len(value)])
        response.raw_output_contents.append(data)
    for name, values in arrays.items():
        datatype, kind = _TYPES[name]
        array = np.array([values], kind)
        shape = [1, *array.shape] if name == "output_log_probs" else array.shape
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(array.tobytes())
    response.parameters["triton_final_response"].bool_param = final
    return message


def final() -> Message:
    """The empty response that carries the final flag."""
    message = Message()
    message.infer_response.parameters["triton_final_response"].bool_param = True
    return message


def tokens(
    text: str, ids: list[int], drafted: list[bool], *, counts: tuple[int, int], **more: Any
) -> Message:
    """One step's chunk; `counts`: drafted and accepted tokens of the request so far."""
    return chunk(
        text,
        output_ids=ids,
        from_draft=drafted,
        num_input_tokens=[3],
        num_output_tokens=[len(ids)],
        total_draft_tokens=[counts[0]],
        total_accepted_draft_tokens=[counts[1]],
        **more,
    )
