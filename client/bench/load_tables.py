"""Tables of many requests at once."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from specdec.client.bench.levels import LevelSummary, level_equality, summarize_levels
from specdec.client.bench.records import Level, Results, Work
from specdec.client.bench.stats import group, median, ratio, step_split, throughput
from specdec.client.bench.tables import (
    BASELINE,
    captioned,
    gain_text,
    judged,
    ms,
    new_table,
    number,
)


def level_table(results: Results) -> Group:
    """Per level: every variant against K=0 in the same round."""
    table = new_table(
        "Many requests at once: the same work for all, in turns",
        ["at\nonce", "variant"],
        ["re-\nquests", "rounds", "tokens\nper s", "against\nK=0", "lowest\nround"],
        ["highest\nround", "same\nids"],
    )
    summaries = group(summarize_levels(results), lambda s: str(s.concurrency))
    for concurrency, some in summaries.items():
        table.add_section()
        label = concurrency
        for s in some:
            table.add_row(
                *(label, escape(s.variant), str(s.num_requests), str(s.num_rounds)),
                number(s.tokens_per_second, 1),
                *_against_cells(s, is_baseline=s.variant == results.variants[0].name),
            )
            label = ""
    return captioned(
        table,
        "tokens per s: median of the rounds; against K=0: median of each round's ratio",
        f"answers have {_lengths(results)} tokens, each as many in every variant; same ids: as K=0",
        *_queue_lines(results),
        _equality_line(results),
    )


def _lengths(results: Results) -> str:
    found = [len(r.token_ids) for level in results.levels for r in level.records]
    return f"{min(found)} to {max(found)}"


def _against_cells(s: LevelSummary, *, is_baseline: bool) -> list[RenderableType]:
    if is_baseline:
        return [BASELINE, "", "", ""]
    pairs = s.against_plain
    same = Text(f"{s.num_equal}/{s.num_compared}", style=judged(s.num_equal == s.num_compared))
    return [gain_text(pairs.median, 3), number(pairs.low, 3), number(pairs.high, 3), same]


def _equality_line(results: Results) -> Text:
    found = level_equality(results)
    if not found.num_prompts:
        return Text("same ids: nothing to compare yet", style="dim")
    text = f"same ids in all variants and levels: {found.num_equal} of {found.num_prompts} prompts"
    return Text(text, style=judged(not found.different))


def _queue_lines(results: Results) -> list[Text]:
    """Which levels are more than the server runs at once."""
    most = results.environment.get("server", {}).get("max_running")
    levels = dict.fromkeys(level.concurrency for level in results.levels)
    beyond = [str(n) for n in levels if most is not None and n > most]
    if not beyond:
        return []
    text = f"{', '.join(beyond)} at once: the server runs {most} (max_running), the others wait"
    return [Text(text, style="yellow")]


def load_table(results: Results) -> Group:
    """Per variant: what the levels were like, over all rounds."""
    table = new_table(
        "Many requests at once, in detail",
        ["variant"],
        ["at\nonce", "re-\nquests", "tokens\nper s", "times\none", "while\nfull", "TTFT ms\np50"],
        ["TTFT ms\np95", "TPOT\nms", "step\nms", "orches-\ntration %", "cached\nprompt %"],
    )
    for variant, own in group(results.levels, lambda level: level.variant).items():
        table.add_section()
        label = variant
        levels = group(own, lambda level: str(level.concurrency))
        one = _rate(levels["1"]) if "1" in levels else None
        for concurrency, rounds in levels.items():
            found = [throughput(level) for level in rounds]
            rate = _rate(rounds)
            table.add_row(
                escape(label),
                *(concurrency, str(sum(len(level.records) for level in rounds))),
                number(rate, 1),
                number(rate / one, 2) if one else "",
                number(median(t.full_tokens_per_second for t in found), 1),
                *(ms(median(t.ttft_p50 for t in found), 0),),
                *(ms(median(t.ttft_p95 for t in found), 0),),
                *(ms(median(t.tpot_seconds for t in found)),),
                *_work_cells(rounds),
            )
            label = ""
    return captioned(
        table,
        "medians of the rounds; tokens per s: from the first request to the last token;",
        "times one: over one at once; while full: only while so many were in flight;",
        "steps include those with prompts",
    )


def _rate(rounds: list[Level]) -> float:
    return median(throughput(level).tokens_per_second for level in rounds)


def _work_cells(rounds: list[Level]) -> list[str]:
    """Of all rounds' steps; empty where the server's counts are not known."""
    works = [level.work for level in rounds if level.work is not None]
    if len(works) < len(rounds):
        return ["", "", ""]
    work = sum(works, Work())
    split = step_split(work)
    return [
        ms(split.step_seconds),
        number(100 * split.orchestration_share, 1),
        number(100 * ratio(work.num_cached_tokens, work.num_prompt_tokens), 1),
    ]


def arrival_table(results: Results) -> Group:
    count = results.arrivals[0].num_background
    table = new_table(
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
    return captioned(table, caption)
