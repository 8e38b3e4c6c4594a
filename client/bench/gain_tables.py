"""Tables of "never slower": against fixed lengths, with random text, in waves of load."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from specdec.client.bench.fixed import Comparison, Length
from specdec.client.bench.random_text import TEMPERATURE, RandomSummary
from specdec.client.bench.records import Results
from specdec.client.bench.recovery import NUM_PASSES, SHARE, WavesSummary, summarize_waves
from specdec.client.bench.tables import BASELINE, captioned, gain_text, judged, new_table, number
from specdec.client.bench.wave import NUM_AT_ONCE

_LEAST_GAIN = 1.2  # of the lone request, to tell a gain that is back from one that is not


def fixed_table(found: Comparison) -> Group:
    """Each fixed draft length, and the adaptive default over it."""
    table = new_table(
        f"One draft length for all {found.num_prompts} prompts, or an adaptive one",
        ["draft length"],
        ["tokens\nper s", "decode only\ntokens per s", "tokens\n/ pass"],
        ["adaptive\nagainst it", "95 %\ninterval", "decode\nonly"],
    )
    for length in found.lengths:
        is_best = length.variant == found.best.variant
        over, low = length.adaptive, length.adaptive.low
        table.add_row(
            Text(f"{length.variant}, the best" if is_best else length.variant),
            *_rates(length),
            gain_text(over.total, 3),
            "" if math.isnan(low) else f"{over.low:.2f}-{over.high:.2f}",
            number(over.decode, 3),
            style="bold" if is_best else None,
        )
    table.add_section()
    table.add_row("adaptive", *_rates(found.adaptive), BASELINE)
    best, same = found.best, found.equality
    return captioned(
        table,
        "all tokens by all time, prefill included; interval: bootstrap over prompts",
        Text(
            f"adaptive is {number(best.adaptive.total, 3)} of the best single length, "
            f"{best.variant}",
            style=judged(best.adaptive.total >= 1),
        ),
        Text(
            f"same ids in all of them: {same.num_equal} of {same.num_prompts} prompts",
            style=judged(not same.different),
        ),
    )


def _rates(length: Length) -> list[str]:
    return [
        number(length.summary.tokens_per_second, 1),
        number(length.decode_tokens_per_second, 1),
        number(length.summary.tokens_per_pass, 2),
    ]


def random_table(summaries: Sequence[RandomSummary]) -> Group:
    """Every variant against K=0, text by text."""
    table = new_table(
        f"Random text: nothing to gain; {max(s.num_texts for s in summaries)} texts",
        ["variant"],
        ["tokens\nper s", "drafted", "accep-\nted", "against\nK=0"],
        ["median\ntext", "lowest", "highest", "same\nids"],
    )
    for index, s in enumerate(summaries):
        table.add_row(
            *(escape(s.variant), number(s.decode_tokens_per_second, 1)),
            *(str(s.num_draft_tokens), str(s.num_accepted_tokens)),
            *([BASELINE] if index == 0 else _against_cells(s)),
        )
    distinct = min(s.distinct_share for s in summaries)
    return captioned(
        table,
        f"tokens drawn at temperature {TEMPERATURE:g}, a seed for each text; no text twice;",
        f"{number(100 * distinct, 1)} % of an answer's tokens stand in it for the first time;",
        "tokens per s: decode only; against K=0: over all texts, then text by text",
    )


def _against_cells(s: RandomSummary) -> list[RenderableType]:
    pairs = s.against_plain
    same = Text(f"{s.num_equal}/{s.num_compared}", style=judged(s.num_equal == s.num_compared))
    return [
        gain_text(s.total, 3),
        *(number(x, 3) for x in (pairs.median, pairs.low, pairs.high)),
        same,
    ]


def wave_table(results: Results) -> Group:
    """Every wave, and when the gain was back."""
    found = summarize_waves(results)
    table = new_table(
        f"A wave of load: one request, {NUM_AT_ONCE} at once, one again",
        ["wave"],
        ["alone\ntokens/s", f"among {NUM_AT_ONCE}\ntokens/s", "load\ns", "alone again\ntokens/s"],
        ["the same\nin calm", "gain back\nafter s"],
    )
    for index, (wave, r) in enumerate(zip(results.waves, found.recoveries, strict=True), 1):
        is_back = not math.isnan(r.back_seconds)
        table.add_row(
            str(index),
            *(number(r.before_rate, 1), number(r.load_rate, 1)),
            number(wave.fall_seconds - wave.rise_seconds, 1),
            *(number(r.after_rate, 1), number(r.calm_rate, 1)),
            number(r.back_seconds, 2) if is_back else Text(f"> {r.seen_seconds:.2f}", style="red"),
        )
    return captioned(
        table,
        "tokens per s of the one request that is there all the time; gain back: from the",
        "moment that its load is cancelled until it decodes as fast as it did in calm at",
        f"the same tokens (at least {SHARE:g} of that, over {NUM_PASSES} passes)",
        *_wave_lines(found),
    )


def _wave_lines(found: WavesSummary) -> list[Text]:
    middle, worst = found.median_back_seconds, found.worst_back_seconds
    back = (
        "gain back after: "
        + ("longer than was seen" if math.isnan(middle) else f"{middle:.2f} s")
        + " (median), "
        + ("longer than was seen" if math.isnan(worst) else f"{worst:.2f} s")
        + " (worst)"
    )
    lines = [Text(back, style="bold")]
    calm = f"in calm the one request makes {found.calm_gain:.2f} times K=0's tokens per s"
    if found.calm_gain < _LEAST_GAIN:
        lines.append(Text(f"{calm}: too little to see a gain return", style="yellow"))
    else:
        lines.append(Text(calm, style="dim"))
    is_same = found.num_lone_equal == found.num_lone and found.num_load_equal == found.num_load
    load = f"{found.num_load_equal} of {found.num_load}" if found.num_load else "not compared yet"
    same = (
        f"same ids as K=0 alone: the one request {found.num_lone_equal} of {found.num_lone}, "
        f"its load {load}"
    )
    return [*lines, Text(same, style=judged(is_same))]
