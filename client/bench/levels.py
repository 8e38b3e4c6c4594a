"""Many requests at once: the same work for every variant, in turns, and how they compare.

Every round is a closed loop over the same prompts. How long an answer is depends on its prompt
alone, so that all variants of a round do the same work; a ratio compares two loops of one round.
Lengths differ, as those of real answers do: of equal ones, requests that began together would end
together, and read the next prompts in one pass, as long as nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from specdec.client.bench.load import Driver, seed_of
from specdec.client.bench.plan import Plan, in_turns, load_effort
from specdec.client.bench.progress import Progress
from specdec.client.bench.records import Prompt, Results
from specdec.client.bench.stats import (
    Equality,
    Ratios,
    equality,
    median,
    ratio,
    ratios,
    throughput,
)


def answer_range(mean: int) -> tuple[int, int]:
    """Of the tokens of an answer, both included."""
    return mean - mean // 2, mean + mean // 2


def answer_tokens(prompt: Prompt, mean: int) -> int:
    """The same in every variant, and as often short as long."""
    low, high = answer_range(mean)
    return low + seed_of(prompt) % (high - low + 1)


def measure_levels(driver: Driver, plan: Plan, results: Results, progress: Progress) -> None:
    """Levels go to `results.levels`, one for every loop."""
    for concurrency in plan.concurrency:
        for number in range(plan.rounds):
            for variant in in_turns(plan.variants, number):
                progress.begin(f"{concurrency} at once, round {number + 1}, {variant.name}")
                turn = f"{concurrency}/{number}"
                if driver.settings.clears_cache:
                    driver.clear_cache(variant)
                    driver.read_opening(variant, turn)
                level = driver.closed_loop(
                    plan.jobs(concurrency, number),
                    variant,
                    concurrency,
                    turn=turn,
                    on_done=partial(progress.advance, load_effort(concurrency)),
                    num_tokens=partial(answer_tokens, mean=driver.settings.max_tokens),
                )
                results.levels.append(replace(level, round=number))


class LevelSummary(NamedTuple):
    """Of one variant at one level, over its rounds."""

    concurrency: int
    variant: str
    num_rounds: int
    num_requests: int  # in a round
    tokens_per_second: float  # median of the rounds
    against_plain: Ratios  # of tokens per second over those of K=0 in the same round
    num_equal: int  # answers with the same ids as K=0's to the same prompt
    num_compared: int


def summarize_levels(results: Results) -> Iterator[LevelSummary]:
    """Level by level, the variants in their order."""
    plain = results.variants[0].name
    answers = {
        r.prompt: r.token_ids for v in results.levels if v.variant == plain for r in v.records
    }
    for concurrency in dict.fromkeys(v.concurrency for v in results.levels):
        rounds = {(v.variant, v.round): v for v in results.levels if v.concurrency == concurrency}
        rates = {key: throughput(level).tokens_per_second for key, level in rounds.items()}
        for variant in results.variants:
            own = {n: level for (name, n), level in rounds.items() if name == variant.name}
            if not own:
                continue
            pairs = [
                ratio(rates[variant.name, n], rates[plain, n]) for n in own if (plain, n) in rates
            ]
            records = [r for level in own.values() for r in level.records if r.prompt in answers]
            yield LevelSummary(
                concurrency=concurrency,
                variant=variant.name,
                num_rounds=len(own),
                num_requests=len(next(iter(own.values())).records),
                tokens_per_second=median(rates[variant.name, n] for n in own),
                against_plain=ratios(pairs),
                num_equal=sum(r.token_ids == answers[r.prompt] for r in records),
                num_compared=len(records),
            )


def level_equality(results: Results) -> Equality:
    """Over all variants, rounds and levels. Answers of single requests are not compared: they may
    end before the number of tokens that loops ask for."""
    return equality((r.prompt, r.token_ids) for level in results.levels for r in level.records)
