"""From waves to the time until the gain is back. Pure functions; times in seconds.

            rise        fall  back
    lone  ───┤▁▁▁▁▁▁▁▁▁▁▁├▁▁▁──┤──────     its tokens come slower among others
    calm  ──────────────────────────       the same tokens, alone

After the fall, every stretch of `NUM_PASSES` of the lone request's passes is set against the same
tokens in calm: the gain is back at the beginning of the first one that takes no longer than
1 / `SHARE` of its time in calm.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from specdec.client.bench.records import Record, Results, Wave
from specdec.client.bench.stats import decode_rate, median, ratio

NUM_PASSES = 16
SHARE = 0.9


class Recovery(NamedTuple):
    """Of one wave. Rates are the lone request's tokens per second."""

    before_rate: float
    load_rate: float
    after_rate: float  # from when it is back; from the fall if it never is
    calm_rate: float  # of the same tokens as `after_rate`
    back_seconds: float  # from the fall; NaN: not as far as was seen
    seen_seconds: float  # from the fall to the last stretch that could be judged


def recovery(wave: Wave) -> Recovery:
    """The two answers must hold the same tokens."""
    lone, calm = _arrivals(wave.lone), _arrivals(wave.calm)
    ends = np.cumsum(wave.lone.chunk_tokens) - 1  # the last token of every chunk
    rise, fall = np.searchsorted(lone[ends], (wave.rise_seconds, wave.fall_seconds))  # chunks
    back, start = math.nan, ends[max(0, fall - 1)]
    starts = ends[fall : max(fall, len(ends) - NUM_PASSES)]
    for first, last in zip(starts, ends[fall + NUM_PASSES :], strict=True):
        if calm[last] - calm[first] >= SHARE * (lone[last] - lone[first]):
            back, start = float(lone[first]) - wave.fall_seconds, first
            break
    return Recovery(
        before_rate=_rate(lone, ends[0], ends[max(0, rise - 1)]),
        load_rate=_rate(lone, ends[max(0, rise - 1)], ends[max(0, fall - 1)]),
        after_rate=_rate(lone, start, ends[-1]),
        calm_rate=_rate(calm, start, ends[-1]),
        back_seconds=back,
        seen_seconds=float(lone[starts[-1]]) - wave.fall_seconds if len(starts) else 0.0,
    )


def _arrivals(record: Record) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[tokens]: when each came, since the request was sent."""
    return np.repeat(np.array(record.chunk_seconds), np.array(record.chunk_tokens))


def _rate(arrivals: np.ndarray[tuple[int], np.dtype[np.float64]], first: int, last: int) -> float:
    """Tokens per second behind token `first` up to token `last`; NaN if there is none."""
    return ratio(last - first, float(arrivals[last] - arrivals[first]))


class WavesSummary(NamedTuple):
    """Of all waves."""

    recoveries: tuple[Recovery, ...]
    median_back_seconds: float  # one that was not seen counts as never; NaN: most were not
    worst_back_seconds: float  # NaN: one was not seen
    calm_gain: float  # the lone request's decode rate in calm over K=0's
    num_lone: int  # answers of the lone request, in calm and in waves
    num_lone_equal: int  # with the same ids as K=0's
    num_load: int  # answers of the others of which something had come, and which K=0 has given too
    num_load_equal: int  # with the same ids as far as they got


def summarize_waves(results: Results) -> WavesSummary:
    """At least one wave."""
    recoveries = tuple(recovery(wave) for wave in results.waves)
    backs = [math.inf if math.isnan(r.back_seconds) else r.back_seconds for r in recoveries]
    plain = {r.prompt: r for r in results.wave_plain}
    lone = [r for wave in results.waves for r in (wave.calm, wave.lone)]
    reference = plain[lone[0].prompt]
    load = [e for wave in results.waves for e in wave.load if e.token_ids and e.prompt in plain]
    return WavesSummary(
        recoveries=recoveries,
        median_back_seconds=_finite(median(backs)),
        worst_back_seconds=_finite(max(backs)),
        calm_gain=ratio(decode_rate([w.calm for w in results.waves]), decode_rate([reference])),
        num_lone=len(lone),
        num_lone_equal=sum(r.token_ids == reference.token_ids for r in lone),
        num_load=len(load),
        num_load_equal=sum(
            plain[e.prompt].token_ids[: len(e.token_ids)] == e.token_ids for e in load
        ),
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
