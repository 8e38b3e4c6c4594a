"""A decoder over `TokenRuntime`, and what it must answer by definition."""

from __future__ import annotations

import numpy as np

from specdec.decoder.decoder import CachedDecoder
from specdec.sampling import sample
from specdec.types import DecoderInfo, Extend, SamplingParams
from support.runtimes import (
    FEATURE_SIZE,
    VOCAB_SIZE,
    TokenRuntime,
    artifact,
    check_contents,
    logits_after,
)
from support.trees import path

LIMIT = VOCAB_SIZE - 2  # ids that may be emitted
SAMPLED = SamplingParams(
    temperature=1.3,
    top_k=20,
    top_p=0.95,
    repetition_penalty=1.3,
    frequency_penalty=0.4,
    presence_penalty=0.2,
    seed=77,
    min_tokens=4,
    end_ids=(2, 5, 7),
)
PROMPT = [3, 14, 15, 9, 26, 5]


def make(
    runtime=None,
    *,
    max_length: int = 300,
    min_rows: int = 2,
    feature_size: int = FEATURE_SIZE,
    **runtime_args,
):
    runtime = runtime or TokenRuntime(**runtime_args)
    info = DecoderInfo(
        runtime.num_slots,
        max_length,
        LIMIT,
        "bitwise",
        min_rows,
        "fp32",
        feature_size=feature_size,
    )
    return CachedDecoder(runtime, info, artifact()), runtime


def check(decoder, runtime) -> None:
    """What the decoder believes its slots hold is what they hold."""
    check_contents(decoder._cache, runtime)


def drawn(text, sampling, num_prompt_tokens):
    """What is sampled after a text."""
    return sample(
        logits_after(text),
        sampling,
        history=np.array(text, np.int32),
        num_prompt_tokens=num_prompt_tokens,
        position=len(text),
        vocab_limit=LIMIT,
    )


def texts_of(call: Extend, before=()) -> list[list[int]]:
    """The text that ends at each output row of a tree call."""
    root = len(call.token_ids) - len(call.parents)
    stem = [*before, *call.token_ids[:root]]
    return [
        stem + [call.token_ids[root + j] for j in path(call.parents, i)]
        for i in range(-1, len(call.parents))
    ]


def likeliest_of(text, count) -> tuple[int, ...]:
    return tuple(np.argsort(-logits_after(text)[:LIMIT], kind="stable")[:count].tolist())
