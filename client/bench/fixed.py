"""The adaptive draft length against every fixed one: what does adapting gain, or cost?

No single length suits all prompts; the best of them is known only after all were tried. The
adaptive default must not be slower than that one over the whole set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specdec.client.bench.load import Driver
from specdec.client.bench.plan import Plan, in_turns
from specdec.client.bench.progress import Progress
from specdec.client.bench.records import Record, Results, Variant
from specdec.client.bench.stats import (
    Equality,
    Speedup,
    Summary,
    decode_rate,
    equality,
    speedup,
    summarize,
)
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import RequestRejected

ADAPTIVE = Variant("adaptive", {"adaptive": True})


def fixed_variants(lengths: Sequence[int]) -> tuple[Variant, ...]:
    """K=0, the server's default drafter adapting, then that drafter with each length at every
    step; nothing if there is no length."""
    fixed = (Variant(f"K={n}", {"num_draft_tokens": n, "adaptive": False}) for n in lengths)
    return (PLAIN, ADAPTIVE, *fixed) if lengths else ()


def measure_fixed(driver: Driver, plan: Plan, results: Results, progress: Progress) -> None:
    """Records go to `results.fixed`; a prompt that is refused is noted and left out."""
    for index, prompt in enumerate(plan.prompts if plan.fixed else ()):
        turns = [
            (variant, repeat)
            for repeat in range(plan.repeats)
            for variant in in_turns(plan.fixed, index + repeat)
        ]
        for done, (variant, repeat) in enumerate(turns):
            progress.begin(f"{prompt.name}, {variant.name}")
            try:
                results.fixed.append(driver.measured(prompt, variant, repeat=repeat))
            except RequestRejected as error:
                results.note(f"{prompt.name} was left out: {error}")
                progress.advance(len(turns) - done)
                break
            progress.advance(1.0)


class Length(NamedTuple):
    """One fixed draft length over all prompts."""

    variant: str
    summary: Summary
    decode_tokens_per_second: float
    adaptive: Speedup  # of the adaptive default over this length


class Comparison(NamedTuple):
    """Over the prompts that all variants have answered."""

    num_prompts: int
    adaptive: Length  # against itself
    lengths: tuple[Length, ...]  # K=0 first
    equality: Equality

    @property
    def best(self) -> Length:
        """By all tokens over all time."""
        return max(self.lengths, key=lambda length: length.summary.tokens_per_second)


def compare_fixed(results: Results) -> Comparison | None:
    """None while no prompt is answered by all."""
    names = [v.name for v in results.fixed_variants]
    answered = {name: {r.prompt for r in _of(results.fixed, name)} for name in names}
    common = set.intersection(*answered.values()) if answered else set()
    if not common:
        return None
    records = [r for r in results.fixed if r.prompt in common]
    adaptive = _of(records, ADAPTIVE.name)
    found = {name: _length(_of(records, name), adaptive) for name in names}
    return Comparison(
        num_prompts=len(common),
        adaptive=found.pop(ADAPTIVE.name),
        lengths=tuple(found.values()),
        equality=equality((r.prompt, r.token_ids) for r in records),
    )


def _length(records: Sequence[Record], adaptive: Sequence[Record]) -> Length:
    summary = summarize(records)
    return Length(
        variant=records[0].variant,
        summary=summary,
        decode_tokens_per_second=decode_rate(records),
        adaptive=speedup(adaptive, records),
    )


def _of(records: Sequence[Record], name: str) -> list[Record]:
    return [r for r in records if r.variant == name]
