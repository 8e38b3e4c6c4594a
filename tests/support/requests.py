"""Request tensors the way clients build them, and the parser with a tiny tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec.config import SpeculativeConfig
from specdec.speculation.contract import INPUTS, NUMPY_TYPES
from specdec.speculation.request_parser import Limits, ParsedRequest, parse
from support.text import tiny_tokenizer

LIMITS = Limits(max_sequence_length=128, vocab_size=320, end_ids=(2, 0), drafters=("none", "ngram"))
_TYPES = {field.name: NUMPY_TYPES[field.datatype] for field in INPUTS}


def tensors(**inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays [1, n] from plain values: text as UTF-8 bytes, a list as several items.

    A numpy array is passed as it is; text_input and max_tokens have defaults, None leaves one out.
    """
    given = {"text_input": "the fox", "max_tokens": 8} | inputs
    return {name: _array(name, value) for name, value in given.items() if value is not None}


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    items = value if isinstance(value, list) else [value]
    items = [item.encode() if isinstance(item, str) else item for item in items]
    return np.array(items, dtype=_TYPES.get(name, np.object_)).reshape(1, -1)


def column(values: list[Any], dtype: Any = np.object_) -> np.ndarray[Any, Any]:
    """[N, 1]: one value for each of N prompts."""
    values = [value.encode() if isinstance(value, str) else value for value in values]
    return np.array(values, dtype=dtype)[:, None]


def parse_inputs(
    parameters: dict[str, object] | None = None,
    *,
    limits: Limits = LIMITS,
    config: SpeculativeConfig | None = None,
    **inputs: Any,
) -> ParsedRequest:
    return parse(
        tensors(**inputs),
        parameters or {},
        tiny_tokenizer(),
        config or SpeculativeConfig(),
        limits,
    )
