"""Chunks -> the output arrays of responses: one per delta, or one body for all prompts.

Text and finish_reason are [R], one string per prompt in the response: that is what clients of this
contract index (`as_numpy("text_output")[0].decode()`), though its config says [-1, -1]. Numbers
are [R, ...]; shorter rows are padded. A stream's response has R = 1 and says in `batch_index` which
prompt it belongs to; its text, ids, log-probabilities and counts are deltas.

Knows nothing of Triton.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from specdec.speculation.request_parser import ParsedRequest
from specdec.types import Chunk, FinishReason, SpeculationStats
from specdec.wire import Arrays

Response = Callable[[], Arrays | None]  # makes a response's tensors; None: nothing to send yet


class Progress(Protocol):
    """What a response reports of a sequence (the engine's `Sequence`). Times: one clock's ns."""

    stats: SpeculationStats
    num_reused: int  # prompt tokens that were not computed again
    arrival_ns: int
    scheduled_ns: int
    first_token_ns: int
    last_token_ns: int


@dataclass(slots=True)
class _Row:
    """One prompt's share of a response: a delta, or everything so far."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    text_lengths: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    progress: Progress | None = None  # once the prompt has ended

    def add(self, chunk: Chunk, progress: Progress) -> None:
        self.text += chunk.text
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.from_draft += chunk.from_draft
        self.text_lengths += chunk.text_lengths
        self.finish_reason = chunk.finish_reason
        if chunk.finish_reason is not None:
            self.progress = progress


class Responder:
    """Turns the chunks of one request into its responses."""

    def __init__(self, parsed: ParsedRequest) -> None:
        self._options = parsed.options
        self._num_input_tokens = [len(prompt.prompt_ids) for prompt in parsed.prompts]
        self._cum_logprobs = [0.0] * len(parsed.prompts)
        self._num_output_tokens = [0] * len(parsed.prompts)
        self._num_open = len(parsed.prompts)
        self._rows = [_Row(index) for index in range(len(parsed.prompts))]
        if parsed.options.prompt_texts:
            for row, text in zip(self._rows, parsed.options.prompt_texts, strict=True):
                row.text = text

    def add(self, index: int, progress: Progress, chunk: Chunk) -> Arrays | None:
        """Take prompt `index`'s next chunk; return the response to send now, if any.

        A stream sends every chunk that holds something; otherwise the one body comes with the last
        chunk of the last prompt. The chunk with a finish reason ends its prompt.
        """
        row = self._rows[index]
        assert row.finish_reason is None, f"prompt {index} had ended: {row.finish_reason}"
        if self._options.stream:
            row = self._rows[index] = _Row(index)
        row.add(chunk, progress)
        self._num_output_tokens[index] += len(chunk.token_ids)
        self._cum_logprobs[index] += math.fsum(chunk.logprobs)
        self._num_open -= chunk.finish_reason is not None
        if self._options.stream:
            is_empty = not (chunk.text or chunk.token_ids or chunk.finish_reason)
            return None if is_empty else self._render([row])
        return None if self._num_open else self._render(self._rows)

    def _render(self, rows: Sequence[_Row]) -> Arrays:
        options = self._options
        outputs = {
            "text_output": _strings([row.text for row in rows]),
            "finish_reason": _strings([row.finish_reason or "" for row in rows]),
            "batch_index": _column([row.index for row in rows], np.int32),
            "sequence_index": _column([0 for _ in rows], np.int32),
        }
        if options.return_log_probs:
            cum = [self._cum_logprobs[row.index] for row in rows]
            outputs["cum_log_probs"] = _column([_finite(value) for value in cum], np.float32)
            logprobs = [[_finite(value) for value in row.logprobs] for row in rows]
            outputs["output_log_probs"] = _matrix(logprobs, np.float32, 0.0)[:, None, :]
        if options.return_num_input_tokens:
            counts = [self._num_input_tokens[row.index] for row in rows]
            outputs["num_input_tokens"] = _column(counts, np.int32)
        if options.return_num_output_tokens:
            counts = [len(row.token_ids) for row in rows]
            outputs["num_output_tokens"] = _column(counts, np.int32)
        if options.return_output_ids:
            ids = [row.token_ids for row in rows]
            outputs["output_ids"] = _matrix(ids, np.int32, options.pad_id)
            outputs["from_draft"] = _matrix([row.from_draft for row in rows], np.bool_, False)
            outputs["text_lengths"] = _matrix([row.text_lengths for row in rows], np.int32, 0)
        ended = [row.progress for row in rows if row.progress is not None]
        if options.return_perf_metrics and len(ended) == len(rows):
            outputs |= self._render_metrics(rows, ended)
        return outputs

    def _render_metrics(self, rows: Sequence[_Row], ended: Sequence[Progress]) -> Arrays:
        """The fields TensorRT-LLM calls performance metrics; a "KV block" here is one token."""
        totals = [
            self._num_input_tokens[row.index] + self._num_output_tokens[row.index] for row in rows
        ]
        reused = [progress.num_reused for progress in ended]
        stats = [progress.stats for progress in ended]
        counts = {
            "kv_cache_alloc_total_blocks": totals,
            "kv_cache_reused_blocks": reused,
            "kv_cache_alloc_new_blocks": [a - b for a, b in zip(totals, reused, strict=True)],
            "total_draft_tokens": [s.num_draft_tokens for s in stats],
            "total_accepted_draft_tokens": [s.num_accepted_tokens for s in stats],
            "num_target_passes": [s.num_steps for s in stats],
        }
        rates = {
            "acceptance_rate": [s.acceptance_rate for s in stats],
            "predicted_gain": [s.predicted.value for s in stats],
            "measured_gain": [s.measured.value for s in stats],
        }
        times = {
            "arrival_time_ns": [progress.arrival_ns for progress in ended],
            "first_scheduled_time_ns": [progress.scheduled_ns for progress in ended],
            "first_token_time_ns": [progress.first_token_ns for progress in ended],
            "last_token_time_ns": [progress.last_token_ns for progress in ended],
        }
        return {
            "draft_reasons": _strings([json.dumps(s.reasons) for s in stats]),
            **{name: _column(values, np.float32) for name, values in rates.items()},
            **{name: _column(values, np.int32) for name, values in counts.items()},
            **{name: _column(values, np.int64) for name, values in times.items()},
        }


def _strings(values: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array([value.encode() for value in values], dtype=np.object_)


def _column(values: Sequence[float], dtype: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=dtype)[:, None]


def _matrix(rows: Sequence[Sequence[float]], dtype: Any, padding: float) -> np.ndarray[Any, Any]:
    """[R, longest row], shorter rows filled up on the right."""
    matrix = np.full((len(rows), max(map(len, rows))), padding, dtype=dtype)
    for line, row in zip(matrix, rows, strict=True):
        line[: len(row)] = row
    return matrix


def _finite(value: float) -> float:
    """JSON has neither NaN nor infinities; a token of probability 0 gets float32's lowest."""
    assert not math.isnan(value), "a log-probability is NaN"
    return max(value, float(np.finfo(np.float32).min))
