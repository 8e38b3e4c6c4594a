"""The only module of this room that touches Triton's Python bindings.

One thread sends (concurrent sends on one sender corrupt responses), and the engine's thread alone
makes BLS calls, one at a time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from specdec import frame
from specdec.errors import Cancelled, DecoderFailed, InvalidRequest, Overloaded, SpecdecError
from specdec.speculation.responses import Response
from specdec.wire import INPUTS, OUTPUTS, Arrays

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.01  # a step with a draft model has two waits, and one look is enough
DEAD = "is not healthy"  # Triton's words for a model whose process is gone
DEAD_SECONDS = 30.0  # Triton starts it again only when an operator reloads the model
ENDING = "Server not ready"  # its words, to every call, once it was told to end
ENDING_SECONDS = 1.0  # between two looks of a millisecond
NOBODY = "specdec-nobody"  # no model's name


class BlsTransport:
    """Calls one decoder model of this server; see `wire.RemoteDecoder`.

    Every call to a model whose process died takes Triton a second, in which all sequences wait:
    after one such call the next ones fail at once, until it is time to look again.
    """

    def __init__(self, model_name: str, before_exec: Callable[[], None] = lambda: None) -> None:
        """`before_exec` is called when this thread is about to wait for the model."""
        self._model_name = model_name
        self._before_exec = before_exec
        self._dead_until = 0.0  # time.monotonic()

    def __call__(self, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        if time.monotonic() < self._dead_until:
            raise DecoderFailed(f"model {self._model_name}: its process died")
        request = pb_utils.InferenceRequest(
            model_name=self._model_name,
            requested_output_names=[frame.OUTPUT],
            inputs=[pb_utils.Tensor(frame.INPUT, frame.pack(inputs, INPUTS))],
        )
        self._before_exec()
        try:
            response = request.exec()
        except pb_utils.TritonModelException as error:
            raise DecoderFailed(f"model {self._model_name}: {error}") from None
        if response.has_error():
            message = response.error().message()
            if DEAD in message:
                self._dead_until = time.monotonic() + DEAD_SECONDS
            raise DecoderFailed(f"model {self._model_name}: {message}")
        (result,) = response.output_tensors()
        arrays = frame.unpack(result.as_numpy(), OUTPUTS)
        return {name: arrays[name] for name in wanted}


class EndingWatch:
    """Notices that the server ends, for an engine that calls no model: nobody tells it, Triton's
    streams stay open until its exit timeout, and the clients hear of it no earlier. From then on
    BLS calls are refused, in other words than one to a model that is not there.
    """

    def __init__(self) -> None:
        self._call = BlsTransport(NOBODY)
        self._look_at = 0.0  # time.monotonic()

    def __call__(self) -> None:
        """Called by the engine's thread before a pass. Raises `DecoderFailed`: the server ends."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + ENDING_SECONDS
        try:
            self._call({}, ())
        except DecoderFailed as refusal:
            if ENDING in str(refusal):
                self._look_at = 0.0  # whoever comes now is refused too
                raise DecoderFailed("the server is shutting down") from None


def read_request(request: Any) -> tuple[Arrays, dict[str, object]]:
    """Input tensors by name, and the request's parameters.

    An optional input that came without data is left out. Nothing else may leave this function:
    an exception in `execute` goes to the client with its stack, and frees the request under the
    sender, which the next look at it then takes the server down with.

    Raises:
        InvalidRequest: Triton's bindings cannot make Python objects of it.
    """
    try:
        parameters: dict[str, object] = json.loads(request.parameters() or "{}")
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x}"
        raise InvalidRequest(f"the request's parameters are not UTF-8: found {found}") from None
    except ValueError as error:
        raise InvalidRequest(f"the request's parameters are not JSON: {error}") from None
    try:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    except Exception:
        logger.exception("a request's tensors cannot be read")
        raise InvalidRequest("the request's tensors cannot be read") from None
    return {name: array for name, array in tensors.items() if array is not None}, parameters


class Client:
    """One request's way back. Its methods only queue; the outbox's thread does the rest."""

    def __init__(self, request: Any, outbox: Outbox) -> None:
        self._request = request  # keeps the input tensors alive
        self._outbox = outbox
        self.sender = request.get_response_sender()
        self.cancelled = False  # written by the outbox's thread

    def send(self, make: Response, *, final: bool) -> None:
        self._outbox.put(self, make, final)

    def fail(self, error: SpecdecError) -> None:
        self._outbox.put(self, error, True)

    def close(self) -> None:
        """Let go of what lies in shared memory: what else knows this client may live on a while."""
        del self._request, self.sender


class Outbox:
    """The one thread that makes and sends responses and asks whether clients are still there.

    Deltas wait for the next `poll`: the engine's thread then waits for a model, so that the two do
    not ask for the interpreter at the same time. What ends a request leaves at once, with all that
    was put before it.
    """

    def __init__(self) -> None:
        self._items: deque[tuple[Client, Response | SpecdecError, bool]] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._open: set[Client] = set()
        self._poll_due = threading.Event()
        self._look_at = 0.0  # time.monotonic()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def open(self, request: Any) -> Client:
        client = Client(request, self)
        self._open.add(client)
        return client

    def put(self, client: Client, item: Response | SpecdecError, final: bool) -> None:
        self._items.append((client, item, final))
        if final:
            self._wake.put(None)

    def poll(self) -> None:
        """Send what was put and look for cancelled clients, soon; the engine's thread calls it
        whenever it is about to wait for a model, so a cancel costs one step."""
        if not self._poll_due.is_set():
            self._poll_due.set()
            self._wake.put(None)

    def stop(self) -> None:
        """Send what was put, then end."""
        self._stopping = True
        self._wake.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.get()
            for _ in range(len(self._items)):  # no more: a fast engine must not put off the look
                self._send(*self._items.popleft())
            if self._poll_due.is_set():
                self._poll_due.clear()
                self._look()
        while self._items:
            self._send(*self._items.popleft())

    def _look(self) -> None:
        """Ask for every client: a trip to the server for each, so not more often than useful."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        for client in list(self._open):
            if not client.cancelled and client.sender.is_cancelled():
                client.cancelled = True

    def _send(self, client: Client, item: Response | SpecdecError, final: bool) -> None:
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        try:
            # `send` lets go of Python's lock and then drops the outputs its client did not ask for:
            # held by nobody else, they would be freed without the lock, and Python's memory broken.
            response, _held = _response(item)
            if response is not None:
                client.sender.send(response, flags=flags)
            else:
                assert not final, "the last chunk must carry a response"
        except Exception:
            logger.exception("sending a response failed")
            client.cancelled = True
            if final:  # the flag must go out whatever happened to the body
                with contextlib.suppress(Exception):
                    client.sender.send(flags=flags)
        if final:
            self._open.discard(client)
            client.close()


def _response(item: Response | SpecdecError) -> tuple[Any, list[Any]]:
    """A response and its tensors, to be held until it is sent. None: nothing to send yet."""
    if isinstance(item, SpecdecError):
        error = pb_utils.TritonError(str(item), _status(item))
        return pb_utils.InferenceResponse(output_tensors=[], error=error), []
    arrays = item()
    if arrays is None:
        return None, []
    tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
    return pb_utils.InferenceResponse(output_tensors=tensors), tensors


def _status(error: SpecdecError) -> Any:
    codes = {
        InvalidRequest: pb_utils.TritonError.INVALID_ARG,
        Overloaded: pb_utils.TritonError.UNAVAILABLE,
        Cancelled: pb_utils.TritonError.CANCELLED,
    }
    return codes.get(type(error), pb_utils.TritonError.INTERNAL)
