"""What the controller knows, as flat labelled numbers: for /metrics, and for whoever reads them.

Knows neither Triton nor the text format of metrics.
"""

from __future__ import annotations

from typing import NamedTuple

from specdec.speculation.controller import Controller

FAMILIES = {
    "verify_cost_seconds": "Expected time of a target pass, by sequences and rows",
    "draft_cost_seconds": "Expected time of a draft model's pass, by drafter, sequences and rows",
    "step_overhead_seconds": "Expected time of a step outside the models, by sequences",
    "spec_decode_acceptance": "P(draft token holds | those before it), by drafter, omen, position",
    "spec_decode_offered_odds": "Mean P(the n-th draft token on offer is accepted), by drafter, n",
    "spec_decode_predicted_gain": "Expected tokens per second over those at K = 0, by sequences",
}
ROWS_EACH = (1, 2, 3, 4, 5, 7, 9, 17)  # per sequence


class State(NamedTuple):
    """One gauge: a family above and its labels, sorted by name."""

    family: str
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, family: str, **labels: str | int) -> State:
        return cls(family, tuple(sorted((name, str(value)) for name, value in labels.items())))


def read(control: Controller, max_sequences: int) -> dict[State, float]:
    """Everything, with costs of batches of 1, 2, 4, ... up to `max_sequences`."""
    sizes = [1 << i for i in range(max_sequences.bit_length())]
    return {**_costs(control, sizes), **_acceptance(control)}


def _costs(control: Controller, sizes: list[int]) -> dict[State, float]:
    found: dict[State, float] = {}
    for n in sizes:
        for rows in (n * each for each in ROWS_EACH):
            labels: dict[str, str | int] = {"sequences": n, "rows": rows}
            found[State.of("verify_cost_seconds", **labels)] = control.prices.target.predict(
                n, rows
            )
            for drafter, model in control.models.items():
                if not model.is_optional:  # else another drafter needs the same
                    state = State.of("draft_cost_seconds", **labels, drafter=drafter)
                    found[state] = model.cost.predict(n, rows)
        found[State.of("step_overhead_seconds", sequences=n)] = control.prices.overhead(n)
        found[State.of("spec_decode_predicted_gain", sequences=n)] = control.prices.gain(n)
    return found


def _acceptance(control: Controller) -> dict[State, float]:
    found: dict[State, float] = {}
    for drafter, outlook in control.outlooks.items():
        rates = outlook.levels()
        if drafter in control.planners:  # of all omens together, before the model is asked
            rates |= {(0, p): rate for p, rate in control.planners[drafter].rates().items()}
        for (omen, position), rate in rates.items():
            labels: dict[str, str | int] = {"drafter": drafter, "omen": omen, "position": position}
            found[State.of("spec_decode_acceptance", **labels)] = rate
        for number, odds in enumerate(outlook.profile.tolist(), start=1):
            if odds > 0:
                state = State.of("spec_decode_offered_odds", drafter=drafter, n=number)
                found[state] = odds
    return found
