"""Results as a JSON file and, with matplotlib, as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec.client.bench.fixed import compare_fixed
from specdec.client.bench.ideal import CostCurve, bare_ratio, ideal
from specdec.client.bench.levels import level_equality, summarize_levels
from specdec.client.bench.random_text import summarize_random
from specdec.client.bench.records import Results
from specdec.client.bench.recovery import summarize_waves
from specdec.client.bench.report import by_category, of
from specdec.client.bench.stats import (
    equality,
    speedup,
    step_split,
    summarize,
    throughput,
    total_work,
)
from specdec.client.errors import RequestRejected

FORMAT = 2


def check_writable(paths: Sequence[Path | None]) -> None:
    """Before hours of measuring, not after. Raises `RequestRejected`."""
    for path in filter(None, paths):
        if path.is_dir() or not path.parent.is_dir():
            raise RequestRejected(f"{path} cannot be written: it needs a name in a folder there is")


def write_json(results: Results, path: Path) -> None:
    """Everything: the settings, every request, and the summaries. NaN becomes null."""
    path.write_text(json.dumps(to_json(results), indent=1, allow_nan=False) + "\n")


def to_json(results: Results) -> dict[str, Any]:
    found = equality((r.prompt, r.token_ids) for r in results.records)
    document: dict[str, Any] = _plain(
        {
            "format": FORMAT,
            "settings": results.settings,
            "environment": results.environment,
            "is_complete": results.is_complete,
            "notes": results.notes,
            "variants": {v.name: v.options for v in results.variants},
            "equality": found,
            "summary": _summary(results),
            "load": list(summarize_levels(results)),
            "load_equality": level_equality(results),
            "levels": [
                {
                    "variant": level.variant,
                    "concurrency": level.concurrency,
                    "round": level.round,
                    **throughput(level)._asdict(),
                    "steps": step_split(level.work) if level.work else None,
                    "work": level.work,
                    "records": level.records,
                }
                for level in results.levels
            ],
            "arrivals": [{**asdict(a), "excess_steps": a.excess_steps} for a in results.arrivals],
            "fixed": _fixed(results),
            "random_text": {"summary": summarize_random(results), "records": results.random},
            "square_wave": _waves(results),
            "prefills": results.prefills,
            "records": results.records,
            "bare_runs": results.bare_runs,
            "pass_costs": CostCurve(results.pass_costs).by_length,
        }
    )
    return document


def _summary(results: Results) -> list[dict[str, Any]]:
    """One entry per category and variant."""
    curve = CostCurve(results.pass_costs)
    prefills = results.prefills if results.is_cold else []
    entries = []
    for category, records in by_category(results.records).items():
        baseline = of(records, results.variants[0])
        for variant in results.variants:
            some = of(records, variant)
            if not some:
                continue
            work = total_work(some, prefills)
            entry: dict[str, Any] = {"category": category, "variant": variant.name}
            entry |= summarize(some)._asdict()
            entry["speedup"] = speedup(some, baseline)
            entry["steps"] = step_split(work) if work else None
            if curve.by_length:
                entry["ideal"] = ideal(some, results.bare_runs, curve)
                entry["bare"] = bare_ratio(some, results.bare_runs) if variant.is_plain else None
            entries.append(entry)
    return entries


def _fixed(results: Results) -> dict[str, Any]:
    variants = {v.name: v.options for v in results.fixed_variants}
    found = compare_fixed(results)
    best = found.best.variant if found else None
    return {"variants": variants, "best": best, "summary": found, "records": results.fixed}


def _waves(results: Results) -> dict[str, Any]:
    return {
        "summary": summarize_waves(results) if results.waves else None,
        "waves": results.waves,
        "plain": results.wave_plain,
    }


def _plain(value: Any) -> Any:
    """Named tuples and dataclasses as objects, so that a reader needs no positions."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def check_can_plot() -> None:
    """Raises `RequestRejected`: matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise RequestRejected("--plot needs matplotlib: pip install 'specdec[plot]'")


def write_plot(results: Results, path: Path) -> None:
    """Bars of the speed-up over K=0, prefill included, per category and variant."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = by_category(results.records)
    variants = [v for v in results.variants if not v.is_plain]
    width = 0.8 / max(1, len(variants))
    figure, axes = plt.subplots(figsize=(1.5 + 1.2 * len(groups), 4), layout="constrained")
    for index, variant in enumerate(variants):
        gains = [
            speedup(of(records, variant), of(records, results.variants[0])).total
            for records in groups.values()
        ]
        places = [i + (index - (len(variants) - 1) / 2) * width for i in range(len(groups))]
        bars = axes.bar(places, gains, 0.92 * width, label=variant.name)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups), rotation=30, ha="right")
    axes.set_ylabel("tokens per second over K=0")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(variants), frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
