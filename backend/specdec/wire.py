"""Decoder calls as named arrays, and back: what crosses the process boundary.

Only token ids and a few floats travel, never logits or keys and values (a 4 MB hop costs 4 ms, a
64 KB hop 0.4 ms). Pure numpy; the Triton glue of either room only turns arrays into tensors.

operation  inputs                                     outputs
describe   -                                          info [1] JSON
reset      -                                          num_cached [1], 0
open       sequence_ids [1], token_ids [N],           num_cached [1]
           sampling [1] JSON
extend     sequence_ids, starts, num_tokens,          output_ids [R], output_logprobs [R],
           num_outputs, num_draft_steps [B],          compute_seconds [1]
           token_ids [N]
close      sequence_ids, starts [B] (committed        num_cached [1], 0
           lengths)

N = sum(num_tokens), R = sum(num_outputs + num_draft_steps); sequences follow one another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from specdec.types import (
    Decoder,
    DecoderInfo,
    Extend,
    Extended,
    ExtendResult,
    PassCost,
    SamplingParams,
)

Arrays = dict[str, np.ndarray[Any, Any]]

# Name -> numpy type of every tensor a decoder model declares; all have dims [-1] and are optional.
INPUTS: Mapping[str, Any] = {
    "operation": np.object_,
    "sequence_ids": np.int64,
    "starts": np.int32,
    "num_tokens": np.int32,
    "token_ids": np.int32,
    "num_outputs": np.int32,
    "num_draft_steps": np.int32,
    "sampling": np.object_,
}
OUTPUTS: Mapping[str, Any] = {
    "info": np.object_,
    "num_cached": np.int32,
    "output_ids": np.int32,
    "output_logprobs": np.float32,
    "compute_seconds": np.float64,
}
# Operation -> the outputs it fills; a call asks for these only.
RESULTS: Mapping[str, tuple[str, ...]] = {
    "describe": ("info",),
    "reset": ("num_cached",),
    "open": ("num_cached",),
    "extend": ("output_ids", "output_logprobs", "compute_seconds"),
    "close": ("num_cached",),
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


class RemoteDecoder:
    """The `Decoder` protocol over a transport: arrays in, arrays out, `DecoderFailed` on error."""

    def __init__(self, transport: Callable[[Arrays, Sequence[str]], Arrays]) -> None:
        """`transport(inputs, wanted)` returns the wanted outputs."""
        self._transport = transport

    def _call(self, operation: str, **arrays: np.ndarray[Any, Any]) -> Arrays:
        return self._transport({"operation": _text(operation), **arrays}, RESULTS[operation])

    def describe(self) -> DecoderInfo:
        info = json.loads(self._call("describe")["info"][0])
        costs = tuple(PassCost(*cost) for cost in info.pop("costs"))
        return DecoderInfo(**info, costs=costs)

    def reset(self) -> None:
        self._call("reset")

    def open(self, sequence_id: int, prompt_ids: Sequence[int], sampling: SamplingParams) -> int:
        result = self._call(
            "open",
            sequence_ids=_ints([sequence_id], np.int64),
            token_ids=_ints(prompt_ids),
            sampling=_text(sampling_to_json(sampling)),
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
        )
        ids, logprobs = result["output_ids"].tolist(), result["output_logprobs"].tolist()
        sequences, end = [], 0
        for call in calls:
            begin, end = end, end + call.num_outputs + call.num_draft_steps
            sequences.append(Extended(tuple(ids[begin:end]), tuple(logprobs[begin:end])))
        assert end == len(ids) == len(logprobs), (end, len(ids), len(logprobs))
        return ExtendResult(sequences, float(result["compute_seconds"][0]))

    def close(self, sequences: Sequence[tuple[int, int]]) -> None:
        ids, lengths = zip(*sequences, strict=True)
        self._call("close", sequence_ids=_ints(ids, np.int64), starts=_ints(lengths))


def serve(decoder: Decoder, arrays: Arrays) -> Arrays:
    """Run one call on a local decoder: the other end of `RemoteDecoder`."""
    operation = bytes(arrays["operation"][0]).decode()
    if operation == "extend":
        return _serve_extend(decoder, arrays)
    if operation == "open":
        num_cached = decoder.open(
            int(arrays["sequence_ids"][0]),
            arrays["token_ids"].tolist(),
            sampling_from_json(arrays["sampling"][0]),
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
    token_ids = arrays["token_ids"].tolist()
    columns = ("sequence_ids", "starts", "num_tokens", "num_outputs", "num_draft_steps")
    calls, end = [], 0
    for sequence_id, start, num_tokens, num_outputs, num_draft_steps in zip(
        *(arrays[name].tolist() for name in columns), strict=True
    ):
        begin, end = end, end + num_tokens
        calls.append(Extend(sequence_id, start, token_ids[begin:end], num_outputs, num_draft_steps))
    assert end == len(token_ids), (end, len(token_ids))
    result = decoder.extend(calls)
    return {
        "output_ids": _ints([t for s in result.sequences for t in s.token_ids]),
        "output_logprobs": np.asarray(
            [p for s in result.sequences for p in s.logprobs], dtype=np.float32
        ),
        "compute_seconds": np.array([result.compute_seconds]),
    }
