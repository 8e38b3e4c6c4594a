"""A square wave of load: one request decodes alone, then among many, then alone again.

The lone request's text gains a lot from drafts. It is answered in calm first, then with a load
that rises and falls while it decodes. Both answers hold the same tokens, so the time of any
stretch of the one can be set against the same stretch of the other (see `recovery`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from specdec.client.bench.asked import Asked
from specdec.client.bench.load import Driver
from specdec.client.bench.plan import Plan
from specdec.client.bench.progress import Progress
from specdec.client.bench.records import Excerpt, Prompt, Record, Results, Variant, Wave
from specdec.client.bench.variants import DEFAULT_NAME, PLAIN
from specdec.client.errors import RequestCancelled

NUM_AT_ONCE = 32  # the lone request included
NUM_TOKENS = 640  # of the lone request
_RISE = 64  # its tokens before the load comes
_LATEST_FALL = 256  # its tokens when the load goes, whatever else: the rest must show what returns
_LEAST_SECONDS = 2.0  # of load
_WARM_TOKENS = 8  # of each running request: by then the load is decoding
_LOAD_TOKENS = 384  # of each request of the load, if it is not cancelled before
_NUM_TEXTS = 4  # that the load asks for
_PATIENCE_SECONDS = 120.0  # in which something must have been decoded
_POLL_SECONDS = 0.005
_LONE = Prompt(
    "wave/lone",
    "wave",
    "Write this sentence forty times, one below the other: "
    "The ferry leaves at nine and comes back at five.",
)


def waves_effort(num_waves: int, max_tokens: int) -> float:
    """Of `measure_waves`, in answers of so many tokens."""
    return 0.7 * NUM_TOKENS / max_tokens * _num_parts(num_waves)


def _num_parts(num_waves: int) -> int:
    """Of about the same length: K=0, a first time with drafts, the waves, the load's texts."""
    return 3 + 2 * num_waves


def measure_waves(driver: Driver, plan: Plan, results: Results, progress: Progress) -> None:
    """Waves go to `results.waves`, what K=0 wrote of their texts to `results.wave_plain`."""
    if not plan.num_waves:
        return
    variant = next(v for v in plan.variants if v.name == DEFAULT_NAME)
    texts = sorted(plan.prompts, key=lambda p: len(p.text))[:_NUM_TEXTS]
    num_running = NUM_AT_ONCE if plan.max_running is None else plan.max_running
    num_warm = min(NUM_AT_ONCE, num_running) - 1
    done = partial(progress.advance, plan.waves_effort / _num_parts(plan.num_waves))
    progress.begin("wave, K=0 alone")
    results.wave_plain.append(_alone(driver, _LONE, PLAIN, NUM_TOKENS))
    done()
    progress.begin("wave, once with drafts")  # which drafters may remember from then on
    _alone(driver, _LONE, variant, NUM_TOKENS)
    done()
    for number in range(1, plan.num_waves + 1):
        progress.begin(f"wave {number}, calm")
        calm = _alone(driver, _LONE, variant, NUM_TOKENS)
        done()
        progress.begin(f"wave {number}, {NUM_AT_ONCE} at once")
        results.waves.append(_wave(driver, variant, calm, texts, num_warm=num_warm))
        done()
    progress.begin("wave, its load's texts with K=0")
    results.wave_plain.extend(_references(driver, texts, results.waves))
    done()


def _alone(driver: Driver, prompt: Prompt, variant: Variant, num_tokens: int) -> Record:
    return driver.request(prompt, variant, max_tokens=num_tokens, min_tokens=num_tokens)


def _wave(
    driver: Driver, variant: Variant, calm: Record, texts: Sequence[Prompt], *, num_warm: int
) -> Wave:
    """Raises what ended one of the requests."""
    lone = Asked(driver, _LONE, variant, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    with _cancelled_at_the_end([lone]) as all_asked:
        _wait(lambda: len(lone.token_ids) >= _RISE, all_asked)
        rise = time.perf_counter()
        load = [
            Asked(
                driver,
                texts[i % len(texts)],
                variant,
                max_tokens=_LOAD_TOKENS,
                min_tokens=_LOAD_TOKENS,
            )
            for i in range(NUM_AT_ONCE - 1)
        ]
        all_asked.extend(load)
        _wait(lambda: _is_held(lone, load, rise, num_warm), all_asked)
        for asked in load:
            asked.cancel()
        fall = time.perf_counter()
        _wait(lambda: lone.is_over, all_asked)
    assert lone.record is not None, "it is over and has no error"
    began = lone.record.started_at
    excerpts = tuple(Excerpt(a.prompt.name, tuple(a.token_ids)) for a in load)
    return Wave(calm, lone.record, rise - began, fall - began, excerpts)


def _is_held(lone: Asked, load: Sequence[Asked], rise: float, num_warm: int) -> bool:
    """The load has lasted long enough: it decoded for a while, or the lone request runs out."""
    if len(lone.token_ids) >= _LATEST_FALL:
        return True
    warm = sum(len(asked.token_ids) >= _WARM_TOKENS for asked in load)
    return warm >= num_warm and time.perf_counter() - rise >= _LEAST_SECONDS


@contextmanager
def _cancelled_at_the_end(asked: list[Asked]) -> Iterator[list[Asked]]:
    """Whatever happens, nothing is left running; more may be added to the list."""
    try:
        yield asked
    finally:
        for one in asked:
            one.cancel()
        for one in asked:
            one.join()


def _wait(is_reached: Callable[[], bool], asked: Sequence[Asked]) -> None:
    """Raises what ended one of the requests, or `RequestCancelled`: nothing moves."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_reached():
        for one in asked:
            if one.error is not None:
                raise one.error
        if time.monotonic() > deadline:
            raise RequestCancelled(f"the wave did not go on within {_PATIENCE_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    for one in asked:
        if one.error is not None:
            raise one.error


def _references(driver: Driver, texts: Sequence[Prompt], waves: Sequence[Wave]) -> Iterator[Record]:
    """What K=0 writes alone, as far as the load's answers got."""
    for prompt in texts:
        longest = max(
            (len(e.token_ids) for w in waves for e in w.load if e.prompt == prompt.name), default=0
        )
        if longest:
            yield _alone(driver, prompt, PLAIN, longest)
