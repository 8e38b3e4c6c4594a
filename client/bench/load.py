"""Sends requests and times them: one at a time, or many at once.

Knows the client and the server's counters; knows nothing of tables or of what is compared.
"""

from __future__ import annotations

import random
import secrets
import string
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specdec.client.bench.metrics import Scraper
from specdec.client.bench.records import Level, Prompt, Record, Variant, Work
from specdec.client.client import ChunkStream, SpecdecClient
from specdec.client.errors import RequestCancelled, StreamBroken
from specdec.client.results import Chunk

T = TypeVar("T")
# A request so short that it costs next to nothing, and drafts whatever the server thinks of it.
_CERTAIN_DRAFT = {"max_tokens": 3, "min_tokens": 3, "num_draft_tokens": 1, "adaptive": False}
_OPENING = Prompt("opening", "opening", "Hello.")


@dataclass(frozen=True, slots=True)
class Settings:
    """The same for every request of a run."""

    max_tokens: int = 128
    temperature: float = 0.0
    raw: bool = False  # no chat template
    timeout: float | None = 600.0
    clears_cache: bool = True  # before every request that runs alone; and drafters know nothing
    num_slots: int = 16  # sequences the server's prefix cache holds


def seed_of(prompt: Prompt) -> int:
    """The same for every variant, another one for every prompt."""
    return zlib.crc32(prompt.text.encode())


class Driver:
    """Runs requests; its methods raise what the client raises."""

    def __init__(
        self, client: SpecdecClient, settings: Settings, scraper: Scraper | None = None
    ) -> None:
        """Without `scraper`, records say nothing of the server's own counts."""
        self._client = client
        self.settings = settings
        self._scraper = scraper
        self._salt = secrets.token_hex(4)  # an earlier run on this server must not help this one
        self._streams: set[ChunkStream] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def source(self, prompt: Prompt) -> dict[str, Any]:
        if prompt.token_ids:
            return {"input_ids": prompt.token_ids}
        if self.settings.raw:
            return {"prompt": prompt.text}
        return {"messages": [{"role": "user", "content": prompt.text}]}

    def request(
        self,
        prompt: Prompt,
        variant: Variant,
        *,
        repeat: int = 0,
        turn: str = "",
        on_chunk: Callable[[float, Chunk], None] = lambda now, chunk: None,
        on_stream: Callable[[ChunkStream], None] = lambda stream: None,
        **options: Any,
    ) -> Record:
        """One request to its end.

        Args:
            repeat: noted in the record.
            turn: what drafters remember, and the prefix cache, serves this variant's same turn and
                repeat: one variant must not learn a prompt's answer from another.
            on_chunk: told of every chunk with tokens, and its time.
            on_stream: given the stream once it is open, to close it early.
            options: of the request; they go before the variant's and the settings'.
        """
        asked = {
            "max_tokens": self.settings.max_tokens,
            "temperature": self.settings.temperature,
            "seed": seed_of(prompt),
            **variant.options,
            **options,
        }
        if self.settings.clears_cache:
            asked["cache_salt"] = "/".join((self._salt, variant.name, turn, str(repeat)))
        chunks: list[tuple[float, Chunk]] = []
        started = time.perf_counter()
        stream = self._client.stream(**self.source(prompt), timeout=self.settings.timeout, **asked)
        self._register(stream)
        on_stream(stream)
        try:
            with stream:
                for chunk in stream:
                    now = time.perf_counter()
                    chunks.append((now - started, chunk))
                    if chunk.token_ids:
                        on_chunk(now, chunk)
        finally:
            with self._lock:
                self._streams.discard(stream)
        return _record(prompt, variant, repeat, started, chunks)

    def measured(
        self, prompt: Prompt, variant: Variant, *, repeat: int = 0, **options: Any
    ) -> Record:
        """One request alone on the server, with what the server counted for it."""
        if self.settings.clears_cache:
            self.clear_cache(variant)
        record, work = self.counted(
            lambda: self.request(prompt, variant, repeat=repeat, **options), 1
        )
        return replace(record, work=work)

    def counted(self, run: Callable[[], T], num_requests: int) -> tuple[T, Work | None]:
        """(what `run` returns, what the server counted for its `num_requests` requests)."""
        if self._scraper is None:
            return run(), None
        before = self._scraper.read()
        result = run()
        return result, self._scraper.after(before, num_requests)

    def calls_draft_model(self, prompt: Prompt, variant: Variant) -> bool:
        """Whether the server spends time in a draft model for this variant; False if nobody can
        tell. Which drafters call one is the server's affair, and depends on what it has loaded.
        """
        if variant.is_plain or self._scraper is None:
            return False
        _, work = self.counted(lambda: self.request(prompt, variant, **_CERTAIN_DRAFT), 1)
        return work is not None and work.draft_seconds > 0

    def clear_cache(self, variant: Variant) -> None:
        """Fill every slot of the prefix cache with a few tokens that are nobody's prompt.

        A prompt that was just answered would otherwise cost its next variant no prefill. A draft
        model has a cache of its own, which only requests that draft can fill.
        """
        options, count = _shortest(variant), self.settings.num_slots

        def fill(_: int) -> None:
            word = "".join(random.choices(string.ascii_lowercase, k=8))
            self._client.generate(word, timeout=self.settings.timeout, **options)

        def fill_all() -> None:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(fill, range(count)))

        self.counted(fill_all, count)

    def read_opening(self, variant: Variant, turn: str) -> None:
        """Bring into the prefix cache what the chat template puts before every prompt.

        Else each of the requests that happen to arrive in the first step would read it for itself.
        `turn`: see `request`.
        """
        self.counted(lambda: self.request(_OPENING, variant, turn=turn, **_shortest(variant)), 1)

    def closed_loop(
        self,
        jobs: Sequence[tuple[Prompt, int]],
        variant: Variant,
        concurrency: int,
        *,
        turn: str = "",
        on_done: Callable[[], None] = lambda: None,
        num_tokens: Callable[[Prompt], int] | None = None,
    ) -> Level:
        """Answer all jobs, (prompt, repeat) each, with `concurrency` requests in flight.

        Args:
            turn: see `request`.
            num_tokens: of an answer, exactly; else the settings' at most.
        """

        def ask(job: tuple[Prompt, int]) -> Record:
            options: dict[str, Any] = {}
            if num_tokens is not None:
                options = dict.fromkeys(("max_tokens", "min_tokens"), num_tokens(job[0]))
            record = self.request(job[0], variant, turn=turn, **options)
            on_done()
            return replace(record, repeat=job[1])

        records, work = self.counted(lambda: self._run_jobs(jobs, ask, concurrency), len(jobs))
        return Level(variant.name, concurrency, tuple(records), work)

    def _run_jobs(
        self,
        jobs: Sequence[tuple[Prompt, int]],
        ask: Callable[[tuple[Prompt, int]], Record],
        concurrency: int,
    ) -> list[Record]:
        left = list(reversed(jobs))
        records: list[Record] = []
        errors: list[BaseException] = []

        def work() -> None:
            while not (errors or self._stopped):
                try:
                    job = left.pop()
                except IndexError:
                    return
                try:
                    records.append(ask(job))
                except BaseException as error:
                    errors.append(error)
                    return

        threads = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            self.close_streams()
            raise errors[0]
        return records

    def close_streams(self) -> None:
        """Cancel what is in flight."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def stop(self) -> None:
        """Cancel what is in flight and start nothing more; any thread may call it."""
        with self._lock:
            self._stopped = True
        self.close_streams()

    def _register(self, stream: ChunkStream) -> None:
        with self._lock:
            self._streams.add(stream)
            stopped = self._stopped
        if stopped:
            stream.close()


def _shortest(variant: Variant) -> dict[str, Any]:
    """Options of a request that only reads its prompt, with the models that this variant uses."""
    if variant.uses_draft_model and not variant.is_plain:
        return {**variant.options, **_CERTAIN_DRAFT}
    return {"max_tokens": 1, "num_draft_tokens": 0}


def _record(
    prompt: Prompt,
    variant: Variant,
    repeat: int,
    started: float,
    chunks: Sequence[tuple[float, Chunk]],
) -> Record:
    """Raises `RequestCancelled`, `StreamBroken`: the answer is not whole."""
    stats = chunks[-1][1].stats if chunks else None
    if stats is None:
        raise RequestCancelled("the request was cancelled before it was complete")
    emitted = [(seconds, len(chunk.token_ids)) for seconds, chunk in chunks if chunk.token_ids]
    if not emitted:
        raise StreamBroken(f"the answer to {prompt.name} has no tokens")
    return Record(
        prompt=prompt.name,
        category=prompt.category,
        variant=variant.name,
        repeat=repeat,
        token_ids=tuple(t for _, chunk in chunks for t in chunk.token_ids),
        finish_reason=chunks[-1][1].finish_reason or "",
        num_input_tokens=stats.num_input_tokens,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        num_target_passes=stats.num_target_passes,
        started_at=started,
        chunk_seconds=tuple(seconds for seconds, _ in emitted),
        chunk_tokens=tuple(count for _, count in emitted),
    )
