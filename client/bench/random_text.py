"""Text that nobody can predict: what speculation costs where it cannot gain.

Prompt and answer are random tokens. They are drawn by the target itself, at a temperature where
all tokens of its vocabulary are nearly alike, so that neither a tokenizer nor its size must be
known here. Answers are repeatable all the same: each has a seed of its own, used by all variants.
A text is sent once by every variant: no drafter may remember it from an earlier round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specdec.client.bench.load import Driver
from specdec.client.bench.plan import Plan, in_turns
from specdec.client.bench.progress import Progress
from specdec.client.bench.records import Prompt, Record, Results
from specdec.client.bench.stats import Ratios, decode_rate, group, ratio, ratios
from specdec.client.bench.variants import PLAIN

TEMPERATURE = 100.0  # the most that the server takes
NUM_PROMPT_TOKENS = 48
NUM_TEXTS = 6  # in a round
CATEGORY = "random"


def measure_random(driver: Driver, plan: Plan, results: Results, progress: Progress) -> None:
    """Records go to `results.random`."""
    num_tokens = driver.settings.max_tokens
    for index in range(plan.num_random * plan.rounds):
        name = f"{CATEGORY}/{index + 1}"
        progress.begin(f"{name}, its prompt")
        prompt = random_prompt(driver, name)
        progress.advance(1.0)
        for variant in in_turns(plan.variants, index):
            progress.begin(f"{name}, {variant.name}")
            results.random.append(
                driver.request(prompt, variant, temperature=TEMPERATURE, min_tokens=num_tokens)
            )
            progress.advance(1.0)


def random_prompt(driver: Driver, name: str) -> Prompt:
    """Random tokens, each of them once; the same for the same name and target."""
    drawn = driver.request(
        Prompt(name, CATEGORY, f"{name}, prompt"),
        PLAIN,
        temperature=TEMPERATURE,
        max_tokens=NUM_PROMPT_TOKENS,
        min_tokens=NUM_PROMPT_TOKENS,
    )
    return Prompt(name, CATEGORY, name, tuple(dict.fromkeys(drawn.token_ids)))


class RandomSummary(NamedTuple):
    """Of one variant over all random texts."""

    variant: str
    num_texts: int
    decode_tokens_per_second: float
    num_draft_tokens: int
    num_accepted_tokens: int
    total: float  # decode tokens per second of all texts over those of K=0
    against_plain: Ratios  # the same, text by text
    distinct_share: float  # of an answer's tokens: those that it holds for the first time
    num_equal: int  # answers with the same ids as K=0's
    num_compared: int


def summarize_random(results: Results) -> list[RandomSummary]:
    """The variants in their order; compared are the texts that K=0 has answered too."""
    plain = {r.prompt: r for r in results.random if r.variant == results.variants[0].name}
    variants = group(results.random, lambda r: r.variant)
    return [_summary(variants[v.name], plain) for v in results.variants if v.name in variants]


def _summary(records: Sequence[Record], plain: dict[str, Record]) -> RandomSummary:
    common = [r for r in records if r.prompt in plain]
    theirs = [plain[r.prompt] for r in common]
    return RandomSummary(
        variant=records[0].variant,
        num_texts=len(records),
        decode_tokens_per_second=decode_rate(records),
        num_draft_tokens=sum(r.num_draft_tokens for r in records),
        num_accepted_tokens=sum(r.num_accepted_tokens for r in records),
        total=ratio(decode_rate(common), decode_rate(theirs)),
        against_plain=ratios(
            ratio(decode_rate([r]), decode_rate([p])) for r, p in zip(common, theirs, strict=True)
        ),
        distinct_share=ratio(
            sum(len(set(r.token_ids)) for r in records), sum(r.num_tokens for r in records)
        ),
        num_equal=sum(r.token_ids == p.token_ids for r, p in zip(common, theirs, strict=True)),
        num_compared=len(common),
    )
