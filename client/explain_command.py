"""`specdec explain`: what a running server would do at every batch size, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.client.console import OUT

if TYPE_CHECKING:
    from specdec.speculation.forecast import Forecast

BATCHES = (1, 2, 4, 8, 16, 32, 64)
WHY = {
    "cap": "every token that may be drafted pays",
    "acceptance": "the next draft token is unlikely to be accepted",
    "cost": "the next draft token costs more time than it saves",
    "load": "the batch fills the machine: the next row costs more than it saves",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One drafter's average proposal."""

    drafter: str
    odds: list[float]  # P(accepted) of the first, second, ... draft token; empty: nothing seen
    forecasts: list[Forecast]


def explain(
    *,
    url: Annotated[
        str | None,
        typer.Option(help="Host and metrics port of the server.", show_default="127.0.0.1:8002"),
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    num_draft_tokens: Annotated[
        int, typer.Option("--num-draft-tokens", "-k", min=1, max=64, help="The requests' cap.")
    ] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """Say how many tokens a running server would draft at batch 1 to 64, and why.

    From its own costs and the acceptance it has seen so far, for a batch of equal, average texts.
    """
    cases = read_cases(url, drafter, num_draft_tokens)
    if as_json:
        print(json.dumps([to_json(case) for case in cases]))
        return
    for number, case in enumerate(cases):
        if number:
            OUT.print()
        show(case)
    OUT.print()
    used = {f.reason for case in cases for f in case.forecasts}
    for reason in (r for r in WHY if r in used):
        OUT.print(f"[bold]{reason:<11}[/][dim]{WHY[reason]}[/]")


def read_cases(url: str | None, drafter: str | None, cap: int) -> list[Case]:
    """Raises `ServerUnavailable`, `RequestRejected`."""
    from specdec.client.errors import RequestRejected, ServerUnavailable
    from specdec.client.live import metrics_url, read_samples
    from specdec.speculation.forecast import DEFAULT_RATES, Knowledge
    from specdec.speculation.state import FAMILIES, State

    states = {}
    for name, labels, value in read_samples(url):
        if name in FAMILIES:
            labels.pop("model", None)
            states[State.of(name, **labels)] = value
    try:
        known = Knowledge.of(states)
    except ValueError:
        raise ServerUnavailable(
            f"{metrics_url(url)} holds no costs yet: try again in a second"
        ) from None
    names = sorted({*known.drafts, *known.offers})
    if drafter and drafter not in names:
        raise RequestRejected(
            f"--drafter {drafter!r}: this server knows {', '.join(names) or 'none yet'}"
        )
    cases = []
    for name in [drafter] if drafter else names:
        rates = known.mean_rates(name)
        odds = list(accumulate(rates, mul))
        forecasts = [
            known.forecast(name, rates or DEFAULT_RATES, batch, cap=cap) for batch in BATCHES
        ]
        cases.append(Case(name, odds[:cap], forecasts))
    if not cases:
        raise ServerUnavailable("the server has seen no drafts yet: send it some requests")
    return cases


def to_json(case: Case) -> dict[str, Any]:
    return {
        "drafter": case.drafter,
        "acceptance": case.odds,
        "batches": [f._asdict() for f in case.forecasts],
    }


def show(case: Case) -> None:
    """One table, batches down."""
    from rich.markup import escape
    from rich.table import Table

    odds = " ".join(f"{value:.2f}" for value in case.odds)
    seen = "chance that the 1st, 2nd, ... draft token is accepted: " + odds
    OUT.print(f"[bold]{escape(case.drafter)}[/]", f"[dim]{seen if odds else 'nothing seen'}[/]")
    grid = Table()
    for name in ("batch", "K = 0", "draft length", "gain", "why not more"):
        grid.add_column(name, justify="left" if name.startswith("why") else "right")
    for f in case.forecasts:
        grid.add_row(
            str(f.num_sequences),
            f"{1e3 * f.plain_seconds:.1f} ms",
            f"{f.draft_length:.1f}".removesuffix(".0"),
            f"{f.gain:.2f}x",
            f.reason,
        )
    OUT.print(grid, soft_wrap=False)
