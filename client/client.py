"""The synchronous client.

with SpecdecClient() as client:
    for chunk in client.stream("The sky is", max_tokens=32):
        print(chunk.text, end="", flush=True)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from specdec.client.channel import channel_options
from specdec.client.protocol import (
    DEFAULT_MODEL,
    DEFAULT_URL,
    METADATA,
    Message,
    Options,
    ResponseReader,
    build_request,
    to_error,
)
from specdec.client.results import Chunk, Completion

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SpecdecClient:
    """A connection to one server; may be used by many threads at once."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        model: str = DEFAULT_MODEL,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        """
        Args:
            url: host and gRPC port.
            model: the served name; `ensemble` is an alias of `speculative`.
            credentials: for TLS; None is a plain connection.
            metadata: sent with every request, an API key for example.
        """
        self._url, self._model = url, model
        self._metadata = (*METADATA, *metadata)
        options = channel_options(url)
        self._channel = (
            grpc.secure_channel(url, credentials, options)
            if credentials
            else grpc.insecure_channel(url, options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        input_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> ChunkStream:
        """Send a request; iterate over the result to get its chunks.

        Args:
            prompt: text that is continued as it is.
            messages: a chat, for the model's own template.
            input_ids: tokens that are continued as they are.
            timeout: seconds for the whole answer.
            options: see `protocol.Options`.

        Raises:
            RequestRejected: at once for what this library can see; all other errors of
                `specdec.client.errors` come while iterating.
        """
        request = build_request(self._model, prompt, messages, input_ids, options)
        call = self._stub.ModelStreamInfer(
            iter([request]), timeout=timeout, metadata=self._metadata
        )
        return ChunkStream(call, self._url)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        input_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer of `stream`, joined."""
        with self.stream(
            prompt, messages=messages, input_ids=input_ids, timeout=timeout, **options
        ) as chunks:
            return Completion.join(list(chunks))

    def is_ready(self, timeout: float = 5.0) -> bool:
        """Whether the server answers and the model is ready for requests."""
        request = service_pb2.ModelReadyRequest(name=self._model)
        try:
            answer = self._stub.ModelReady(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError:
            return False
        return bool(answer.ready)

    def close(self) -> None:
        """Close the connection; open streams end with `RequestCancelled`."""
        self._channel.close()

    def __enter__(self) -> SpecdecClient:
        return self

    def __exit__(
        self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        self.close()


class ChunkStream(Iterator[Chunk]):
    """The chunks of one request, ending after the one with a finish reason.

    One thread iterates; any thread may `close`, and so does the end of a `with` block. Closing
    before the end, or dropping the last reference, makes the server stop the request.
    """

    def __init__(self, call: grpc.Call, url: str) -> None:
        self._call, self._url = call, url
        self._reader = ResponseReader()
        self._closed = threading.Event()

    def __next__(self) -> Chunk:
        while not self._reader.is_complete and not self._closed.is_set():
            try:
                chunk = self._reader.read(next(self._call))
            except StopIteration:
                self._reader.end()
                break
            except grpc.RpcError as error:
                raise to_error(error, self._url, started=self._reader.started) from None
            if chunk is not None:
                return chunk
        self.close()
        raise StopIteration

    def close(self) -> None:
        self._closed.set()
        if self._reader.is_complete:
            # The server is ending the stream. A cancel at this moment makes tritonserver 2.51 keep
            # the request for good, and then it cannot unload the model when it is to exit.
            with contextlib.suppress(grpc.RpcError):
                for _ in self._call:
                    pass
        self._call.cancel()

    def __enter__(self) -> ChunkStream:
        return self

    def __exit__(
        self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        self.close()
