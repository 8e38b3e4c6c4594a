"""A Triton request's tensors and parameters -> validated `Request`s, or `InvalidRequest`.

Each input is honoured or refused by name. Knows the contract and the tokenizer; nothing of Triton
or of scheduling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from specdec.config import SpeculativeConfig
from specdec.errors import InvalidRequest
from specdec.speculation.chat import parse_messages
from specdec.speculation.input_reader import InputReader, same, shown
from specdec.speculation.refusals import check_parameters, refuse_unsupported
from specdec.speculation.sampling_parser import parse_sampling
from specdec.speculation.tokenization import TextTokenizer
from specdec.types import Request

_MAX_INT32 = 2**31 - 1


class Limits(NamedTuple):
    """What the loaded models allow."""

    max_sequence_length: int  # prompt and output tokens of one sequence
    vocab_size: int
    end_ids: tuple[int, ...]  # the model's own
    drafters: tuple[str, ...]  # names a request may choose


class ResponseOptions(NamedTuple):
    """What the client wants back, and how."""

    stream: bool
    exclude_input_in_output: bool
    return_log_probs: bool
    return_num_input_tokens: bool
    return_num_output_tokens: bool
    return_perf_metrics: bool
    return_output_ids: bool
    prompt_texts: tuple[str, ...] = ()  # per prompt, where the answer starts with it
    pad_id: int = -1  # fills up shorter rows of output_ids


class ParsedRequest(NamedTuple):
    prompts: list[Request]  # one per row of the batch
    options: ResponseOptions


class _Prompt(NamedTuple):
    text: str
    token_ids: tuple[int, ...]


class _Context(NamedTuple):
    reader: InputReader
    tokenizer: TextTokenizer
    config: SpeculativeConfig
    limits: Limits
    ignore_eos: bool


def parse(
    tensors: Mapping[str, np.ndarray[Any, Any] | None],
    parameters: Mapping[str, object],
    tokenizer: TextTokenizer,
    config: SpeculativeConfig,
    limits: Limits,
) -> ParsedRequest:
    """Read one Triton request of N prompts: input name -> array [N or 1, *dims].

    Raises `InvalidRequest`: what was found and what is allowed.
    """
    reader = InputReader(tensors)
    refuse_unsupported(reader)
    context = _Context(reader, tokenizer, config, limits, check_parameters(parameters))
    prompts, requests = [], []
    for row in range(reader.num_prompts):
        prompts.append(_parse_prompt(context, row))
        requests.append(_parse_request(context, row, prompts[-1].token_ids))
    options = _parse_options(reader)
    if not options.stream and not options.exclude_input_in_output:
        options = options._replace(prompt_texts=tuple(prompt.text for prompt in prompts))
    return ParsedRequest(requests, options)


def _parse_prompt(context: _Context, row: int) -> _Prompt:
    reader, tokenizer = context.reader, context.tokenizer
    max_bytes = context.config.max_prompt_bytes
    text = reader.text("text_input", row, max_bytes=max_bytes)
    messages = reader.text("messages", row, max_bytes=max_bytes)
    ids = reader.row("input_ids", row)
    given = {"text_input": bool(text), "messages": bool(messages), "input_ids": ids is not None}
    found = [name for name, is_given in given.items() if is_given]
    if len(found) != 1:
        what = f"both {' and '.join(found)} are given" if found else "the prompt is empty"
        raise InvalidRequest(f"{what}: give one of {', '.join(given)}")
    if ids is not None:
        token_ids = _check_ids(ids, context.limits.vocab_size)
        return _Prompt(tokenizer.decode(token_ids), token_ids)
    if messages:
        text = tokenizer.render_chat(parse_messages(messages))
        token_ids = tokenizer.encode_plain(text)
    else:
        token_ids = tokenizer.encode(text)
    if not token_ids:
        raise InvalidRequest(f"{found[0]} {shown(text)} has no tokens: the prompt is empty")
    return _Prompt(text, token_ids)


def _check_ids(ids: np.ndarray[Any, Any], vocab_size: int) -> tuple[int, ...]:
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise InvalidRequest(f"input_ids holds {wrong[0]}: allowed are 0 to {vocab_size - 1}")
    return tuple(ids.tolist())


def _parse_request(context: _Context, row: int, prompt_ids: tuple[int, ...]) -> Request:
    reader, limits = context.reader, context.limits
    max_tokens = reader.integer("max_tokens", row, low=1, high=_MAX_INT32)
    assert max_tokens is not None, "InputReader requires it"
    if len(prompt_ids) + max_tokens > limits.max_sequence_length:
        raise InvalidRequest(
            f"the prompt's {len(prompt_ids)} tokens and max_tokens {max_tokens} make"
            f" {len(prompt_ids) + max_tokens}: allowed are {limits.max_sequence_length}"
        )
    end_ids = _parse_end_ids(context, row)
    return Request(
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        sampling=parse_sampling(
            reader, row, context.tokenizer, end_ids=end_ids, max_tokens=max_tokens
        ),
        stop_words=tuple(dict.fromkeys(filter(None, reader.texts("stop_words", row)))),
        num_draft_tokens=_parse_num_draft_tokens(context, row),
        adaptive=reader.flag("adaptive") if "adaptive" in reader else None,
        drafter=_parse_drafter(context, row),
        cache_salt=_parse_salt(reader.text("cache_salt", row)),
    )


def _parse_end_ids(context: _Context, row: int) -> tuple[int, ...]:
    """`end_id` takes the place of the model's own; -1 (or `ignore_eos`) means none."""
    end_id = context.reader.integer("end_id", row, low=-1, high=context.limits.vocab_size - 1)
    if context.ignore_eos or end_id == -1:
        return ()
    return context.limits.end_ids if end_id is None else (end_id,)


def _parse_num_draft_tokens(context: _Context, row: int) -> int | None:
    high = context.config.max_draft_tokens
    return context.reader.integer("num_draft_tokens", row, low=0, high=high)


def _parse_drafter(context: _Context, row: int) -> str | None:
    name = context.reader.text("drafter", row)
    if name and name not in context.limits.drafters:
        allowed = ", ".join(context.limits.drafters)
        raise InvalidRequest(f"drafter is {shown(name)}: allowed are {allowed}")
    return name or None


def _parse_salt(text: str) -> int:
    """62 bits, so that the memory of the drafters can mix them into its keys; 0: none."""
    if not text:
        return 0
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 2) or 1


def _parse_options(reader: InputReader) -> ResponseOptions:
    """Request-level inputs.

    `exclude_input_in_output` is true unless given: the old default was a setting of the model (so
    the OpenAI frontend never sends it), and a chat answer must not begin with its prompt. False
    puts the prompt before the answer; a stream carries new text only, as it always did.
    """
    pad_id = reader.integer("pad_id", 0, low=-(2**31), high=_MAX_INT32)
    stream = same(
        "stream",
        reader.flag("stream") if "stream" in reader else None,
        "streaming",
        reader.flag("streaming") if "streaming" in reader else None,
    )
    return ResponseOptions(
        stream=bool(stream),
        exclude_input_in_output=reader.flag("exclude_input_in_output", default=True),
        return_log_probs=reader.flag("return_log_probs"),
        return_num_input_tokens=reader.flag("return_num_input_tokens"),
        return_num_output_tokens=reader.flag("return_num_output_tokens"),
        return_perf_metrics=reader.flag("return_perf_metrics"),
        return_output_ids=reader.flag("return_output_ids"),
        pad_id=-1 if pad_id is None else pad_id,
    )
