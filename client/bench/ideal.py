"""What speculation could gain with no cost but the graph's: the bare graph's own passes, summed.

    plain        one pass of one row for every token after the first
    speculative  one pass for every target pass the server took, as wide as its proposal was

The server says per request how many passes there were, how many of them had a proposal and how
many tokens these proposed together. Each pass with a proposal is charged at their mean width;
costs between measured widths are interpolated. Costs grow faster the wider a pass is, so this
favours the ideal, never the server.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from specdec.client.bench.records import BareRun, PassCost, Record
from specdec.client.bench.stats import group, ratio


class CostCurve:
    """Median seconds of a pass by cache length and rows."""

    def __init__(self, costs: Iterable[PassCost]) -> None:
        samples: dict[int, dict[int, list[float]]] = {}
        for cost in costs:
            by_rows = samples.setdefault(cost.cache_length, {})
            by_rows.setdefault(cost.num_rows, []).append(cost.seconds)
        self.by_length = {
            length: {rows: statistics.median(found) for rows, found in sorted(by_rows.items())}
            for length, by_rows in sorted(samples.items())
        }

    def seconds(self, cache_length: int, num_rows: float) -> float:
        """Raises KeyError: nothing was measured at this cache length."""
        curve = self.by_length[cache_length]
        return float(np.interp(num_rows, list(curve), list(curve.values())))


class Costs(NamedTuple):
    """Seconds of the same text by the bare graph: all after the first token, and the prompt."""

    plain: float
    speculative: float
    prefill: float


def ideal_costs(record: Record, run: BareRun, curve: CostCurve) -> Costs:
    """Of one answer. `run` is its prompt through the bare loop."""
    passes = record.num_target_passes - 1  # the first one ends the prefill
    # Without the server's counters every pass is taken to have proposed.
    drafts = passes if record.work is None else min(passes, record.work.num_drafts)
    rows = 1 + (record.num_draft_tokens / drafts if drafts else 0.0)
    one = curve.seconds(run.cache_length, 1)
    return Costs(
        plain=record.num_decode_tokens * one,
        speculative=(passes - drafts) * one + drafts * curve.seconds(run.cache_length, rows),
        prefill=run.prefill_seconds,
    )


class Ideal(NamedTuple):
    """Speed-ups by the bare graph's costs."""

    decode: float
    total: float  # prefill included
    mean_rows: float  # of a pass after the first token


def ideal(records: Sequence[Record], runs: Sequence[BareRun], curve: CostCurve) -> Ideal:
    """Of one variant's records, over the prompts that went through the bare loop."""
    by_prompt = {run.prompt: run for run in runs if run.cache_length in curve.by_length}
    found = [(r, by_prompt[r.prompt]) for r in records if r.prompt in by_prompt]
    costs = [ideal_costs(record, run, curve) for record, run in found]
    plain = sum(c.plain for c in costs)
    speculative = sum(c.speculative for c in costs)
    prefill = sum(c.prefill for c in costs)
    passes = sum(record.num_target_passes - 1 for record, _ in found)
    return Ideal(
        decode=ratio(plain, speculative),
        total=ratio(prefill + plain, prefill + speculative),
        mean_rows=1 + ratio(sum(record.num_draft_tokens for record, _ in found), passes),
    )


class BareRatio(NamedTuple):
    """Rate of plain decoding through the server over the bare loop's: 1 is no loss at all."""

    decode: float
    total: float  # prefill included
    num_prompts: int
    num_equal: int  # prompts where both wrote the same ids


def bare_ratio(plain: Sequence[Record], runs: Sequence[BareRun]) -> BareRatio:
    """`plain` are K=0 records; answers of the same prompt and repeat are compared."""
    by_key = {(run.prompt, run.repeat): run for run in runs}
    pairs = [(r, by_key[r.prompt, r.repeat]) for r in plain if (r.prompt, r.repeat) in by_key]
    served = _Rates.of([(r.num_tokens, r.ttft_seconds, r.decode_seconds) for r, _ in pairs])
    bare = _Rates.of(
        [(len(run.token_ids), run.prefill_seconds, run.decode_seconds) for _, run in pairs]
    )
    by_prompt = group(pairs, lambda pair: pair[0].prompt).values()
    return BareRatio(
        decode=ratio(served.decode, bare.decode),
        total=ratio(served.total, bare.total),
        num_prompts=len(by_prompt),
        num_equal=sum(all(r.token_ids == run.token_ids for r, run in some) for some in by_prompt),
    )


class _Rates(NamedTuple):
    """Tokens per second."""

    decode: float
    total: float

    @classmethod
    def of(cls, answers: Sequence[tuple[int, float, float]]) -> _Rates:
        """Answers are (tokens, seconds to the first one, seconds after it), one by one."""
        tokens = sum(count for count, _, _ in answers)
        prefill = sum(seconds for _, seconds, _ in answers)
        decode = sum(seconds for _, _, seconds in answers)
        return cls(ratio(tokens - len(answers), decode), ratio(tokens, prefill + decode))
