"""The asyncio client: `SpecdecClient` with await.

async with AsyncSpecdecClient() as client:
    async for chunk in client.stream("The sky is", max_tokens=32):
        print(chunk.text, end="", flush=True)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from specdec.client.channel import channel_options
from specdec.client.errors import RequestCancelled
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


class AsyncSpecdecClient:
    """A connection to one server, for the tasks of one event loop. Arguments as `SpecdecClient`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        model: str = DEFAULT_MODEL,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._url, self._model = url, model
        self._metadata = (*METADATA, *metadata)
        self._closed = False
        options = channel_options(url)
        self._channel = (
            grpc.aio.secure_channel(url, credentials, options)
            if credentials
            else grpc.aio.insecure_channel(url, options)
        )
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        input_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncChunkStream:
        """Send a request; arguments and errors as `SpecdecClient.stream`."""
        request = build_request(self._model, prompt, messages, input_ids, options)
        call = self._stub.ModelStreamInfer(
            iter([request]), timeout=timeout, metadata=self._metadata
        )
        return AsyncChunkStream(call, self._url, lambda: self._closed)

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        input_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer of `stream`, joined."""
        async with self.stream(
            prompt, messages=messages, input_ids=input_ids, timeout=timeout, **options
        ) as chunks:
            return Completion.join([chunk async for chunk in chunks])

    async def is_ready(self, timeout: float = 5.0) -> bool:
        """Whether the server answers and the model is ready for requests."""
        request = service_pb2.ModelReadyRequest(name=self._model)
        try:
            answer = await self._stub.ModelReady(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError:
            return False
        return bool(answer.ready)

    async def close(self) -> None:
        """Close the connection; open streams end with `RequestCancelled`."""
        self._closed = True
        await self._channel.close()

    async def __aenter__(self) -> AsyncSpecdecClient:
        return self

    async def __aexit__(
        self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        await self.close()


class AsyncChunkStream(AsyncIterator[Chunk]):
    """The chunks of one request. Closing it, or cancelling its task, makes the server stop."""

    def __init__(self, call: Any, url: str, is_disconnected: Callable[[], bool]) -> None:
        self._call, self._url = call, url
        self._is_disconnected = is_disconnected
        self._reader = ResponseReader()
        self._closed = False

    async def __anext__(self) -> Chunk:
        while not self._reader.is_complete and not self._closed:
            try:
                message = await self._call.read()
            except grpc.RpcError as error:
                raise to_error(error, self._url, started=self._reader.started) from None
            except asyncio.CancelledError:
                # Either this task is cancelled, or someone closed what it was reading from.
                if self._closed or self._is_disconnected():
                    raise RequestCancelled("the request was cancelled") from None
                self._call.cancel()
                raise
            if message is grpc.aio.EOF:
                self._reader.end()
                break
            if (chunk := self._reader.read(message)) is not None:
                return chunk
        if self._reader.is_complete and not self._closed:
            with contextlib.suppress(grpc.RpcError):
                await self._call.read()  # see `close`: the end of the stream
        self.close()
        raise StopAsyncIteration

    def close(self) -> None:
        """Once the answer is complete the server ends the stream by itself: a cancel at that
        moment makes tritonserver 2.51 keep the request for good."""
        self._closed = True
        if not self._reader.is_complete:
            self._call.cancel()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> AsyncChunkStream:
        return self

    async def __aexit__(
        self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        self.close()
