"""Results as tables for a terminal, at most `WIDTH` columns wide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from specdec.client.bench.ideal import CostCurve, bare_ratio, ideal
from specdec.client.bench.records import Record, Results, Variant
from specdec.client.bench.stats import (
    Speedup,
    equality,
    group,
    ratio,
    speedup,
    step_split,
    summarize,
    throughput,
    total_work,
)

WIDTH = 118
ALL = "all"
_STYLES = {True: "bold green", False: "bold red"}


def render(results: Results) -> Iterator[RenderableType]:
    """What there is so far, section by section."""
    plain = [r for r in results.records if r.variant == results.variants[0].name]
    if results.records:
        yield from (single_table(results), exactness_line(results))
    if any(r.work for r in results.records):
        yield step_table(results)
    if results.bare_runs and results.pass_costs and plain:
        yield from (bare_table(results), cost_table(results))
    if results.levels:
        yield load_table(results)
    if results.arrivals:
        yield arrival_table(results)
    yield from (Text(f"note: {note}", style="yellow") for note in results.notes)


def by_category(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The categories, then all together if there are several."""
    groups = group(records, lambda r: r.category)
    return {**groups, ALL: list(records)} if len(groups) > 1 else groups


def of(records: Sequence[Record], variant: Variant) -> list[Record]:
    return [r for r in records if r.variant == variant.name]


def single_table(results: Results) -> Group:
    """Per category and variant: latency, rate, acceptance, speed-up over K=0."""
    table = _table(
        "One request at a time",
        ["category", "variant"],
        [
            "TTFT\nms",
            "TPOT\nms",
            "tokens\nper s",
            "accept.\nrate %",
            "accept.\nlength",
            "tokens\n/ pass",
        ],
        ["speed-up", "95 %\ninterval", "decode\nonly", "median\nprompt"],
    )
    for category, records in by_category(results.records).items():
        baseline = of(records, results.variants[0])
        table.add_section()
        label = category
        for variant in results.variants:
            some = of(records, variant)
            if not some:
                continue
            s, gain = summarize(some), speedup(some, baseline)
            table.add_row(
                Text(label, style="bold" if category == ALL else ""),
                escape(variant.name),
                *(ms(s.ttft_seconds, 0), ms(s.tpot_seconds), number(s.tokens_per_second, 1)),
                number(100 * s.acceptance_rate, 1),
                number(s.acceptance_length, 2),
                number(s.tokens_per_pass, 2),
                *_gain_cells(gain, is_baseline=variant.is_plain),
            )
            label = ""
    caption = (
        "speed-up: all tokens by all time, prefill included, over K=0; interval: bootstrap "
        "over prompts;\ndecode only: without the time to the first token; acceptance length: "
        "1 + accepted / drafts; TTFT: median"
    )
    return Group(table, Text(caption, style="dim"))


def _gain_cells(gain: Speedup, *, is_baseline: bool) -> list[RenderableType]:
    if is_baseline:
        return [Text("1.00", style="dim"), "", "", ""]
    interval = "" if math.isnan(gain.low) else f"{gain.low:.2f}-{gain.high:.2f}"
    total = Text(number(gain.total, 2), style=_STYLES[gain.total >= 1])
    return [total, interval, number(gain.decode, 2), number(gain.median, 2)]


def exactness_line(results: Results) -> Text:
    """Whether all variants of a prompt wrote the same ids, levels of parallel load included."""
    loaded = [r for level in results.levels for r in level.records]
    found = equality((r.prompt, r.token_ids) for r in [*results.records, *loaded])
    if not found.num_prompts:
        return Text("same ids: nothing to compare yet", style="dim")
    names = ", ".join(found.different[:5]) + (" ..." if len(found.different) > 5 else "")
    where = "all variants and loads" if loaded else "all variants"
    text = f"same ids in {where}: {found.num_equal} of {found.num_prompts} prompts"
    return Text(text + (f"; not {names}" if names else ""), style=_STYLES[not found.different])


def step_table(results: Results) -> Group:
    table = _table(
        "One step while decoding, by the server's counters",
        ["variant"],
        ["steps", "step\nms", "draft\nms", "verify\nms", "orchestration\nms", "orchestration\n%"],
        ["cached\nprompt %"],
    )
    prefills = results.prefills if results.is_cold else []
    for variant in results.variants:
        records = of(results.records, variant)
        work, whole = total_work(records, prefills), total_work(records)
        if work is None or whole is None:
            continue
        split = step_split(work)
        table.add_row(
            escape(variant.name),
            number(split.num_steps, 0),
            *(ms(x, 2) for x in split[1:5]),
            number(100 * split.orchestration_share, 1),
            number(100 * ratio(whole.num_cached_tokens, whole.num_prompt_tokens), 1),
        )
    caption = (
        "draft: inside a draft model; verify: inside the target; orchestration: the rest,"
        "\ndrafters without a model included; "
        + ("the prompts' prefill is subtracted" if results.is_cold else "prefill included")
    )
    return Group(table, Text(caption, style="dim"))


def bare_table(results: Results) -> Group:
    table = _table(
        "Against the bare graph in ONNX Runtime",
        ["category", "variant"],
        ["K=0/bare\ndecode", "K=0/bare\ntotal", "rows\n/pass"],
        ["speed-up\ndecode", "ideal\ndecode", "% of\nideal"],
        ["speed-up\ntotal", "ideal\ntotal", "% of\nideal"],
    )
    curve = CostCurve(results.pass_costs)
    for category, records in by_category(results.records).items():
        baseline = of(records, results.variants[0])
        table.add_section()
        for position, variant in enumerate(results.variants):
            some = of(records, variant)
            if variant.is_plain or not some:
                continue
            bare = bare_ratio(baseline, results.bare_runs)
            gain, best = speedup(some, baseline), ideal(some, results.bare_runs, curve)
            first = position == 1
            table.add_row(
                category if first else "",
                escape(variant.name),
                *((number(bare.decode, 3), number(bare.total, 3)) if first else ("", "")),
                number(best.mean_rows, 2),
                *(number(gain.decode, 2), number(best.decode, 2)),
                number(100 * ratio(gain.decode, best.decode), 1),
                *(number(gain.total, 2), number(best.total, 2)),
                number(100 * ratio(gain.total, best.total), 1),
            )
    caption = (
        "ideal: the passes that were taken, at the bare graph's cost for their mean width, "
        "and nothing else"
    )
    return Group(table, Text(caption, style="dim"))


def cost_table(results: Results) -> Group:
    curve = CostCurve(results.pass_costs).by_length
    rows = sorted({n for costs in curve.values() for n in costs})
    baseline = of(results.records, results.variants[0])
    found = bare_ratio(baseline, results.bare_runs)
    table = _table(
        "One pass of the bare graph, ms by rows",
        ["cache length"],
        [str(n) for n in rows],
    )
    for length, costs in curve.items():
        table.add_row(str(length), *(ms(costs[n]) if n in costs else "" for n in rows))
    caption = (
        f"the bare loop wrote the same ids as K=0 for {found.num_equal} of "
        f"{found.num_prompts} prompts"
    )
    return Group(table, Text(caption, style="dim"))


def load_table(results: Results) -> Group:
    table = _table(
        "Many requests at once",
        ["variant"],
        ["at\nonce", "re-\nquests", "tokens\nper s", "times\none", "while\nfull", "TTFT ms\np50"],
        ["TTFT ms\np95", "TPOT\nms", "step\nms", "orches-\ntration %", "cached\nprompt %"],
    )
    rates = {(v.variant, v.concurrency): throughput(v) for v in results.levels}
    for variant, levels in group(results.levels, lambda level: level.variant).items():
        table.add_section()
        label = variant
        for level in levels:
            now, one = rates[variant, level.concurrency], rates.get((variant, 1))
            work = level.work
            split = None if work is None else step_split(work)
            table.add_row(
                escape(label),
                *(str(level.concurrency), str(len(level.records))),
                number(now.tokens_per_second, 1),
                number(now.tokens_per_second / one.tokens_per_second, 2) if one else "",
                number(now.full_tokens_per_second, 1),
                *(ms(now.ttft_p50, 0), ms(now.ttft_p95, 0), ms(now.tpot_seconds)),
                ms(split.step_seconds) if split else "",
                number(100 * split.orchestration_share, 1) if split else "",
                number(100 * ratio(work.num_cached_tokens, work.num_prompt_tokens), 1)
                if work
                else "",
            )
            label = ""
    caption = (
        "tokens per s: from the first request to the last token; times one: over one at "
        "once;\nwhile full: only while so many were in flight; steps include those with prompts"
    )
    return Group(table, Text(caption, style="dim"))


def arrival_table(results: Results) -> Group:
    count = results.arrivals[0].num_background
    table = _table(
        f"A request that arrives while {count} others decode",
        ["variant", "prompt"],
        ["prompt\ntokens", "own prefill\nms", "TTFT\nms", "step of the\nothers ms"],
        ["waited beyond\nprefill, steps"],
    )
    for variant, arrivals in group(results.arrivals, lambda a: a.variant).items():
        table.add_section()
        label = variant
        for a in sorted(arrivals, key=lambda a: a.num_input_tokens):
            table.add_row(
                *(escape(label), a.prompt, str(a.num_input_tokens)),
                *(ms(a.prefill_seconds, 0), ms(a.ttft_seconds, 0), ms(a.step_seconds)),
                number(a.excess_steps, 2),
            )
            label = ""
    caption = "own prefill: TTFT of as long a prompt on the idle server"
    return Group(table, Text(caption, style="dim"))


def _table(title: str, labels: list[str], *numbers: list[str]) -> Table:
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )
    for name in labels:
        table.add_column(name, no_wrap=True, vertical="bottom")
    for name in (n for names in numbers for n in names):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def ms(seconds: float, digits: int = 1) -> str:
    return number(1000 * seconds, digits)
