"""From records to the numbers of the tables. Pure functions; times in seconds, rates in 1/s.

A quantity without data (no later token, no draft) is NaN, and the tables leave its place empty.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from specdec.client.bench.records import Level, Record, Work

T = TypeVar("T")
_BOOTSTRAP_ROUNDS = 2000
_INTERVAL = (2.5, 97.5)  # percent


def ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def median(values: Iterable[float]) -> float:
    """NaN of nothing."""
    found = list(values)
    return statistics.median(found) if found else math.nan


class Ratios(NamedTuple):
    """Of pairs that were measured one right after the other."""

    num_pairs: int
    median: float
    low: float
    high: float


def ratios(values: Iterable[float]) -> Ratios:
    """All NaN of nothing."""
    found = [value for value in values if not math.isnan(value)]
    ends = (min(found), max(found)) if found else (math.nan, math.nan)
    return Ratios(len(found), median(found), *ends)


def group(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """By key, in the order of first appearance."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def decode_rate(records: Sequence[Record]) -> float:
    """Tokens per second after the first chunk; NaN where there are none."""
    return ratio(sum(r.num_decode_tokens for r in records), sum(r.decode_seconds for r in records))


class Summary(NamedTuple):
    """Of some requests. Rates divide sums, so that long answers weigh as much as they take."""

    num_requests: int
    num_tokens: int
    ttft_seconds: float  # median
    tpot_seconds: float  # time after the first token / tokens after it
    tokens_per_second: float  # all tokens / all time, prefill included
    acceptance_rate: float  # accepted / drafted
    acceptance_length: float  # 1 + accepted / drafts, which the server counted
    tokens_per_pass: float  # output tokens / target passes, with and without drafts


def summarize(records: Sequence[Record]) -> Summary:
    """At least one record."""
    tokens = sum(r.num_tokens for r in records)
    return Summary(
        num_requests=len(records),
        num_tokens=tokens,
        ttft_seconds=statistics.median(r.ttft_seconds for r in records),
        tpot_seconds=ratio(
            sum(r.decode_seconds for r in records), sum(r.num_decode_tokens for r in records)
        ),
        tokens_per_second=ratio(tokens, sum(r.total_seconds for r in records)),
        acceptance_rate=ratio(
            sum(r.num_accepted_tokens for r in records), sum(r.num_draft_tokens for r in records)
        ),
        acceptance_length=_acceptance_length(records),
        tokens_per_pass=ratio(tokens, sum(r.num_target_passes for r in records)),
    )


def _acceptance_length(records: Sequence[Record]) -> float:
    works = [r.work for r in records if r.work is not None]
    if len(works) < len(records):
        return math.nan
    return 1 + ratio(sum(r.num_accepted_tokens for r in records), sum(w.num_drafts for w in works))


class Speedup(NamedTuple):
    """Of a variant over a baseline, over the prompts that both answered.

    `total` is the headline: tokens per second of everything, prefill included, over the same of
    the baseline. `low` and `high` bound its 95 % interval (bootstrap over prompts).
    """

    total: float
    low: float
    high: float
    decode: float  # the same without the time up to the first token
    median: float  # of the prompts' own ratios, prefill included


class _Sums(NamedTuple):
    """Of one prompt's repeats."""

    tokens: float
    seconds: float
    decode_tokens: float
    decode_seconds: float


def _sums(records: Sequence[Record]) -> dict[str, _Sums]:
    return {
        prompt: _Sums(
            sum(r.num_tokens for r in some),
            sum(r.total_seconds for r in some),
            sum(r.num_decode_tokens for r in some),
            sum(r.decode_seconds for r in some),
        )
        for prompt, some in group(records, lambda r: r.prompt).items()
    }


def speedup(records: Sequence[Record], baseline: Sequence[Record]) -> Speedup:
    """All NaN if the two have no prompt in common."""
    ours, theirs = _sums(records), _sums(baseline)
    names = [name for name in ours if name in theirs]
    if not names:
        return Speedup(*[math.nan] * 5)
    a = np.array([ours[name] for name in names])  # [prompts, 4]
    b = np.array([theirs[name] for name in names])
    own = (a[:, 0] / a[:, 1]) / (b[:, 0] / b[:, 1])
    # One prompt says nothing of how much prompts differ.
    low, high = _bootstrap(a, b) if len(names) > 1 else (math.nan, math.nan)
    a, b = a.sum(axis=0), b.sum(axis=0)
    return Speedup(
        total=(a[0] / a[1]) / (b[0] / b[1]),
        low=low,
        high=high,
        decode=ratio(ratio(a[2], a[3]), ratio(b[2], b[3])),
        median=float(np.median(own)),
    )


def _bootstrap(
    ours: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    theirs: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> tuple[float, float]:
    """Interval of the ratio of total rates; the same prompts are drawn for both."""
    count = len(ours)
    drawn = np.random.default_rng(0).integers(0, count, (_BOOTSTRAP_ROUNDS, count))
    a, b = ours[drawn].sum(axis=1), theirs[drawn].sum(axis=1)  # [rounds, 4]
    ratios = (a[:, 0] / a[:, 1]) / (b[:, 0] / b[:, 1])
    low, high = np.percentile(ratios, _INTERVAL)
    return float(low), float(high)


class Equality(NamedTuple):
    """Whether every prompt had the same token ids in all its answers."""

    num_prompts: int  # with more than one answer
    num_equal: int
    different: tuple[str, ...]  # names of the others


def equality(answers: Iterable[tuple[str, tuple[int, ...]]]) -> Equality:
    """`answers` are (prompt, token ids); prompts with one answer are left out."""
    groups = group(answers, lambda pair: pair[0])
    compared = {name: {ids for _, ids in some} for name, some in groups.items() if len(some) > 1}
    different = tuple(name for name, found in compared.items() if len(found) > 1)
    return Equality(len(compared), len(compared) - len(different), different)


class StepSplit(NamedTuple):
    """Mean seconds of one step, by where they went."""

    num_steps: float
    step_seconds: float
    draft_seconds: float
    verify_seconds: float
    orchestration_seconds: float
    orchestration_share: float  # of the step


def step_split(work: Work) -> StepSplit:
    return StepSplit(
        num_steps=work.num_steps,
        step_seconds=ratio(work.step_seconds, work.num_steps),
        draft_seconds=ratio(work.draft_seconds, work.num_steps),
        verify_seconds=ratio(work.verify_seconds, work.num_steps),
        orchestration_seconds=ratio(work.orchestration_seconds, work.num_steps),
        orchestration_share=ratio(work.orchestration_seconds, work.step_seconds),
    )


def total_work(records: Iterable[Record], prefills: Iterable[Record] = ()) -> Work | None:
    """What the server did for the records, less what each prompt's `prefill` cost.

    None if the server's counts are not known for all of them.
    """
    spent = {r.prompt: r.work for r in prefills}
    total, found = Work(), False
    for record in records:
        prefill = spent.get(record.prompt, Work())
        if record.work is None or prefill is None:
            return None
        total, found = total + record.work - prefill, True
    return total if found else None


class Throughput(NamedTuple):
    """Of one closed loop."""

    seconds: float  # first request sent to last token
    tokens_per_second: float  # over all of it
    full_tokens_per_second: float  # while all clients were busy: without the loop's two ends
    ttft_p50: float
    ttft_p95: float
    tpot_seconds: float


def throughput(level: Level) -> Throughput:
    """At least one record."""
    records = level.records
    starts = sorted(r.started_at for r in records)
    ends = sorted(r.started_at + r.total_seconds for r in records)
    tokens = sum(r.num_tokens for r in records)
    ttfts = [r.ttft_seconds for r in records]
    full = math.nan
    busy = min(level.concurrency, len(records))
    begin, end = starts[busy - 1], ends[len(records) - busy]
    if end > begin:
        full = _tokens_between(records, begin, end) / (end - begin)
    summary = summarize(records)
    return Throughput(
        seconds=ends[-1] - starts[0],
        tokens_per_second=ratio(tokens, ends[-1] - starts[0]),
        full_tokens_per_second=full,
        ttft_p50=float(np.percentile(ttfts, 50)),
        ttft_p95=float(np.percentile(ttfts, 95)),
        tpot_seconds=summary.tpot_seconds,
    )


def _tokens_between(records: Sequence[Record], begin: float, end: float) -> int:
    return sum(
        count
        for record in records
        for seconds, count in zip(record.chunk_seconds, record.chunk_tokens, strict=True)
        if begin < record.started_at + seconds <= end
    )
