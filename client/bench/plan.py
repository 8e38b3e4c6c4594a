"""What a run measures, and how long each part of it takes beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.client.bench.prompts import spread
from specdec.client.bench.records import Prompt, Variant

PREFILL_EFFORT = 0.2  # of an answer
BARE_EFFORT = 1.3
ARRIVAL_EFFORT = 1.0
_BATCH_GAIN = 6  # a server with as many sequences or more works that much faster in total


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a run; those that are empty or 0 are left out."""

    prompts: Sequence[Prompt]
    variants: Sequence[Variant]
    repeats: int = 1  # of every prompt and variant that runs alone
    rounds: int = 3  # of each level, of random text and of waves
    with_single: bool = True  # the prompts one at a time
    concurrency: Sequence[int] = ()
    num_load_prompts: int = 12
    num_arrivals: int = 0  # per variant
    fixed: Sequence[Variant] = ()  # K=0, the default, then fixed lengths
    num_random: int = 0  # random texts in each round
    num_waves: int = 0
    waves_effort: float = 0.0  # of all together
    max_running: int | None = None  # sequences that the server runs at once, if known

    @property
    def load_prompts(self) -> list[Prompt]:
        return spread(self.prompts, self.num_load_prompts)

    def jobs(self, concurrency: int, round_number: int = 0) -> list[tuple[Prompt, int]]:
        """(prompt, its copy) of a level: all prompts equally often, so that all levels have the
        same mix.

        At least two requests per client. From the second copy on a number in front makes the
        text another one, in every round too: the prefix cache must not answer for it.
        """
        prompts = self.load_prompts
        copies = max(1, -(-2 * concurrency // len(prompts)))
        first = round_number * copies
        return [(_numbered(p, i), i) for i in range(first, first + copies) for p in prompts]

    def effort(self, *, with_bare: bool) -> float:
        """In answers of one request alone."""
        single = len(self.prompts) * self.single_effort(with_bare=with_bare) * self.with_single
        load = sum(len(self.jobs(n)) * load_effort(n) for n in self.concurrency) * self.rounds
        arrivals = self.num_arrivals * ARRIVAL_EFFORT
        fixed = len(self.prompts) * self.repeats * len(self.fixed)
        random = self.num_random * self.rounds * (1 + len(self.variants))
        waves = self.waves_effort if self.num_waves else 0.0
        return single + len(self.variants) * (load + arrivals) + fixed + random + waves

    def single_effort(self, *, with_bare: bool) -> float:
        """Of one prompt's requests that run alone."""
        variants = len(self.variants) + BARE_EFFORT * with_bare
        return PREFILL_EFFORT + self.repeats * variants


def _numbered(prompt: Prompt, number: int) -> Prompt:
    if number == 0:
        return prompt
    return prompt._replace(name=f"{prompt.name}#{number}", text=f"({number}) {prompt.text}")


def load_effort(concurrency: int) -> float:
    """Of one request among so many."""
    return 1.0 / min(concurrency, _BATCH_GAIN)


def in_turns(variants: Sequence[Variant], turn: int) -> list[Variant]:
    """All of them; which one goes first changes with `turn`, so that drift hits all alike."""
    first = turn % len(variants)
    return [*variants[first:], *variants[:first]]
