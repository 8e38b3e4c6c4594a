"""The order in which everything is measured; results grow in place, so any moment may be the last.

for every prompt      prefill alone (one token), then all variants and the bare loop, the
                      first one changing from prompt to prompt, so that drift hits all alike
for every level       some rounds, each of them the closed loop of all variants in turns
for every variant     arrivals among running requests
for every prompt      the adaptive default and each fixed draft length, in turns
for every random text all variants, in turns
for every wave        one request in calm, then the same in a wave of load
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from specdec.client.bench.arrival import measure_arrivals
from specdec.client.bench.bare import BareModel
from specdec.client.bench.fixed import measure_fixed
from specdec.client.bench.levels import measure_levels
from specdec.client.bench.load import Driver
from specdec.client.bench.plan import ARRIVAL_EFFORT, BARE_EFFORT, PREFILL_EFFORT, Plan
from specdec.client.bench.progress import Progress
from specdec.client.bench.prompts import spread
from specdec.client.bench.random_text import measure_random
from specdec.client.bench.records import Arrival, Prompt, Results, Variant
from specdec.client.bench.variants import PLAIN
from specdec.client.bench.wave import measure_waves
from specdec.client.errors import RequestRejected

_WARM_UP = Prompt("warm-up", "warm-up", "Count from one to ten, twice.")


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
        if self._plan.with_single:
            self._single(bare)
        parts = (self._driver, self._plan, self._results, self._progress)
        measure_levels(*parts)
        self._arrivals()
        measure_fixed(*parts)
        measure_random(*parts)
        measure_waves(*parts)
        self._results.is_complete = True

    def _warm_up(self) -> None:
        """First runs are slow; and what the server does not offer is refused now, not later."""
        self._progress.begin("warm-up")
        variants, fixed = map(self._known, (self._plan.variants, self._plan.fixed))
        self._plan = replace(self._plan, variants=variants, fixed=fixed)

    def _known(self, variants: Sequence[Variant]) -> list[Variant]:
        """Each tried once; and whether it uses a draft model is known from then on."""
        known = []
        for variant in variants:
            self._driver.request(_WARM_UP, variant, max_tokens=16)
            calls = self._driver.calls_draft_model(_WARM_UP, variant)
            known.append(variant._replace(uses_draft_model=calls))
        return known

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
        self._advance(PREFILL_EFFORT)
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
            runs.append(("bare loop", BARE_EFFORT, self._bare(prompt, repeat, bare)))
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

    def _arrivals(self) -> None:
        prompts = spread(
            sorted(self._plan.prompts, key=lambda p: len(p.text)), self._plan.num_arrivals
        )
        for variant in self._plan.variants if prompts else ():
            self._progress.begin(f"arrivals, {variant.name}")

            def on_arrival(arrival: Arrival) -> None:
                self._results.arrivals.append(arrival)
                self._progress.advance(ARRIVAL_EFFORT)

            measure_arrivals(self._driver, prompts, variant, on_arrival=on_arrival)
