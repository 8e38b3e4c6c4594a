"""The operation `draft` of a head as named arrays, and back; the rest of it is in wire.py.

inputs    sequence_ids, starts, num_tokens, num_carried, max_tokens, max_depths, widths,
          leasts [B]; token_ids [N], carried_ids [C]; features [N * feature_size]
outputs   num_drafted [B]; output_ids, parents, output_logprobs [D]; compute_seconds [1]

N = sum(num_tokens), C = sum(num_carried), D = sum(num_drafted); sequences follow one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec.types import HeadCall, HeadDraft, HeadResult

Arrays = dict[str, np.ndarray[Any, Any]]

# Beside those of a decoder.
INPUTS: Mapping[str, Any] = {
    "num_carried": np.int32,
    "carried_ids": np.int32,
    "max_tokens": np.int32,
    "max_depths": np.int32,
    "widths": np.int32,
    "leasts": np.float64,
    "features": np.float16,
}
OUTPUTS: Mapping[str, Any] = {"num_drafted": np.int32, "parents": np.int32}
RESULTS = ("num_drafted", "output_ids", "parents", "output_logprobs", "compute_seconds")


def _ints(values: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.int32)


def encode_calls(calls: Sequence[HeadCall]) -> Arrays:
    return {
        "sequence_ids": np.asarray([c.sequence_id for c in calls], np.int64),
        "starts": _ints([c.start for c in calls]),
        "num_tokens": _ints([len(c.token_ids) for c in calls]),
        "token_ids": _ints([t for c in calls for t in c.token_ids]),
        "num_carried": _ints([len(c.carry) for c in calls]),
        "carried_ids": _ints([t for c in calls for t in c.carry]),
        "max_tokens": _ints([c.max_tokens for c in calls]),
        "max_depths": _ints([c.max_depth for c in calls]),
        "widths": _ints([c.width for c in calls]),
        "leasts": np.asarray([c.least for c in calls], np.float64),
        "features": np.concatenate([c.features.reshape(-1) for c in calls]),
    }


def decode_calls(arrays: Arrays) -> list[HeadCall]:
    columns = (
        arrays["sequence_ids"].tolist(),
        arrays["starts"].tolist(),
        [ids.tolist() for ids in _split(arrays["token_ids"], arrays["num_tokens"])],
        _split(_rows(arrays["features"], arrays["num_tokens"]), arrays["num_tokens"]),
        [tuple(ids.tolist()) for ids in _split(arrays["carried_ids"], arrays["num_carried"])],
        *(arrays[name].tolist() for name in ("max_tokens", "max_depths", "widths", "leasts")),
    )
    return [HeadCall(*fields) for fields in zip(*columns, strict=True)]


def encode_drafts(result: HeadResult) -> Arrays:
    drafts = result.drafts
    return {
        "num_drafted": _ints([len(d.token_ids) for d in drafts]),
        "output_ids": _ints([t for d in drafts for t in d.token_ids]),
        "parents": _ints([p for d in drafts for p in d.parents]),
        "output_logprobs": np.asarray([p for d in drafts for p in d.logprobs], np.float32),
        "compute_seconds": np.array([result.compute_seconds]),
    }


def decode_drafts(arrays: Arrays) -> HeadResult:
    columns = [
        [tuple(part.tolist()) for part in _split(arrays[name], arrays["num_drafted"])]
        for name in ("output_ids", "parents", "output_logprobs")
    ]
    drafts = [HeadDraft(*fields) for fields in zip(*columns, strict=True)]
    return HeadResult(drafts, float(arrays["compute_seconds"][0]))


def _rows(values: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """values [rows * size] as [rows, size]."""
    return values.reshape(int(sizes.sum()), -1)


def _split(values: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> list[Any]:
    """Consecutive parts of these sizes, which are all there is."""
    ends = np.cumsum(sizes)
    assert ends[-1] == len(values), (sizes, len(values))
    return np.split(values, ends[:-1])
