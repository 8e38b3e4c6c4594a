"""The same graph without a server: what ONNX Runtime alone needs for the same tokens.

A plain greedy loop (one token per pass, argmax) is what K=0 through the server is compared with;
passes of 1..9 rows tell what verifying drafts costs, from which the ideal speed-up follows.
Uses the decoder's runtime and batch layout, but no cache logic, sampler or scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.artifact import Artifact
from specdec.client.bench.records import BareRun, PassCost, Prompt
from specdec.config import DecoderConfig
from specdec.decoder import batch
from specdec.decoder.batch import Share
from specdec.decoder.cache import bucket
from specdec.decoder.runtimes import Runtime, load_runtime

ROWS = (*range(1, 10), 13, 17)  # of the timed passes; K=16 has 17
MIN_ROWS = 2  # as the server pads: a pass of one row takes other kernels and rounds differently
_COST_ROUNDS = 3
_WARM_UP_TOKENS = 4


class BareModel:
    """One sequence over one slot. Token ids are those of the server, by the same template."""

    def __init__(
        self, runtime: Runtime, artifact: Artifact, tokenizer: Any, *, prefill_chunk: int
    ) -> None:
        """
        Args:
            tokenizer: with `encode` and `encode_chat`.
            prefill_chunk: prompt tokens per pass, as the idle server takes them.
        """
        self._runtime = runtime
        self._num_ids = min(artifact.num_tokens, artifact.vocab_size)
        self._max_position = artifact.max_position_embeddings
        self._end_ids = frozenset(artifact.end_ids)
        self._tokenizer = tokenizer
        self._prefill_chunk = prefill_chunk

    def encode(self, prompt: Prompt, *, raw: bool) -> tuple[int, ...]:
        if raw:
            return tuple(self._tokenizer.encode(prompt.text))
        return tuple(self._tokenizer.encode_chat([{"role": "user", "content": prompt.text}]))

    def warm_up(self) -> None:
        self.generate(Prompt("", "", ""), range(1, 20), _WARM_UP_TOKENS)

    def generate(
        self, prompt: Prompt, prompt_ids: Sequence[int], max_tokens: int, *, repeat: int = 0
    ) -> BareRun:
        """Prefill in chunks, then one token per pass to `max_tokens` or an end id."""
        self._runtime.resize(bucket(0), [0])
        began = time.perf_counter()
        for start in range(0, len(prompt_ids), self._prefill_chunk):
            token = self._pass(prompt_ids[start : start + self._prefill_chunk], start)
        first = time.perf_counter()
        token_ids = [token]
        while len(token_ids) < max_tokens and token not in self._end_ids:
            token = self._pass([token], len(prompt_ids) + len(token_ids) - 1)
            token_ids.append(token)
        return BareRun(
            prompt=prompt.name,
            category=prompt.category,
            repeat=repeat,
            token_ids=tuple(token_ids),
            num_input_tokens=len(prompt_ids),
            prefill_seconds=first - began,
            decode_seconds=time.perf_counter() - first,
            cache_length=self._runtime.length,
        )

    def pass_costs(self, position: int, rows: Sequence[int] = ROWS) -> Iterator[PassCost]:
        """Time passes of so many rows behind `position` cached tokens; rounds over all counts.

        The cache keeps its length: near its end the passes write over the last positions.
        """
        position = min(position, self._runtime.length - max(rows))
        for _ in range(_COST_ROUNDS):
            for num_rows in rows:
                began = time.perf_counter()
                self._pass([1] * num_rows, position, num_outputs=num_rows)
                yield PassCost(self._runtime.length, num_rows, time.perf_counter() - began)

    def _pass(self, token_ids: Sequence[int], start: int, *, num_outputs: int = 1) -> int:
        """The most likely token after the last of `token_ids`."""
        length = bucket(start + max(len(token_ids), MIN_ROWS))  # as the server's
        if length > self._runtime.length:
            self._runtime.resize(length, [start])
        arrays = batch.build(
            [Share(0, start, token_ids, num_outputs)],
            [start],
            length=self._runtime.length,
            min_rows=MIN_ROWS,
            max_position=self._max_position,
        )
        logits = self._runtime.forward(arrays)
        return int(np.argmax(logits[num_outputs - 1, : self._num_ids]))


def load_bare(directory: Path, *, prefill_chunk: int) -> BareModel:
    """Load an exported model. Raises `InvalidArtifact` with the path and the reason."""
    from specdec.speculation.tokenization import TextTokenizer

    artifact = Artifact.read(directory)
    tokenizer = TextTokenizer.from_directory(directory)
    runtime = load_runtime(artifact, directory, num_slots=1, num_threads=DecoderConfig().threads)
    model = BareModel(runtime, artifact, tokenizer, prefill_chunk=prefill_chunk)
    model.warm_up()
    return model
