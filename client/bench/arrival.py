"""How long a new request waits for its first token while others decode."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specdec.client.bench.load import Driver
from specdec.client.bench.records import Arrival, Prompt, Variant
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import ClientError, RequestCancelled

NUM_BACKGROUND = 4
_BACKGROUND = "Write a very long story about a journey along a river, from its spring to the sea."
_BACKGROUND_TOKENS = 512  # then it starts again
_SETTLE_STEPS = 12  # steps of the others before the first arrival
_RECENT = 8  # steps that tell how long one takes just now
_PATIENCE_SECONDS = 120.0


class Background:
    """Requests that decode until they are stopped; each starts again when it ends."""

    def __init__(self, driver: Driver, variant: Variant, count: int) -> None:
        self._driver, self._variant = driver, variant
        self._times: list[list[float]] = [[] for _ in range(count)]
        self._stopping = False
        self._error: ClientError | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(times,), daemon=True) for times in self._times
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            while thread.is_alive():  # it may just be opening another stream
                self._driver.close_streams()
                thread.join(timeout=0.1)

    def step_seconds(self) -> float:
        """Median time between chunks of late: every step gives each of them one."""
        gaps = [
            after - before
            for times in self._times
            for before, after in zip(times[-_RECENT - 1 :], times[-_RECENT:], strict=False)
        ]
        return statistics.median(gaps)

    def wait_steps(self, count: int) -> None:
        """Until each has decoded `count` more steps. Raises what ended one of them."""
        wanted = [len(times) + count for times in self._times]
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while any(len(t) < n for t, n in zip(self._times, wanted, strict=True)):
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise RequestCancelled(
                    f"the server decoded no {count} steps in {_PATIENCE_SECONDS:.0f} s"
                )
            time.sleep(0.002)

    def _run(self, times: list[float]) -> None:
        while not self._stopping:
            prompt = Prompt("background", "background", f"[{random.getrandbits(32)}] {_BACKGROUND}")
            try:
                self._driver.request(
                    prompt,
                    self._variant,
                    on_chunk=lambda now, _: times.append(now),
                    max_tokens=_BACKGROUND_TOKENS,
                    min_tokens=_BACKGROUND_TOKENS,
                )
            except ClientError as error:
                if not self._stopping:
                    self._error = error
                return


@contextmanager
def background(driver: Driver, variant: Variant, count: int) -> Iterator[Background]:
    load = Background(driver, variant, count)
    load.start()
    try:
        load.wait_steps(_SETTLE_STEPS)
        yield load
    finally:
        load.stop()


def measure_arrivals(
    driver: Driver,
    prompts: Sequence[Prompt],
    variant: Variant,
    *,
    on_arrival: Callable[[Arrival], None],
    num_background: int = NUM_BACKGROUND,
) -> None:
    """One arrival per prompt, one at a time, at a random moment of a step.

    Each text is made unique by a number in front of it: none of it is in the prefix cache but
    what every chat begins with, and that is there for both of the compared requests.
    """
    idle = [_idle(driver, prompt) for prompt in prompts]
    with background(driver, variant, num_background) as load:
        for prompt, (num_input_tokens, prefill_seconds) in zip(prompts, idle, strict=True):
            load.wait_steps(_RECENT + 1)
            step_seconds = load.step_seconds()
            time.sleep(random.random() * step_seconds)
            record = driver.request(_unique(prompt), variant, max_tokens=1)
            on_arrival(
                Arrival(
                    variant=variant.name,
                    prompt=prompt.name,
                    num_input_tokens=num_input_tokens,
                    num_background=num_background,
                    prefill_seconds=prefill_seconds,
                    ttft_seconds=record.ttft_seconds,
                    step_seconds=step_seconds,
                )
            )


def _idle(driver: Driver, prompt: Prompt) -> tuple[int, float]:
    """(prompt tokens, TTFT) with nothing else running; the median of three."""
    driver.request(_unique(prompt), PLAIN, max_tokens=1)
    records = [driver.request(_unique(prompt), PLAIN, max_tokens=1) for _ in range(3)]
    return records[0].num_input_tokens, statistics.median(r.ttft_seconds for r in records)


def _unique(prompt: Prompt) -> Prompt:
    return prompt._replace(text=f"[{random.randrange(10_000, 100_000)}] {prompt.text}")
