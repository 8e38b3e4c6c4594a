"""A request on a thread of its own, to be watched and cancelled while it runs."""

from __future__ import annotations

import threading
from typing import Any

from specdec.client.bench.load import Driver
from specdec.client.bench.records import Prompt, Record, Variant
from specdec.client.client import ChunkStream
from specdec.client.errors import ClientError, RequestCancelled
from specdec.client.results import Chunk


class Asked:
    """Sent when it is made. Its owner reads it and cancels it from one thread."""

    def __init__(self, driver: Driver, prompt: Prompt, variant: Variant, **options: Any) -> None:
        self.prompt = prompt
        self.token_ids: list[int] = []  # so far
        self.record: Record | None = None  # once it is complete
        self.error: ClientError | None = None  # that ended it, other than `cancel`
        self._lock = threading.Lock()
        self._stream: ChunkStream | None = None
        self._cancelled = False
        self._thread = threading.Thread(
            target=self._run, args=(driver, variant, options), daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Returns at once; `join` waits for the end."""
        with self._lock:
            self._cancelled = True
            stream = self._stream
        if stream is not None:
            stream.close()

    def join(self) -> None:
        self._thread.join()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self, driver: Driver, variant: Variant, options: dict[str, Any]) -> None:
        try:
            self.record = driver.request(
                self.prompt, variant, on_chunk=self._chunk, on_stream=self._opened, **options
            )
        except ClientError as error:
            if not (self._cancelled and isinstance(error, RequestCancelled)):
                self.error = error

    def _chunk(self, _now: float, chunk: Chunk) -> None:
        self.token_ids.extend(chunk.token_ids)

    def _opened(self, stream: ChunkStream) -> None:
        with self._lock:
            self._stream = stream
            is_late = self._cancelled
        if is_late:
            stream.close()
