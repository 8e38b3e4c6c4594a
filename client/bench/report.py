"""Results as tables for a terminal; those of one request at a time are made here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from specdec.client.bench.fixed import compare_fixed
from specdec.client.bench.gain_tables import fixed_table, random_table, wave_table
from specdec.client.bench.ideal import CostCurve, bare_ratio, ideal
from specdec.client.bench.load_tables import arrival_table, level_table, load_table
from specdec.client.bench.random_text import summarize_random
from specdec.client.bench.records import Record, Results, Variant
from specdec.client.bench.stats import (
    Speedup,
    equality,
    group,
    ratio,
    speedup,
    step_split,
    summarize,
    total_work,
)
from specdec.client.bench.tables import captioned, gain_text, judged, ms, new_table, number

ALL = "all"


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
        yield from (level_table(results), load_table(results))
    if results.arrivals:
        yield arrival_table(results)
    if (comparison := compare_fixed(results)) is not None:
        yield fixed_table(comparison)
    if results.random:
        yield random_table(summarize_random(results))
    if results.waves:
        yield wave_table(results)
    yield from (Text(f"note: {note}", style="yellow") for note in results.notes)


def by_category(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The categories, then all together if there are several."""
    groups = group(records, lambda r: r.category)
    return {**groups, ALL: list(records)} if len(groups) > 1 else groups


def of(records: Sequence[Record], variant: Variant) -> list[Record]:
    return [r for r in records if r.variant == variant.name]


def single_table(results: Results) -> Group:
    """Per category and variant: latency, rate, acceptance, speed-up over K=0."""
    table = new_table(
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
    return captioned(table, caption)


def _gain_cells(gain: Speedup, *, is_baseline: bool) -> list[RenderableType]:
    if is_baseline:
        return [Text("1.00", style="dim"), "", "", ""]
    interval = "" if math.isnan(gain.low) else f"{gain.low:.2f}-{gain.high:.2f}"
    total = gain_text(gain.total)
    return [total, interval, number(gain.decode, 2), number(gain.median, 2)]


def exactness_line(results: Results) -> Text:
    """Whether all variants of a prompt wrote the same ids."""
    found = equality((r.prompt, r.token_ids) for r in results.records)
    if not found.num_prompts:
        return Text("same ids: nothing to compare yet", style="dim")
    names = ", ".join(found.different[:5]) + (" ..." if len(found.different) > 5 else "")
    text = f"same ids in all variants: {found.num_equal} of {found.num_prompts} prompts"
    return Text(text + (f"; not {names}" if names else ""), style=judged(not found.different))


def step_table(results: Results) -> Group:
    table = new_table(
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
    return captioned(table, caption)


def bare_table(results: Results) -> Group:
    table = new_table(
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
    return captioned(table, caption)


def cost_table(results: Results) -> Group:
    curve = CostCurve(results.pass_costs).by_length
    rows = sorted({n for costs in curve.values() for n in costs})
    baseline = of(results.records, results.variants[0])
    found = bare_ratio(baseline, results.bare_runs)
    table = new_table(
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
    return captioned(table, caption)
