"""A request as a KServe message, and messages back as chunks: what both clients share.

One gRPC stream carries one request, so that cancelling it or its deadline touches nothing else.
Knows nothing of channels, threads or event loops.
"""

from __future__ import annotations

import json
import re
import struct
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import grpc
from tritonclient.grpc import InferResult, service_pb2

from specdec.client.errors import (
    ClientError,
    RequestCancelled,
    RequestRejected,
    RequestTimeout,
    ServerFailed,
    ServerUnavailable,
    StreamBroken,
)
from specdec.client.results import Chunk, Stats

DEFAULT_URL = "127.0.0.1:8001"
DEFAULT_MODEL = "speculative"
DEFAULT_MAX_TOKENS = 256

# With this the server answers an error with its status code and not only with a text.
METADATA = (("triton_grpc_error", "true"),)

Message = Mapping[str, str]  # {"role": "user", "content": "..."}


class Options(TypedDict, total=False):
    """What may be asked for; anything left out is the server's default."""

    max_tokens: int  # the client's default is 256
    min_tokens: int
    temperature: float  # 0: greedy
    top_k: int
    top_p: float
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop_words: Sequence[str]
    bad_words: Sequence[str]
    num_draft_tokens: int  # 0: no speculation
    adaptive: bool  # False: so many draft tokens at every step, whatever they cost
    drafter: str
    cache_salt: str  # what the request leaves behind serves requests of the same salt alone
    return_logprobs: bool


# Option -> tensor name and type; the shape is [1, 1], or [1, n] for a list.
_TENSORS = {
    "max_tokens": ("max_tokens", "INT32"),
    "min_tokens": ("min_tokens", "INT32"),
    "temperature": ("temperature", "FP32"),
    "top_k": ("top_k", "INT32"),
    "top_p": ("top_p", "FP32"),
    "min_p": ("min_p", "FP32"),
    "seed": ("seed", "UINT64"),
    "repetition_penalty": ("repetition_penalty", "FP32"),
    "presence_penalty": ("presence_penalty", "FP32"),
    "frequency_penalty": ("frequency_penalty", "FP32"),
    "stop_words": ("stop_words", "BYTES"),
    "bad_words": ("bad_words", "BYTES"),
    "num_draft_tokens": ("num_draft_tokens", "INT32"),
    "adaptive": ("adaptive", "BOOL"),
    "drafter": ("drafter", "BYTES"),
    "cache_salt": ("cache_salt", "BYTES"),
    "return_logprobs": ("return_log_probs", "BOOL"),
}
_ALWAYS = (
    "stream",
    "exclude_input_in_output",
    "return_output_ids",
    "return_num_input_tokens",
    "return_perf_metrics",
)
_DECISIONS = ("draft_reasons", "predicted_gain", "measured_gain")  # of the last response only
# What is read of a response. Anything else is left out on the server's side: every tensor of every
# token costs both sides some 15 us, while the target computes on the same processors.
_OUTPUTS = (
    "text_output",
    "finish_reason",
    "output_ids",
    "from_draft",
    "text_lengths",
    "num_input_tokens",
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    *_DECISIONS,
)
_LOGPROBS = "output_log_probs"
_FORMATS = {"INT32": "i", "FP32": "f", "UINT64": "Q", "BOOL": "?"}  # of `struct`
_WORDS = {
    "BYTES": "text that UTF-8 can express",
    "INT32": "a 32-bit integer",
    "UINT64": "an unsigned 64-bit integer",
    "FP32": "a 32-bit number",
    "BOOL": "True or False",
}


def build_request(
    model: str,
    prompt: str | None,
    messages: Sequence[Message] | None,
    input_ids: Sequence[int] | None,
    options: Options,
) -> service_pb2.ModelInferRequest:
    """Exactly one of prompt, messages (for the chat template) and input_ids.

    Raises:
        RequestRejected: none or several are given, an option is unknown or of the wrong type.
    """
    given = [x for x in (prompt, messages, input_ids) if x is not None]
    if len(given) != 1:
        raise RequestRejected(
            f"give one of prompt, messages and input_ids: {len(given)} of them are given"
        )
    request = service_pb2.ModelInferRequest(model_name=model)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    _add(request, "text_input", "BYTES", prompt or "")
    if messages is not None:
        _add(request, "messages", "BYTES", json.dumps([dict(m) for m in messages]))
    if input_ids is not None:
        _add(request, "input_ids", "INT32", list(input_ids))
    for name in _ALWAYS:
        _add(request, name, "BOOL", True)
    for option, value in {"max_tokens": DEFAULT_MAX_TOKENS, **options}.items():
        if option not in _TENSORS:
            raise RequestRejected(f"unknown option {option!r}: known are {', '.join(_TENSORS)}")
        if value is not None:
            _add(request, *_TENSORS[option], value)
    for name in (*_OUTPUTS, _LOGPROBS) if options.get("return_logprobs") else _OUTPUTS:
        request.outputs.add(name=name)
    return request


def _add(request: service_pb2.ModelInferRequest, name: str, datatype: str, value: Any) -> None:
    many = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    values = list(value) if many else [value]
    try:
        data = _encode(values, datatype)
    except (TypeError, ValueError, OverflowError, struct.error):
        found = textwrap.shorten(repr(value), 60, placeholder="...")
        raise RequestRejected(f"{name} is {found}: expected {_WORDS[datatype]}") from None
    request.inputs.add(name=name, datatype=datatype, shape=[1, len(values)])
    request.raw_input_contents.append(data)


def _encode(values: list[Any], datatype: str) -> bytes:
    if datatype == "BYTES":
        encoded = [str.encode(v) for v in values]
        return b"".join(len(v).to_bytes(4, "little") + v for v in encoded)
    if datatype != "BOOL" and any(isinstance(v, bool) for v in values):
        raise TypeError
    return struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)


class ResponseReader:
    """Turns the messages of one request into chunks, and keeps its counts and times."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._sent_at = clock()
        self._first_at: float | None = None
        self._num_output = 0
        self._num_passes = 0
        self._latest: dict[str, int] = {}  # counts that are totals, not deltas
        self._decisions: dict[str, Any] = {}
        self._finish_reason: str | None = None
        self.started = False  # something arrived
        self.is_complete = False  # the final flag arrived

    def read(self, message: service_pb2.ModelStreamInferResponse) -> Chunk | None:
        """The message's chunk; None when it carries only the final flag.

        Raises:
            RequestRejected, ServerUnavailable, StreamBroken
        """
        if message.error_message:
            raise _refusal(short(message.error_message))
        self.started = True
        response = message.infer_response
        chunk = self._chunk(InferResult(response)) if response.outputs else None
        self.is_complete = response.parameters["triton_final_response"].bool_param
        if self.is_complete:
            self.end()
        return chunk

    def end(self) -> None:
        """Raises `StreamBroken` unless the answer is complete."""
        if not self.is_complete or self._finish_reason is None:
            raise StreamBroken("the server ended the stream before the answer was complete")

    def _chunk(self, result: InferResult) -> Chunk:
        now = self._clock()
        token_ids = tuple(int(x) for x in _values(result, "output_ids"))
        from_draft = tuple(bool(x) for x in _values(result, "from_draft"))
        logprobs = tuple(float(x) for x in _values(result, _LOGPROBS))
        text = b"".join(_values(result, "text_output")).decode(errors="replace")
        if len(from_draft) != len(token_ids):
            raise StreamBroken(f"{len(token_ids)} tokens came with {len(from_draft)} draft flags")
        if token_ids and self._first_at is None:
            self._first_at = now
        self._num_output += len(token_ids)
        # A pass emits accepted draft tokens and one of its own, which a stop may cut off.
        self._num_passes += from_draft.count(False) + (from_draft[-1:] == (True,))
        for name in ("num_input_tokens", "total_draft_tokens", "total_accepted_draft_tokens"):
            for value in _values(result, name):
                self._latest[name] = int(value)
        for name in _DECISIONS:
            for value in _values(result, name):
                self._decisions[name] = value
        reason = b"".join(_values(result, "finish_reason")).decode() or None
        self._finish_reason = self._finish_reason or reason
        stats = self._stats(now) if reason else None
        lengths = tuple(int(x) for x in _values(result, "text_lengths"))
        return Chunk(text, token_ids, from_draft, lengths, logprobs, reason, stats)

    def _stats(self, now: float) -> Stats:
        return Stats(
            num_input_tokens=self._latest.get("num_input_tokens", 0),
            num_output_tokens=self._num_output,
            num_draft_tokens=self._latest.get("total_draft_tokens", 0),
            num_accepted_tokens=self._latest.get("total_accepted_draft_tokens", 0),
            num_target_passes=self._num_passes,
            draft_reasons=json.loads(self._decisions.get("draft_reasons", b"{}")),
            predicted_gain=self._decisions.get("predicted_gain", 0.0),
            measured_gain=self._decisions.get("measured_gain", 0.0),
            ttft_seconds=(self._first_at or now) - self._sent_at,
            total_seconds=now - self._sent_at,
        )


def _values(result: InferResult, name: str) -> list[Any]:
    array = result.as_numpy(name)
    return [] if array is None else array.ravel().tolist()


_REJECTED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
}


def to_error(error: grpc.RpcError, url: str, *, started: bool) -> ClientError:
    """The typed error of a failed call; `started`: a part of the answer had arrived."""
    code, details = error.code(), short(error.details() or "")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimeout("the answer was not complete in time")
    if code == grpc.StatusCode.CANCELLED:
        return RequestCancelled(details or "the request was cancelled")
    if code == grpc.StatusCode.UNAVAILABLE:
        if started:
            return StreamBroken(f"the connection to {url} broke: {details}")
        if "failed to connect" in details.lower():
            return ServerUnavailable(f"no server answers at {url}: is `specdec serve` running?")
        return ServerUnavailable(f"{url}: {details}")
    return RequestRejected(details) if code in _REJECTED else ServerFailed(details or str(code))


def _refusal(message: str) -> ClientError:
    """An error inside the stream: Triton itself refused the request before a model saw it."""
    if "not ready" in message or "no available versions" in message:
        return ServerUnavailable(message)
    return RequestRejected(message)


def short(message: str) -> str:
    """One line without the request id that Triton puts before a message."""
    message = re.sub(r"^\[request id: [^\]]*\] ", "", message.strip())
    return " ".join(message.split())
