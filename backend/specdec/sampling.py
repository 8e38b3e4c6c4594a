"""Draws one token from one row of logits; both rooms share it. Pure functions of NumPy arrays.

The noise at (seed, position, token id) is one fixed number (see noise.py), so a token is a function
of the logits, the tokens before it and the seed alone, whatever was drafted, batched or evaluated
beside it. Knows nothing of models, caches or requests.

    logits -> penalties -> bias -> masks -> temperature -> top-k -> top-p -> min-p
           -> argmax(scaled logit + gumbel noise)      (the Gumbel-max trick: a draw from softmax)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specdec.errors import DecoderFailed
from specdec.noise import bits, gumbel
from specdec.types import SamplingParams

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]

_LIMIT = 1e30  # transformed logits stay finite: an infinite bias would make inf - inf
_GREEDY_BELOW = 1e-5  # temperatures below it are greedy: noise could only break near-ties
_BLOCK = 8192  # ids handled at a time: temporaries stay in the first-level cache
_FIRST = 64  # likeliest tokens that are drawn before the rest, see `_draw_all`
_GROUPS = 256  # columns at least, see `_largest`: maxima over narrower rows are slow
_TOP_P_FIRST = 1024  # likeliest tokens that top-p looks at before it sorts all of them


def sample(
    logits: Floats,
    sampling: SamplingParams,
    *,
    history: Ints,
    num_prompt_tokens: int,
    position: int,
    vocab_limit: int,
) -> tuple[int, float]:
    """Draw the token at `position`.

    Args:
        logits: [V] float32, contiguous. Not changed.
        sampling: the transforms and the seed; see there for their order.
        history: [position] token ids before this one, prompt first, drafts included.
        num_prompt_tokens: how many of `history` are the prompt's.
        position: absolute position of the token to draw; selects the noise.
        vocab_limit: only ids below it are ever drawn.

    Returns:
        The token id, and its natural log-probability under the raw, untransformed logits (NaN
        where those are not wanted).
        Masks that would leave no token at all are ignored: the draw is then from the
        penalized and biased logits.

    Raises:
        DecoderFailed: a logit is NaN or infinite.
    """
    row = logits[:vocab_limit]
    peak = float(row.max())  # NaN if any logit is
    if not (math.isfinite(peak) and math.isfinite(float(row.min()))):
        wrong = int(np.count_nonzero(~np.isfinite(row)))
        raise DecoderFailed(f"{wrong} of {row.size} logits at position {position} are not finite")
    transformed = _transform(row, sampling, history, num_prompt_tokens)
    if is_greedy(sampling):
        token_id = int(transformed.argmax())
    else:
        token_id = _draw(transformed, sampling, position)
    if not sampling.logprobs:
        return token_id, math.nan
    return token_id, float(row[token_id]) - peak - math.log(_mass(row, peak))


def is_greedy(sampling: SamplingParams) -> bool:
    """Whether the likeliest token is drawn, without noise."""
    return sampling.temperature < _GREEDY_BELOW or sampling.top_k == 1


def leaves_logits(sampling: SamplingParams) -> bool:
    """Whether no penalty, bias or mask changes logits before the draw, whatever came before."""
    return (
        sampling.repetition_penalty == 1.0
        and sampling.presence_penalty == sampling.frequency_penalty == 0.0
        and not (sampling.logit_bias or sampling.bad_words or sampling.min_tokens)
    )


def likeliest(logits: Floats, count: int) -> Ints:
    """Ids of the `count` largest of `logits` [V], in falling order; of equal ones the lowest."""
    ids = _largest(logits, count)
    return ids[np.argsort(-logits[ids], kind="stable")]


def _mass(logits: Floats, peak: float, temperature: float = 1.0) -> float:
    """Sum of exp((logits - peak) / temperature).

    Float32 inside a block is exact enough (1e-7 of the sum) and four times cheaper. NumPy's
    pairwise sum of a contiguous block has one fixed order, so equal rows give equal bits.
    """
    total = 0.0
    for start in range(0, logits.size, _BLOCK):
        block = logits[start : start + _BLOCK] - np.float32(peak)
        if temperature != 1.0:
            block /= np.float32(temperature)
        total += float(np.exp(block, out=block).sum())
    return total


def _transform(
    row: Floats, sampling: SamplingParams, history: Ints, num_prompt_tokens: int
) -> Floats:
    """Penalties, bias and masks: float32 [vocab_limit]; `row` itself where nothing applies."""
    penalized = _penalize(row, sampling, history, num_prompt_tokens)
    masked = [t for t in _masked_ids(sampling, history, num_prompt_tokens) if t < row.size]
    if not masked:
        return penalized
    result = penalized.copy()
    result[masked] = -np.inf
    return result if result.max() > -np.inf else penalized


def _penalize(
    row: Floats, sampling: SamplingParams, history: Ints, num_prompt_tokens: int
) -> Floats:
    repeats = sampling.repetition_penalty != 1.0
    counts = sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
    if not (repeats or counts or sampling.logit_bias):
        return row
    result = row.copy()
    if repeats:
        seen = np.unique(history[history < row.size])
        values = row[seen].astype(np.float64)
        factor = sampling.repetition_penalty
        result[seen] = np.where(values > 0, values / factor, values * factor)
    if counts:
        output = history[num_prompt_tokens:]
        seen, times = np.unique(output[output < row.size], return_counts=True)
        result[seen] -= sampling.presence_penalty + sampling.frequency_penalty * times
    for token_id, bias in sampling.logit_bias:
        if token_id < row.size:
            result[token_id] = np.clip(float(result[token_id]) + bias, -_LIMIT, _LIMIT)
    return result


def _masked_ids(sampling: SamplingParams, history: Ints, num_prompt_tokens: int) -> list[int]:
    masked = [
        word[-1]
        for word in sampling.bad_words
        if 0 < len(word) <= len(history) + 1
        and word[:-1] == tuple(history[len(history) + 1 - len(word) :].tolist())
    ]
    if len(history) - num_prompt_tokens < sampling.min_tokens:
        masked.extend(sampling.end_ids)
    return masked


def _draw(transformed: Floats, sampling: SamplingParams, position: int) -> int:
    """Gumbel-max over the tokens that the filters keep; ties go to the lowest id."""
    if sampling.top_k <= 0 and sampling.top_p >= 1 and sampling.min_p <= 0:
        return _draw_all(transformed, sampling, position)
    ids = _filter(transformed, sampling)
    scaled = _scale(transformed[ids], float(transformed.max()), sampling.temperature)
    return int(ids[np.argmax(scaled + gumbel(sampling.seed, position, ids))])


def _draw_all(transformed: Floats, sampling: SamplingParams, position: int) -> int:
    """`argmax(scaled + gumbel)` over a whole vocabulary with few logarithms.

    The likeliest tokens are drawn first. Every other one has a scaled logit of at most `rest`, so
    it needs noise above `best - rest` to win, and its random bits tell without a logarithm:
    noise >= x  <=>  uniform >= exp(-exp(-x)).
    """
    peak, seed = float(transformed.max()), sampling.seed
    ids = _largest(transformed, _FIRST)
    scaled = _scale(transformed[ids], peak, sampling.temperature)
    best, rest = float((scaled + gumbel(seed, position, ids)).max()), float(scaled.min())
    if ids.size < transformed.size and rest > -np.inf:
        uniform = math.exp(-math.exp(rest - best + 1e-6))  # this and 2^13 cover the rounding
        floor = np.uint64(max(int(math.ldexp(uniform, 64)) - (1 << 13), 0))
        lucky = [ids]
        for start in range(0, transformed.size, _BLOCK):
            block = np.arange(start, min(start + _BLOCK, transformed.size))
            lucky.append(block[bits(seed, position, block) >= floor])
        ids = np.unique(np.concatenate(lucky))
        scaled = _scale(transformed[ids], peak, sampling.temperature)
    return int(ids[np.argmax(scaled + gumbel(seed, position, ids))])


def _scale(logits: Floats, peak: float, temperature: float) -> Floats:
    """Float64, shifted so that the largest is 0."""
    scaled: Floats = (logits.astype(np.float64) - peak) / temperature
    return scaled


def _filter(transformed: Floats, sampling: SamplingParams) -> Ints:
    """Ids, ascending, that top-k, then top-p, then min-p keep; at least one.

    Each filter's probabilities are renormalized over what the one before it kept.
    """
    peak, temperature = float(transformed.max()), sampling.temperature
    ids: Ints
    if 0 < sampling.top_k < transformed.size:
        ids = _largest(transformed, sampling.top_k)
        if sampling.top_p < 1:
            scaled = _scale(transformed[ids], peak, temperature)
            size = _nucleus_size(scaled, sampling.top_p, float(np.exp(scaled).sum()))
            ids = ids[_largest(scaled, size)]
    elif sampling.top_p < 1:
        ids = _top_p(transformed, peak, sampling)
    else:
        ids = np.arange(transformed.size)
    if sampling.min_p > 0:
        least = peak + temperature * math.log(sampling.min_p)  # relative to the likeliest
        ids = ids[transformed[ids] >= min(least, peak)]
    return ids


def _top_p(transformed: Floats, peak: float, sampling: SamplingParams) -> Ints:
    """Ids, ascending, that top-p keeps of a whole vocabulary."""
    total = _mass(transformed, peak, sampling.temperature)
    if transformed.size > _TOP_P_FIRST:
        ids = _largest(transformed, _TOP_P_FIRST)
        scaled = _scale(transformed[ids], peak, sampling.temperature)
        size = _nucleus_size(scaled, sampling.top_p, total)
        if size <= ids.size:
            return ids[_largest(scaled, size)]
    scaled = _scale(transformed, peak, sampling.temperature)
    return _largest(scaled, _nucleus_size(scaled, sampling.top_p, total))


def _nucleus_size(scaled: Floats, top_p: float, total: float) -> int:
    """How many of the likeliest entries hold `top_p` of `total`; one more than all if they do not.

    At least 1: the entry that crosses the threshold is kept.
    """
    mass = np.cumsum(np.exp(np.sort(scaled)[::-1]))
    return int(np.searchsorted(mass, top_p * total)) + 1


def _largest(values: Floats, count: int) -> Ints:
    """Ids, ascending, of the `count` largest values, all if fewer; of equal ones the lowest ids.

    The count-th largest of many group maxima bounds the count-th largest value from below, so
    only a few candidates are left to select from: 5 times faster than a partition of the row.
    """
    candidates: Ints = np.arange(values.size)
    if count >= values.size:
        return candidates
    num_groups = max(2 * count, _GROUPS)
    if values.size >= 8 * num_groups:
        groups = values[: values.size // num_groups * num_groups].reshape(-1, num_groups)
        bound = np.partition(groups.max(axis=0), num_groups - count)[num_groups - count]
        candidates = np.flatnonzero(values >= bound)
    few = values[candidates]
    least = np.partition(few, few.size - count)[few.size - count]
    above = candidates[few > least]
    equal = candidates[few == least][: count - above.size]
    return np.sort(np.concatenate([above, equal]))
