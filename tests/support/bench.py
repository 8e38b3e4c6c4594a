"""A server one can compute by hand, behind the client's interface, and records of any shape."""

from __future__ import annotations

import io
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from rich.console import Console, RenderableType

from specdec.client.bench.metrics import COUNTERS, PREFIX
from specdec.client.bench.records import Excerpt, Record, Wave, Work
from specdec.client.bench.tables import WIDTH
from specdec.client.results import Chunk, Completion, Stats

PROMPT_TOKENS = 10
NUM_SLOTS = 4


def record(
    prompt="chat/1",
    variant="K=0",
    *,
    category="chat",
    ttft=1.0,
    gap=0.5,
    chunks=(1, 1, 1, 1),
    drafted=0,
    accepted=0,
    started_at=0.0,
    token_ids=None,
    repeat=0,
    work=None,
) -> Record:
    """Chunks of so many tokens, the first after `ttft` seconds, the others `gap` apart."""
    return Record(
        prompt=prompt,
        category=category,
        variant=variant,
        repeat=repeat,
        token_ids=tuple(range(sum(chunks))) if token_ids is None else tuple(token_ids),
        finish_reason="length",
        num_input_tokens=PROMPT_TOKENS,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        num_target_passes=len(chunks),
        started_at=started_at,
        chunk_seconds=tuple(ttft + i * gap for i in range(len(chunks))),
        chunk_tokens=tuple(chunks),
        work=work,
    )


def wave(*, slow_chunks=4, num_chunks=60, load=None) -> Wave:
    """Chunks of two tokens, in calm 0.1 s apart.

    The load comes at 1.05 s, after ten chunks, and goes at 5.05 s, in which time four more came.
    The next `slow_chunks` take 0.5 s each, all later ones 0.1 s again.
    """
    gaps = [0.1] * 10 + [1.0] * 4 + [0.5] * slow_chunks
    gaps += [0.1] * (num_chunks - len(gaps))
    calm = record("lone", "default", ttft=0.1, gap=0.1, chunks=[2] * num_chunks)
    lone = replace(calm, chunk_seconds=tuple(itertools.accumulate(gaps[:num_chunks])))
    excerpts = (Excerpt("a", (1, 2, 3)), Excerpt("b", ())) if load is None else tuple(load)
    return Wave(calm, lone, 1.05, 5.05, excerpts)


class FakeStream:
    """Chunks as they come; closing it ends it early, without stats."""

    def __init__(self, chunks: Iterator[Chunk], on_end: Callable[[], None]) -> None:
        self._chunks, self._on_end = chunks, on_end
        self.closed = threading.Event()
        self._ended = False

    def __iter__(self):
        return self

    def __next__(self) -> Chunk:
        chunk = None if self.closed.is_set() else next(self._chunks, None)
        if chunk is None or self.closed.is_set():
            self.close()
            raise StopIteration
        return chunk

    def close(self) -> None:
        self.closed.set()
        if not self._ended:
            self._ended = True
            self._on_end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        if isinstance(self._chunks, Generator):
            self._chunks.close()  # the thread that iterates is the one that leaves


class FakeClient:
    """Answers with ids that depend on the prompt alone; with drafts, two in each later chunk.

    `failures` maps a part of a prompt to the error that its requests raise.
    """

    def __init__(self, *, step_seconds=0.0) -> None:
        self.requests: list[tuple[str, dict]] = []  # (text, options) as sent
        self.failures: dict[str, Exception] = {}
        self.in_flight = self.most_in_flight = 0
        self.work = Work()
        self.num_draft_errors = 0  # of each request
        self._step_seconds = step_seconds
        self._lock = threading.Lock()

    def is_ready(self) -> bool:
        return True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def stream(
        self, prompt=None, *, messages=None, input_ids=None, timeout=None, **options
    ) -> FakeStream:
        text = prompt if messages is None else messages[0]["content"]
        if input_ids is not None:
            text = " ".join(map(str, input_ids))
        with self._lock:
            self.requests.append((text, options))
        for part, error in self.failures.items():
            if part in text:
                raise error
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return FakeStream(self._answer(text, options), self._end)

    def generate(self, prompt=None, **options) -> Completion:
        with self.stream(prompt, **options) as chunks:
            return Completion.join(list(chunks))

    def _end(self) -> None:
        with self._lock:
            self.in_flight -= 1

    def _answer(self, text: str, options: dict) -> Iterator[Chunk]:
        width = 1 if options.get("num_draft_tokens") == 0 else 2
        ids = [len(text) + i for i in range(options["max_tokens"])]
        blocks = [ids[:1], *(ids[i : i + width] for i in range(1, len(ids), width))]
        drafts = (len(blocks) - 1) if width == 2 else 0
        accepted = sum(len(b) - 1 for b in blocks)
        stats = Stats(PROMPT_TOKENS, len(ids), 3 * drafts, accepted, len(blocks), 0.0, 0.0)
        for index, block in enumerate(blocks):
            time.sleep(self._step_seconds)
            flags = (*[True] * (len(block) - 1), False)
            is_last = index == len(blocks) - 1
            if is_last:
                self._count(len(blocks), drafts, len(ids))
            yield Chunk(
                "",
                tuple(block),
                flags,
                finish_reason="length" if is_last else None,
                stats=stats if is_last else None,
            )

    def _count(self, steps: int, drafts: int, tokens: int) -> None:
        """Each step takes 10 ms: 1 in the draft, 8 in the target."""
        work = Work(
            num_steps=steps,
            step_seconds=0.010 * steps,
            draft_seconds=0.001 * steps,
            verify_seconds=0.008 * steps,
            num_drafts=drafts,
            num_draft_tokens=3 * drafts,
            num_output_tokens=tokens,
            num_prompt_tokens=PROMPT_TOKENS,
            num_finished=1,
            num_draft_errors=self.num_draft_errors,
        )
        with self._lock:
            self.work += work

    def metrics(self) -> str:
        """The text of /metrics."""
        return "".join(
            f'{PREFIX}{counter}{{model="speculative"}} {getattr(self.work, name)!r}\n'
            for name, counter in COUNTERS.items()
        )


def show(*sections: RenderableType) -> str:
    """As printed: a wide terminal without colours."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False)
    for section in sections:
        console.print(section)
    return out.getvalue()


def table_rows(text: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in text.splitlines()]


class Recorder:
    """A progress bar's two verbs, noted."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.effort = 0.0

    def begin(self, what: str) -> None:
        self.begun.append(what)

    def advance(self, effort: float) -> None:
        self.effort += effort
