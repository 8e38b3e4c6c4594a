"""The order in which everything is measured; results grow in place, so any moment may be the last.

for every prompt      prefill alone (one token), then all variants and the bare loop, the
                      first one changing from prompt to prompt, so that drift hits all alike
for every level       the closed loop of each variant
for every variant     arrivals among running requests
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specdec.client.bench.arrival import measure_arrivals
from specdec.client.bench.bare import BareModel
from specdec.client.bench.load import Driver
from specdec.client.bench.prompts import spread
from specdec.client.bench.records import Arrival, Prompt, Results, Variant
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import RequestRejected

_WARM_UP = Prompt("warm-up", "warm-up", "Count from one to ten, twice.")
_PREFILL_EFFORT = 0.2  # of an answer
_BARE_EFFORT = 1.3
_ARRIVAL_EFFORT = 1.0
_BATCH_GAIN = 6  # a server with as many sequences or more works that much faster in total


class Progress(Protocol):
    """Told what is done; effort is in answers of one request alone."""

    def begin(self, what: str) -> None: ...

    def advance(self, effort: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures."""

    prompts: Sequence[Prompt]
    variants: Sequence[Variant]
    repeats: int = 1
    concurrency: Sequence[int] = ()
    num_load_prompts: int = 12
    num_arrivals: int = 0  # per variant

    @property
    def load_prompts(self) -> list[Prompt]:
        return spread(self.prompts, self.num_load_prompts)

    def jobs(self, concurrency: int) -> list[tuple[Prompt, int]]:
        """(prompt, round) of a level: whole rounds, so that all levels have the same mix.

        At least two requests per client. From the second round on a number in front makes the
        text another one: the prefix cache must not answer for it.
        """
        prompts = self.load_prompts
        rounds = max(1, -(-2 * concurrency // len(prompts)))
        return [(_numbered(p, i), i) for i in range(rounds) for p in prompts]

    def effort(self, *, with_bare: bool) -> float:
        """In answers of one request alone."""
        single = len(self.prompts) * self.single_effort(with_bare=with_bare)
        load = sum(len(self.jobs(n)) * _load_effort(n) for n in self.concurrency)
        arrivals = self.num_arrivals * _ARRIVAL_EFFORT
        return single + len(self.variants) * (load + arrivals)

    def single_effort(self, *, with_bare: bool) -> float:
        """Of one prompt's requests that run alone."""
        variants = len(self.variants) + _BARE_EFFORT * with_bare
        return _PREFILL_EFFORT + self.repeats * variants


def _numbered(prompt: Prompt, number: int) -> Prompt:
    if number == 0:
        return prompt
    return prompt._replace(name=f"{prompt.name}#{number}", text=f"({number}) {prompt.text}")


def _load_effort(concurrency: int) -> float:
    return 1.0 / min(concurrency, _BATCH_GAIN)


class Bench:
    """Runs a plan, once. What a request raises ends it; a prompt that is refused is left out."""

    def __init__(self, driver: Driver, plan: Plan, results: Results, *, progress: Progress) -> None:
        self._driver = driver
        self._plan = plan
        self._results = results
        self._progress = progress
        self._done = 0.0  # effort

    def run(self, bare: BareModel | None = None) -> None:
        self._warm_up()
        self._single(bare)
        self._load()
        self._arrivals()
        self._results.is_complete = True

    def _warm_up(self) -> None:
        """First runs are slow; and what the server does not offer is refused now, not later."""
        self._progress.begin("warm-up")
        for variant in self._plan.variants:
            self._driver.request(_WARM_UP, variant, max_tokens=16)

    def _single(self, bare: BareModel | None) -> None:
        per_prompt = self._plan.single_effort(with_bare=bare is not None)
        refused = set()
        for index, prompt in enumerate(self._plan.prompts):
            try:
                self._prompt(prompt, index, bare)
            except RequestRejected as error:
                self._results.note(f"{prompt.name} was left out: {error}")
                refused.add(prompt.name)
            self._advance((index + 1) * per_prompt - self._done)
        left = [p for p in self._plan.prompts if p.name not in refused]
        if not left:
            raise RequestRejected("the server refused every prompt")
        self._plan = replace(self._plan, prompts=left)

    def _prompt(self, prompt: Prompt, index: int, bare: BareModel | None) -> None:
        self._progress.begin(f"{prompt.name}, prefill")
        self._results.prefills.append(self._driver.measured(prompt, PLAIN, max_tokens=1))
        self._advance(_PREFILL_EFFORT)
        for repeat in range(self._plan.repeats):
            self._one_round(prompt, index + repeat, repeat, bare)
        if bare is not None:
            self._pass_costs(prompt, bare)

    def _advance(self, effort: float) -> None:
        self._done += effort
        self._progress.advance(effort)

    def _one_round(self, prompt: Prompt, turn: int, repeat: int, bare: BareModel | None) -> None:
        """All variants of one prompt; `turn` decides which of them goes first."""
        runs: list[tuple[str, float, Callable[[], None]]] = [
            (variant.name, 1.0, self._served(prompt, variant, repeat))
            for variant in self._plan.variants
        ]
        if bare is not None:
            runs.append(("bare loop", _BARE_EFFORT, self._bare(prompt, repeat, bare)))
        first = turn % len(runs)
        for name, effort, run in runs[first:] + runs[:first]:
            self._progress.begin(f"{prompt.name}, {name}")
            run()
            self._advance(effort)

    def _served(self, prompt: Prompt, variant: Variant, repeat: int) -> Callable[[], None]:
        def run() -> None:
            record = self._driver.measured(prompt, variant, repeat=repeat)
            if record.work is not None and record.work.num_finished > 1:
                self._results.note("another client used the server: its work is counted as ours")
            self._results.records.append(record)

        return run

    def _bare(self, prompt: Prompt, repeat: int, bare: BareModel) -> Callable[[], None]:
        def run() -> None:
            settings = self._driver.settings
            ids = bare.encode(prompt, raw=settings.raw)
            self._results.bare_runs.append(
                bare.generate(prompt, ids, settings.max_tokens, repeat=repeat)
            )

        return run

    def _pass_costs(self, prompt: Prompt, bare: BareModel) -> None:
        runs = [r for r in self._results.bare_runs if r.prompt == prompt.name]
        if runs:
            position = runs[-1].num_input_tokens + len(runs[-1].token_ids) - 1
            self._results.pass_costs.extend(bare.pass_costs(position))

    def _load(self) -> None:
        for concurrency in self._plan.concurrency:
            for variant in self._plan.variants:
                self._level(variant, concurrency)

    def _level(self, variant: Variant, concurrency: int) -> None:
        self._progress.begin(f"{concurrency} at once, {variant.name}")
        if self._driver.settings.clears_cache:
            self._driver.clear_cache(variant)
        jobs = self._plan.jobs(concurrency)
        level = self._driver.closed_loop(
            jobs,
            variant,
            concurrency,
            on_done=lambda: self._progress.advance(_load_effort(concurrency)),
        )
        self._results.levels.append(level)

    def _arrivals(self) -> None:
        prompts = spread(
            sorted(self._plan.prompts, key=lambda p: len(p.text)), self._plan.num_arrivals
        )
        for variant in self._plan.variants if prompts else ():
            self._progress.begin(f"arrivals, {variant.name}")

            def on_arrival(arrival: Arrival) -> None:
                self._results.arrivals.append(arrival)
                self._progress.advance(_ARRIVAL_EFFORT)

            measure_arrivals(self._driver, prompts, variant, on_arrival=on_arrival)
