"""The sampling inputs of one prompt -> `SamplingParams`.

Greedy unless asked otherwise: nothing set, temperature 0, top_k 1 or top_p 0 (the conventions of
TensorRT-LLM). top_k, top_p or min_p without a temperature means temperature 1.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from specdec.errors import InvalidRequest
from specdec.speculation.input_reader import InputReader, same, shown
from specdec.speculation.tokenization import TextTokenizer
from specdec.types import SamplingParams

_MAX_INT32 = 2**31 - 1
_MAX_UINT64 = 2**64 - 1
_MIN_TEMPERATURE = 1e-3  # below it, logits / temperature nears the end of float32
_MAX_PENALTY = 100.0
_MAX_BIAS = 1e4


def parse_sampling(
    reader: InputReader,
    row: int,
    tokenizer: TextTokenizer,
    *,
    end_ids: tuple[int, ...],
    max_tokens: int,
) -> SamplingParams:
    """Raises `InvalidRequest` with the value found and what is allowed."""
    temperature, top_k, top_p, min_p = _parse_shape(reader, row)
    penalty = reader.number("repetition_penalty", row, low=1e-2, high=_MAX_PENALTY)
    presence, frequency = (
        reader.number(name, row, low=-_MAX_PENALTY, high=_MAX_PENALTY)
        for name in ("presence_penalty", "frequency_penalty")
    )
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=1.0 if penalty is None else penalty,
        presence_penalty=presence or 0.0,
        frequency_penalty=frequency or 0.0,
        seed=_parse_seed(reader, row),
        min_tokens=_parse_min_tokens(reader, row, max_tokens),
        end_ids=end_ids,
        bad_words=_parse_bad_words(reader.texts("bad_words", row), tokenizer),
        logit_bias=_parse_bias(reader, row, tokenizer),
        logprobs=reader.flag("return_log_probs"),
    )


def _parse_shape(reader: InputReader, row: int) -> tuple[float, int, float, float]:
    """(temperature, top_k, top_p, min_p); temperature 0 for greedy."""
    top_k = reader.integer("top_k", row, low=-1, high=_MAX_INT32)
    top_p = reader.number("top_p", row, low=0.0, high=1.0)
    min_p = reader.number("min_p", row, low=0.0, high=1.0)
    temperature = reader.number("temperature", row, low=0.0, high=100.0)
    if temperature and temperature < _MIN_TEMPERATURE:
        allowed = f"0 (greedy) or {_MIN_TEMPERATURE} to 100"
        raise InvalidRequest(f"temperature is {temperature:g}: allowed is {allowed}")
    if temperature is None:
        temperature = 0.0 if top_k is None and top_p is None and min_p is None else 1.0
    if top_k == 1 or top_p == 0.0:
        temperature = 0.0
    if temperature == 0.0:
        return 0.0, 0, 1.0, 0.0
    return temperature, max(top_k or 0, 0), 1.0 if top_p is None else top_p, min_p or 0.0


def _parse_seed(reader: InputReader, row: int) -> int:
    one, other = (
        reader.integer(name, row, low=0, high=_MAX_UINT64) for name in ("seed", "random_seed")
    )
    seed = same("seed", one, "random_seed", other)
    return secrets.randbits(64) if seed is None else seed


def _parse_min_tokens(reader: InputReader, row: int, max_tokens: int) -> int:
    one, other = (
        reader.integer(name, row, low=0, high=_MAX_INT32) for name in ("min_tokens", "min_length")
    )
    min_tokens = same("min_tokens", one, "min_length", other) or 0
    if min_tokens > max_tokens:
        raise InvalidRequest(f"min_tokens is {min_tokens}: allowed is max_tokens, {max_tokens}")
    return min_tokens


def _parse_bad_words(words: Sequence[str], tokenizer: TextTokenizer) -> tuple[tuple[int, ...], ...]:
    """Token sequences of each word, at the start of a text and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for variant in (word, f" {word.lstrip(' ')}"):
            ids = tokenizer.encode_plain(variant) if word else ()
            if ids:
                found[ids] = None
    return tuple(found)


def _parse_bias(
    reader: InputReader, row: int, tokenizer: TextTokenizer
) -> tuple[tuple[int, float], ...]:
    """Add each word's weight to all of its tokens."""
    words = reader.texts("embedding_bias_words", row)
    weights = reader.numbers("embedding_bias_weights", row)
    if len(words) != len(weights):
        raise InvalidRequest(
            f"embedding_bias_words has {len(words)} items and embedding_bias_weights"
            f" {len(weights)}: they go in pairs"
        )
    bias: dict[int, float] = {}
    for word, weight in zip(words, weights, strict=True):
        if abs(weight) > _MAX_BIAS:
            raise InvalidRequest(
                f"embedding_bias_weights holds {weight:g} for {shown(word)}:"
                f" allowed is {-_MAX_BIAS:g} to {_MAX_BIAS:g}"
            )
        for token_id in set(tokenizer.encode_plain(word)) if word else ():
            bias[token_id] = bias.get(token_id, 0.0) + weight
    return tuple(sorted(bias.items()))
