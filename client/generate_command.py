"""`specdec generate`: stream one answer to the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from specdec.client.console import ERR, OUT, default_url
from specdec.client.errors import RequestRejected
from specdec.client.results import Chunk, Completion, Stats

DRAFT_STYLE = "green"


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    *,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="Use the model's chat template, or no template.")
    ] = True,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1)] = 256,
    min_tokens: Annotated[int | None, typer.Option(min=0)] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0)] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0)] = None,
    min_p: Annotated[float | None, typer.Option(min=0.0, max=1.0)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed, the same text.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option()] = None,
    presence_penalty: Annotated[float | None, typer.Option()] = None,
    frequency_penalty: Annotated[float | None, typer.Option()] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop word; may be repeated.")] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option("--num-draft-tokens", "-k", min=0, help="0: no speculation.")
    ] = None,
    drafter: Annotated[str | None, typer.Option()] = None,
    highlight: Annotated[
        bool, typer.Option("--highlight", help="Colour what came from drafts.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    url: Annotated[
        str | None, typer.Option(help="Host and gRPC port.", show_default="127.0.0.1:8001")
    ] = None,
    model: Annotated[str, typer.Option(help="Served model.")] = "speculative",
    timeout: Annotated[float | None, typer.Option(help="Seconds for the whole answer.")] = None,
) -> None:
    """Generate text with a running server and stream it to the terminal."""
    from specdec.client.client import SpecdecClient

    if system is not None and not chat:
        raise RequestRejected("--system belongs to a chat: leave out --raw")
    text = _read_stdin() if prompt == "-" else prompt
    asked: dict[str, Any] = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "stop_words": stop,
        "num_draft_tokens": num_draft_tokens,
        "drafter": drafter,
        "return_logprobs": as_json or None,
    }
    source: dict[str, Any] = {"messages": chat_of(text, system)} if chat else {"prompt": text}
    options = {name: value for name, value in asked.items() if value is not None}
    with (
        SpecdecClient(url or default_url(), model) as client,
        client.stream(**source, timeout=timeout, **options) as chunks,
    ):
        if as_json:
            print(to_json(Completion.join(list(chunks))))
        else:
            print_stream(chunks, highlight=highlight)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise RequestRejected(f"the prompt is not UTF-8: {error.reason}") from None


def chat_of(text: str, system: str | None) -> list[dict[str, str]]:
    user = {"role": "user", "content": text}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def to_json(completion: Completion) -> str:
    found = asdict(completion)
    stats = completion.stats
    for name in ("acceptance_rate", "tokens_per_pass", "tokens_per_second"):
        found["stats"][name] = round(getattr(stats, name), 4)
    return json.dumps(found, ensure_ascii=False)


def print_stream(chunks: Iterable[Chunk], *, highlight: bool) -> None:
    """Text to stdout as it comes; the closing line to stderr, so that a pipe gets only text."""
    stats: Stats | None = None
    for chunk in chunks:
        for text, is_draft in segments(chunk):
            style = DRAFT_STYLE if highlight and is_draft else None
            OUT.print(text, style=style, end="", markup=False, emoji=False)
        OUT.file.flush()
        stats = chunk.stats or stats
    OUT.print()
    if stats is None:
        return
    if highlight:
        ERR.print(f"[{DRAFT_STYLE}]■[/] [dim]drafted and accepted[/]  ■ [dim]the target's own[/]")
    ERR.print(summary(stats), style="dim")


def segments(chunk: Chunk) -> Iterator[tuple[str, bool]]:
    """The chunk's text in parts that are wholly from a draft, or not at all.

    A server that does not say where each token's text ends has its chunks coloured as a whole.
    """
    if not chunk.text_lengths:
        yield chunk.text, any(chunk.from_draft)
        return
    begin = 0
    for length, is_draft in zip(chunk.text_lengths, chunk.from_draft, strict=True):
        yield chunk.text[begin : begin + length], is_draft
        begin += length
    yield chunk.text[begin:], False


def summary(stats: Stats) -> str:
    parts = [
        f"{stats.num_output_tokens} tokens",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"TTFT {stats.ttft_seconds * 1000:.0f} ms",
        f"{stats.tokens_per_pass:.2f} tokens per pass",
    ]
    if stats.num_draft_tokens:
        share = f"{stats.num_accepted_tokens}/{stats.num_draft_tokens}"
        parts.append(f"accepted {share} drafted ({stats.acceptance_rate:.0%})")
        if stats.measured_gain:
            parts.append(f"{stats.measured_gain:.2f}x of plain decoding")
    else:
        parts.append("nothing drafted")
    return " · ".join(parts)
