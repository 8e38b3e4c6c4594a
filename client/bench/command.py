"""`specdec bench`: its options. What they set in motion is in `session`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specdec.client.console import default_url
from specdec.client.errors import RequestRejected


def _what(*names: str, **settings: Any) -> typer.models.OptionInfo:
    return _option("What is asked", names, settings)


def _how(*names: str, **settings: Any) -> typer.models.OptionInfo:
    return _option("What is measured", names, settings)


def _where(*names: str, **settings: Any) -> typer.models.OptionInfo:
    return _option("Where", names, settings)


def _output(*names: str, **settings: Any) -> typer.models.OptionInfo:
    return _option("Output", names, settings)


def _option(
    panel: str, names: tuple[str, ...], settings: dict[str, Any]
) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(*names, rich_help_panel=panel, **settings)
    return option


_PROMPTS = """JSONL with {category, prompt}, or in the form of Spec-Bench, HumanEval or GSM8K; may
be repeated [dim](default: a built-in set)[/]."""
_VARIANT = "Compare this too, beside K=0 and the server's default; may be repeated."
_REPEATS = """Of every prompt and variant that runs alone [dim](default: 1)[/]; and rounds of
what else is measured [dim](default: 3)[/]."""
_CONCURRENCY = """Then so many requests at once, 1,4,16 for example: at each level the variants take
turns at the same prompts, with answers of half to one and a half times --max-tokens."""
_FIXED = """Then the adaptive default against fixed draft lengths, 1,2,4,8 for example, each used
for all prompts: it should be no slower than the best of them."""
_RANDOM = """Then prompts and answers of random tokens, which no draft can foresee: drafting must
cost next to nothing."""
_WAVE = """Then one request that decodes alone, among 32, and alone again: how long until its gain
is back? Its load's answers are compared too."""
_BARE = "The target's exported model: compare with its bare graph, run on this machine."
_KEEP_CACHE = """Let requests profit from all earlier ones. Else the prefix cache is filled with
other text before each, so that each one pays for its prompt, and drafters remember nothing of
other variants, rounds and runs."""


def bench(
    *,
    prompts: Annotated[list[Path] | None, _what(metavar="FILE", help=_PROMPTS)] = None,
    per_category: Annotated[int | None, _what(min=1, help="Evenly spaced picks of each.")] = None,
    max_tokens: Annotated[int, _what("--max-tokens", "-n", min=2)] = 128,
    temperature: Annotated[float, _what(min=0.0, help="0: greedy; else a seed per prompt.")] = 0.0,
    raw: Annotated[bool, _what("--raw", help="No chat template.")] = False,
    variant: Annotated[list[str] | None, _how(metavar="DRAFTER[:K]", help=_VARIANT)] = None,
    repeats: Annotated[int | None, _how(min=1, help=_REPEATS)] = None,
    single: Annotated[
        bool, _how("--single/--no-single", help="The prompts one at a time, in turns.")
    ] = True,
    concurrency: Annotated[str | None, _how(metavar="N,N,...", help=_CONCURRENCY)] = None,
    load_prompts: Annotated[int, _how(min=1, help="Prompts that --concurrency uses.")] = 12,
    arrival: Annotated[
        bool, _how("--arrival", help="Then TTFT of requests that arrive while 4 decode.")
    ] = False,
    fixed: Annotated[str | None, _how(metavar="K,K,...", help=_FIXED)] = None,
    random_text: Annotated[bool, _how("--random-text", help=_RANDOM)] = False,
    square_wave: Annotated[bool, _how("--square-wave", help=_WAVE)] = False,
    bare: Annotated[Path | None, _how(metavar="DIR", help=_BARE)] = None,
    keep_cache: Annotated[bool, _how("--keep-cache", help=_KEEP_CACHE)] = False,
    url: Annotated[
        str | None, _where(help="Host and gRPC port.", show_default="127.0.0.1:8001")
    ] = None,
    model: Annotated[str, _where(help="Served model.")] = "speculative",
    metrics_url: Annotated[
        str | None, _where(help="Its metrics.", show_default="http://127.0.0.1:8002/metrics")
    ] = None,
    timeout: Annotated[float, _where(min=1.0, help="Seconds for one answer.")] = 600.0,
    json_file: Annotated[
        Path | None, _output("--json", metavar="FILE", help="Everything, every request too.")
    ] = None,
    plot: Annotated[
        Path | None, _output(metavar="FILE.png", help="Speed-up by category; needs matplotlib.")
    ] = None,
) -> None:
    """Measure what speculation gains on a running server, and where the time goes.

    Every prompt is answered with K=0, with the server's default and with
    each --variant, in turns, and all answers are compared. What other options
    ask for follows, each with a table of its own; --no-single leaves out the
    first part. Ctrl-C prints what there is so far.

    [dim]Is it ever slower?[/]
    specdec bench --no-single -n 64 --concurrency 1,2,4,8,16,32
    --fixed 1,2,3,4,6,8 --random-text --square-wave
    """
    from specdec.client.bench.output import check_can_plot, check_writable
    from specdec.client.bench.session import Options, run_session

    if bare is not None and temperature > 0:
        raise RequestRejected("--bare is a greedy loop: leave out --temperature")
    if not single and (bare is not None or plot is not None):
        raise RequestRejected("--bare and --plot need prompts one at a time: leave out --no-single")
    if not (single or concurrency or arrival or fixed or random_text or square_wave):
        raise RequestRejected("--no-single leaves nothing to measure: ask for something else")
    check_writable([json_file, plot])
    if plot is not None:
        check_can_plot()
    run_session(
        Options(
            prompts=tuple(prompts or ()),
            per_category=per_category,
            max_tokens=max_tokens,
            temperature=temperature,
            raw=raw,
            variants=tuple(variant or ()),
            repeats=repeats,
            single=single,
            concurrency=parse_numbers("--concurrency", concurrency, most=1024),
            load_prompts=load_prompts,
            arrival=arrival,
            fixed=parse_numbers("--fixed", fixed, most=64),
            random_text=random_text,
            square_wave=square_wave,
            bare=bare,
            keep_cache=keep_cache,
            url=url or default_url(),
            model=model,
            metrics_url=metrics_url,
            timeout=timeout,
            json_file=json_file,
            plot=plot,
        )
    )


def parse_numbers(option: str, text: str | None, *, most: int) -> tuple[int, ...]:
    """`1,4,16` -> (1, 4, 16), each once. Raises `RequestRejected`."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(p.isascii() and p.isdigit() and 1 <= int(p) <= most for p in parts):
        raise RequestRejected(f"{option} {text!r}: expected numbers from 1 to {most}, as 1,4,16")
    return tuple(dict.fromkeys(int(p) for p in parts))
