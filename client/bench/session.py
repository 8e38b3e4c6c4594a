"""One call of `specdec bench`: find out about the server, measure, print and write.

Tables go to stdout, progress and what comes before them to stderr.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.markup import escape

from specdec.client.bench import environment, metrics
from specdec.client.bench.bare import load_bare
from specdec.client.bench.builtin import BUILTIN
from specdec.client.bench.fixed import fixed_variants
from specdec.client.bench.load import Driver, Settings
from specdec.client.bench.output import write_json, write_plot
from specdec.client.bench.plan import Plan
from specdec.client.bench.progress import progress_bar
from specdec.client.bench.prompts import pick, read_prompts
from specdec.client.bench.random_text import NUM_TEXTS
from specdec.client.bench.records import Prompt, Results
from specdec.client.bench.report import render
from specdec.client.bench.run import Bench
from specdec.client.bench.tables import WIDTH
from specdec.client.bench.variants import build_variants
from specdec.client.bench.wave import waves_effort
from specdec.client.client import SpecdecClient
from specdec.client.console import ERR
from specdec.client.errors import RequestRejected, ServerUnavailable
from specdec.config import SpeculativeConfig
from specdec.errors import SpecdecError

INTERRUPTED = 130
NUM_ARRIVALS = 6
NUM_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked."""

    prompts: tuple[Path, ...]
    per_category: int | None
    max_tokens: int
    temperature: float
    raw: bool
    variants: tuple[str, ...]
    repeats: int | None  # None: 1 for requests that run alone, else 3 rounds
    single: bool
    concurrency: tuple[int, ...]
    load_prompts: int
    arrival: bool
    fixed: tuple[int, ...]
    random_text: bool
    square_wave: bool
    bare: Path | None
    keep_cache: bool
    url: str
    model: str
    metrics_url: str | None
    timeout: float
    json_file: Path | None
    plot: Path | None


def run_session(options: Options) -> None:
    """Raises what the client raises, after it has printed what there is; Ctrl-C exits with 130."""
    prompts = pick(read_prompts(options.prompts) or BUILTIN, options.per_category)
    with SpecdecClient(options.url, options.model) as client:
        if not client.is_ready():
            raise ServerUnavailable(
                f"no server with a ready model {options.model!r} answers at {options.url}: is "
                "`specdec serve` running?"
            )
        results, driver, plan = prepare(client, options, prompts)
        _print_head(results, plan)
        try:
            measure(driver, plan, results, options.bare)
        except KeyboardInterrupt:
            driver.stop()
            results.note("stopped before the end")
            finish(results, options)
            raise typer.Exit(INTERRUPTED) from None
        except SpecdecError as error:
            driver.stop()
            results.note(f"ended by an error: {error}")
            finish(results, options)
            raise
    finish(results, options)


def prepare(
    client: SpecdecClient, options: Options, prompts: list[Prompt]
) -> tuple[Results, Driver, Plan]:
    """What the run needs to know of the machine and the server."""
    machine = environment.describe_machine()
    server = environment.describe_server(options.url, options.model)
    settings = Settings(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        raw=options.raw,
        timeout=options.timeout,
        clears_cache=not options.keep_cache,
        num_slots=server.get("num_slots", 16),
    )
    plan = _plan(options, prompts, server.get("max_running"))
    results = Results(
        settings={
            "command": sys.argv,
            **{name: _json_value(value) for name, value in asdict(options).items()},
            "num_prompts": len(prompts),
        },
        environment={"machine": machine, "server": server},
        variants=tuple(plan.variants),
        is_cold=settings.clears_cache,
        fixed_variants=tuple(plan.fixed),
    )
    if environment.is_busy(machine):
        load = machine["load_average"]
        results.note(f"something else was running when this began: load average {load:.1f}")
    return results, Driver(client, settings, _scraper(options, results)), plan


def _plan(options: Options, prompts: list[Prompt], max_running: int | None) -> Plan:
    rounds = options.repeats or NUM_ROUNDS
    return Plan(
        prompts=prompts,
        variants=build_variants(options.variants),
        repeats=options.repeats or 1,
        rounds=rounds,
        with_single=options.single,
        concurrency=options.concurrency,
        num_load_prompts=options.load_prompts,
        num_arrivals=min(NUM_ARRIVALS, len(prompts)) if options.arrival else 0,
        fixed=fixed_variants(options.fixed),
        num_random=NUM_TEXTS if options.random_text else 0,
        num_waves=rounds if options.square_wave else 0,
        waves_effort=waves_effort(rounds, options.max_tokens),
        max_running=max_running,
    )


def _json_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _scraper(options: Options, results: Results) -> metrics.Scraper | None:
    """None, with a note, where the server's metrics cannot be read."""
    try:
        return metrics.connect(options.metrics_url or default_metrics_url(options.url))
    except metrics.MetricsUnavailable as error:
        results.note(f"{error}; nothing is known of steps and of the prefix cache")
        return None


def default_metrics_url(url: str) -> str:
    """The same host, the port of the environment."""
    try:
        host = urlsplit(f"//{url}").hostname
    except ValueError:
        host = None
    if not host:
        raise RequestRejected(f"--url {url!r}: expected HOST:PORT")
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{os.environ.get('METRICS_PORT') or 8002}/metrics"


def measure(driver: Driver, plan: Plan, results: Results, bare: Path | None) -> None:
    """Run the plan under a progress bar."""
    server = results.environment["server"]
    chunk = server.get("idle_prefill_chunk_tokens", SpeculativeConfig().idle_prefill_chunk_tokens)
    model = None
    if bare is not None:
        ERR.print(f"loading the bare graph of {escape(str(bare))} ...", style="dim")
        model = load_bare(bare, prefill_chunk=chunk)
    with progress_bar(plan.effort(with_bare=bare is not None)) as progress:
        bench = Bench(driver, plan, results, progress=progress)
        _, work = driver.counted(lambda: bench.run(model), 0)
    if work and work.num_draft_errors:
        lost = int(work.num_draft_errors)
        results.note(f"{lost} requests lost their drafts, the server's log says why")


def finish(results: Results, options: Options) -> None:
    """Print and write what there is."""
    console = Console(width=WIDTH, highlight=False)  # a narrow terminal must not hide numbers
    for section in render(results):
        console.print(section)
        console.print()
    if options.json_file is not None:
        write_json(results, options.json_file)
        ERR.print(f"wrote {escape(str(options.json_file))}", style="dim")
    if options.plot is not None and results.records:
        write_plot(results, options.plot)
        ERR.print(f"wrote {escape(str(options.plot))}", style="dim")


def _print_head(results: Results, plan: Plan) -> None:
    machine, server = results.environment["machine"], results.environment["server"]
    categories = len({p.category for p in plan.prompts})
    asked = results.settings
    how = "greedy" if asked["temperature"] == 0 else f"temperature {asked['temperature']:g}"
    ERR.print(
        f"[bold]{len(plan.prompts)} prompts[/], {categories} categories, up to "
        f"{asked['max_tokens']} tokens, {how}; "
        f"{escape(', '.join(v.name for v in plan.variants))}"
    )
    if server:
        ERR.print(
            f"server   {escape(server['name'])} at {escape(server['url'])}, default: "
            f"{escape(server['drafter'])}, {server['num_draft_tokens']} draft tokens, "
            f"{server['max_running']} sequences",
            style="dim",
        )
    ERR.print(f"machine  {machine['processor']}, {machine['cores']} cores", style="dim")
