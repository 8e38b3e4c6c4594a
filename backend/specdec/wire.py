"""Decoder calls as named arrays, and back: what crosses the process boundary.

Only token ids and a few floats travel, never logits or keys and values (a 4 MB hop costs 4 ms, a
64 KB hop 0.4 ms). Pure numpy; the Triton glue of either room sends them as one `frame`.

operation  inputs                                     outputs
describe   -                                          info [1] JSON
reset      -                                          num_cached [1], 0
open       sequence_ids [1], token_ids [N],           num_cached [1]
           sampling [1] JSON
           if there is one: cache_salt [1]
           of a head that is not fed from the
           text's beginning: starts [1]
extend     sequence_ids, starts, num_tokens,          output_ids [R], output_logprobs [R],
           num_outputs, num_draft_steps [B],          compute_seconds [1]
           token_ids [N]
           of trees: num_parents [B], parents [P]
           if any is wanted: num_candidates [B]       candidate_ids [C]
           if any wants some: wants_features [B]      features [M * feature_size]
           if any has one: least_logprobs [B]         num_drafted [B], the draft steps taken
           if any does: follows_draws [B]
close      sequence_ids, starts [B] (committed        num_cached [1], 0
           lengths)
draft      of a head, in place of extend: see wire_head.py

N = sum(num_tokens), R = sum(num_outputs + num_drafted), P = sum(num_parents),
C = sum(num_outputs * num_candidates), M = sum(num_tokens) of those that want features; sequences
follow one another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from specdec import wire_head
from specdec.types import (
    Decoder,
    DecoderInfo,
    Extend,
    Extended,
    ExtendResult,
    Features,
    Head,
    HeadCall,
    HeadResult,
    PassCost,
    SamplingParams,
)

Arrays = dict[str, np.ndarray[Any, Any]]

# Name -> numpy type; all are [n], and a call has those of its operation.
INPUTS: Mapping[str, Any] = {
    "operation": np.object_,
    "sequence_ids": np.int64,
    "starts": np.int32,
    "num_tokens": np.int32,
    "token_ids": np.int32,
    "num_outputs": np.int32,
    "num_draft_steps": np.int32,
    "num_parents": np.int32,
    "parents": np.int32,
    "num_candidates": np.int32,
    "wants_features": np.int32,
    "least_logprobs": np.float64,
    "follows_draws": np.int32,
    "sampling": np.object_,
    "cache_salt": np.int64,
    **wire_head.INPUTS,
}
OUTPUTS: Mapping[str, Any] = {
    "info": np.object_,
    "num_cached": np.int32,
    "output_ids": np.int32,
    "output_logprobs": np.float32,
    "candidate_ids": np.int32,
    "features": np.float16,
    "compute_seconds": np.float64,
    **wire_head.OUTPUTS,
}
# Operation -> the outputs it fills.
RESULTS: Mapping[str, tuple[str, ...]] = {
    "describe": ("info",),
    "reset": ("num_cached",),
    "open": ("num_cached",),
    "extend": ("output_ids", "output_logprobs", "compute_seconds"),
    "close": ("num_cached",),
    "draft": wire_head.RESULTS,
}
# Input of `extend` -> the output that it has too, if that is there.
WISHES: Mapping[str, str] = {
    "num_candidates": "candidate_ids",
    "wants_features": "features",
    "least_logprobs": "num_drafted",
}


def _text(value: str) -> np.ndarray[Any, Any]:
    return np.array([value.encode()], dtype=np.object_)


def _ints(values: Sequence[int], dtype: Any = np.int32) -> np.ndarray[Any, Any]:
    return np.asarray(values, dtype=dtype)


def sampling_to_json(sampling: SamplingParams) -> str:
    return json.dumps(asdict(sampling))


def sampling_from_json(text: str | bytes) -> SamplingParams:
    fields = json.loads(text)
    for name in ("end_ids", "bad_words", "logit_bias"):
        fields[name] = tuple(tuple(x) if isinstance(x, list) else x for x in fields[name])
    return SamplingParams(**fields)


def _split(values: list[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Consecutive parts of these sizes, which are all there is."""
    ends = list(accumulate(sizes, initial=0))
    assert ends[-1] == len(values), (sizes, len(values))
    return [values[begin:end] for begin, end in pairwise(ends)]


def _optional(calls: Sequence[Extend]) -> Arrays:
    """What most calls do without."""
    arrays: Arrays = {}
    if any(c.parents for c in calls):
        arrays["num_parents"] = _ints([len(c.parents) for c in calls])
        arrays["parents"] = _ints([p for c in calls for p in c.parents])
    if any(c.num_candidates for c in calls):
        arrays["num_candidates"] = _ints([c.num_candidates for c in calls])
    if any(c.wants_features for c in calls):
        arrays["wants_features"] = _ints([c.wants_features for c in calls])
    if any(c.least_logprob != -math.inf for c in calls):
        arrays["least_logprobs"] = np.asarray([c.least_logprob for c in calls], np.float64)
    if any(c.follows_draws for c in calls):
        arrays["follows_draws"] = _ints([c.follows_draws for c in calls])
    return arrays


def _candidates(
    calls: Sequence[Extend], ids: np.ndarray[Any, Any] | None
) -> list[tuple[tuple[int, ...], ...]]:
    """`Extended.candidate_ids` of every call, cut from what all have together."""
    if ids is None:
        return [()] * len(calls)
    num_rows = [c.num_outputs if c.num_candidates else 0 for c in calls]
    sizes = [c.num_candidates for c, n in zip(calls, num_rows, strict=True) for _ in range(n)]
    rows = [tuple(row) for row in _split(ids.tolist(), sizes)]
    return [tuple(part) for part in _split(rows, num_rows)]


def _features(
    calls: Sequence[Extend], values: np.ndarray[Any, Any] | None
) -> list[Features | None]:
    """`Extended.features` of every call, views of what all have together."""
    if values is None:
        return [None] * len(calls)
    num_rows = [len(c.token_ids) if c.wants_features else 0 for c in calls]
    ends = np.cumsum(num_rows)
    parts = np.split(values.reshape(ends[-1], -1), ends[:-1])
    return [part if c.wants_features else None for c, part in zip(calls, parts, strict=True)]


class RemoteDecoder:
    """`Decoder` and `Head` over a transport: arrays in, arrays out, `DecoderFailed` on error."""

    def __init__(self, transport: Callable[[Arrays, Sequence[str]], Arrays]) -> None:
        """`transport(inputs, wanted)` returns the wanted outputs."""
        self._transport = transport

    def _call(self, operation: str, **arrays: np.ndarray[Any, Any]) -> Arrays:
        more = [output for name, output in WISHES.items() if name in arrays]
        return self._transport(
            {"operation": _text(operation), **arrays}, (*RESULTS[operation], *more)
        )

    def describe(self) -> DecoderInfo:
        info = json.loads(self._call("describe")["info"][0])
        costs = tuple(PassCost(*cost) for cost in info.pop("costs"))
        return DecoderInfo(**info, costs=costs)

    def reset(self) -> None:
        self._call("reset")

    def open(
        self,
        sequence_id: int,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
        first: int = 0,
    ) -> int:
        """`first`: of heads alone."""
        salt = {"cache_salt": _ints([cache_salt], np.int64)} if cache_salt else {}
        start = {"starts": _ints([first])} if first else {}
        result = self._call(
            "open",
            sequence_ids=_ints([sequence_id], np.int64),
            token_ids=_ints(prompt_ids),
            sampling=_text(sampling_to_json(sampling)),
            **salt,
            **start,
        )
        return int(result["num_cached"][0])

    def extend(self, calls: Sequence[Extend]) -> ExtendResult:
        result = self._call(
            "extend",
            sequence_ids=_ints([c.sequence_id for c in calls], np.int64),
            starts=_ints([c.start for c in calls]),
            num_tokens=_ints([len(c.token_ids) for c in calls]),
            token_ids=_ints([t for c in calls for t in c.token_ids]),
            num_outputs=_ints([c.num_outputs for c in calls]),
            num_draft_steps=_ints([c.num_draft_steps for c in calls]),
            **_optional(calls),
        )
        taken = result.get("num_drafted", [c.num_draft_steps for c in calls])
        sizes = [c.num_outputs + int(steps) for c, steps in zip(calls, taken, strict=True)]
        ids = _split(result["output_ids"].tolist(), sizes)
        logprobs = _split(result["output_logprobs"].tolist(), sizes)
        candidates = _candidates(calls, result.get("candidate_ids"))
        features = _features(calls, result.get("features"))
        sequences = [
            Extended(tuple(i), tuple(p), c, f)
            for i, p, c, f in zip(ids, logprobs, candidates, features, strict=True)
        ]
        return ExtendResult(sequences, float(result["compute_seconds"][0]))

    def draft(self, calls: Sequence[HeadCall]) -> HeadResult:
        return wire_head.decode_drafts(self._call("draft", **wire_head.encode_calls(calls)))

    def close(self, sequences: Sequence[tuple[int, int]]) -> None:
        ids, lengths = zip(*sequences, strict=True)
        self._call("close", sequence_ids=_ints(ids, np.int64), starts=_ints(lengths))


def serve(decoder: Decoder | Head, arrays: Arrays) -> Arrays:
    """Run one call on a local decoder or head: the other end of `RemoteDecoder`."""
    operation = bytes(arrays["operation"][0]).decode()
    if operation == "extend":
        return _serve_extend(cast(Decoder, decoder), arrays)
    if operation == "draft":
        calls = wire_head.decode_calls(arrays)
        return wire_head.encode_drafts(cast(Head, decoder).draft(calls))
    if operation == "open":
        given = {"cache_salt": "cache_salt", "first": "starts"}
        num_cached = decoder.open(
            int(arrays["sequence_ids"][0]),
            arrays["token_ids"].tolist(),
            sampling_from_json(arrays["sampling"][0]),
            **{name: int(arrays[array][0]) for name, array in given.items() if array in arrays},
        )
        return {"num_cached": _ints([num_cached])}
    if operation == "close":
        pairs = zip(arrays["sequence_ids"].tolist(), arrays["starts"].tolist(), strict=True)
        decoder.close(list(pairs))
        return {"num_cached": _ints([0])}
    if operation == "reset":
        decoder.reset()
        return {"num_cached": _ints([0])}
    if operation == "describe":
        return {"info": _text(json.dumps(decoder.describe()._asdict()))}
    raise ValueError(f"operation {operation!r}: expected one of {', '.join(RESULTS)}")


def _serve_extend(decoder: Decoder, arrays: Arrays) -> Arrays:
    given = {name: array.tolist() for name, array in arrays.items() if name != "operation"}
    zeros = [0] * len(given["sequence_ids"])
    columns = (
        given["sequence_ids"],
        given["starts"],
        _split(given["token_ids"], given["num_tokens"]),
        given["num_outputs"],
        given["num_draft_steps"],
        _split(given.get("parents", []), given.get("num_parents", zeros)),
        given.get("num_candidates", zeros),
        map(bool, given.get("wants_features", zeros)),
        given.get("least_logprobs", [-math.inf] * len(zeros)),
        map(bool, given.get("follows_draws", zeros)),
    )
    result = decoder.extend([Extend(*fields) for fields in zip(*columns, strict=True)])
    outputs = {
        "output_ids": _ints([t for s in result.sequences for t in s.token_ids]),
        "output_logprobs": np.asarray(
            [p for s in result.sequences for p in s.logprobs], dtype=np.float32
        ),
        "compute_seconds": np.array([result.compute_seconds]),
    }
    if "num_candidates" in arrays:
        ids = [t for s in result.sequences for row in s.candidate_ids for t in row]
        outputs["candidate_ids"] = _ints(ids)
    if "wants_features" in arrays:
        parts = [s.features.reshape(-1) for s in result.sequences if s.features is not None]
        outputs["features"] = np.concatenate(parts)
    if "least_logprobs" in arrays:
        pairs = zip(result.sequences, given["num_outputs"], strict=True)
        outputs["num_drafted"] = _ints([len(s.token_ids) - num_outputs for s, num_outputs in pairs])
    return outputs
