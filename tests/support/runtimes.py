"""A decoder runtime one can compute by hand: its keys are the tokens themselves.

The logits of a row are a function of the tokens its mask lets it see, in order, so whatever is
written to a wrong place, seen too early or lost shows in the next token.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from specdec.artifact import Artifact
from specdec.decoder.batch import Batch
from specdec.decoder.cache import Cache
from specdec.decoder.runtimes import Place
from specdec.errors import DecoderFailed

VOCAB_SIZE = 40
FEATURE_SIZE = 3
EMPTY = -1  # a position nothing was written to


def artifact(**changes: object) -> Artifact:
    fields: dict = {
        "architecture": "llama",
        "runtime": "onnxruntime",
        "precision": "fp32",
        "num_layers": 1,
        "num_key_value_heads": 1,
        "head_size": 1,
        "hidden_size": FEATURE_SIZE,
        "feature_layers": (1,),
        "vocab_size": VOCAB_SIZE,
        "num_tokens": VOCAB_SIZE - 2,
        "max_position_embeddings": 4096,
        "end_ids": (2,),
        "vocabulary_sha256": "",
        "weights_sha256": "",
        "source": "test",
    }
    return Artifact(**{**fields, **changes})


def logits_after(tokens: Sequence[int]) -> np.ndarray:
    """The scripted model: logits [VOCAB_SIZE] after these tokens."""
    seed = zlib.crc32(np.asarray(tokens, np.int32).tobytes())
    return (np.random.default_rng(seed).standard_normal(VOCAB_SIZE) * 2).astype(np.float32)


def features_after(tokens: Sequence[int]) -> np.ndarray:
    """Its features [FEATURE_SIZE] of the last of these tokens; the first is beyond float16."""
    tokens = np.asarray(tokens)
    return np.array([1e5, tokens[-1], zlib.crc32(tokens.astype(np.int32)) % 1999], np.float32)


class TokenRuntime:
    """See `Runtime`. `unstable(batch)` says which passes add up in another order."""

    def __init__(self, num_slots: int = 4, *, unstable=None, fail_at: Sequence[int] = ()) -> None:
        self.num_slots = num_slots
        self.length = 256
        self.max_length: int | None = None
        self.max_rows: int | None = None
        self.keys = np.full((num_slots, 256), EMPTY)
        self.batches: list[Batch] = []
        self.num_copied = 0
        self.num_with_features = 0  # passes
        self._unstable = unstable
        self.fail_at = set(fail_at)  # numbers of passes, from 0, that write and then fail

    def forward(self, batch: Batch) -> np.ndarray:
        number = len(self.batches)
        self.batches.append(batch)
        num_places = batch.row_index.shape[1]
        assert batch.row_index.shape == batch.position_ids.shape
        assert batch.attention_mask.shape == (
            *batch.row_index.shape[:1],
            1,
            num_places,
            self.length,
        )
        assert batch.attention_mask.any(axis=-1).all()
        for b, start in enumerate(batch.write_index):
            assert 0 <= start <= self.length - num_places, (start, num_places, self.length)
            self.keys[batch.first + b, start : start + num_places] = batch.input_ids[
                batch.row_index[b]
            ]
        if number in self.fail_at:
            raise DecoderFailed(f"pass {number} was told to fail")
        return np.stack([self._row(batch, row) for row in batch.output_rows])

    def forward_with_features(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        self.num_with_features += 1
        logits = self.forward(batch)
        rows = range(len(batch.input_ids))
        return logits, np.stack([features_after(self._seen(batch, row)) for row in rows])

    def _seen(self, batch: Batch, row: int) -> np.ndarray:
        b, place = divmod(int(batch.flat_index[row]), batch.row_index.shape[1])
        return self.keys[batch.first + b][batch.attention_mask[b, 0, place]]

    def _row(self, batch: Batch, row: int) -> np.ndarray:
        logits = logits_after(self._seen(batch, row))
        if self._unstable is not None and self._unstable(batch):
            logits = np.nextafter(logits, np.float32(9))
        return logits

    def draw(self, logits: np.ndarray, places: Sequence[Place], num_tokens: int) -> None:
        """The caller draws."""

    def likeliest(self, logits: np.ndarray, rows: slice, num_tokens: int, count: int) -> None:
        """The caller selects."""

    def resize(self, length: int, kept: Sequence[int]) -> None:
        old, self.keys = self.keys, np.full((self.num_slots, length), EMPTY)
        for slot, count in enumerate(kept):
            assert count <= length
            self.keys[slot, :count] = old[slot, :count]
        self.length = length

    def copy(self, source: int, target: int, length: int) -> None:
        assert source != target
        self.keys[target, :length] = self.keys[source, :length]
        self.num_copied += length

    def read(self, slot: int, length: int) -> list[np.ndarray]:
        assert length <= self.length
        return [self.keys[slot, :length].copy()]

    def write(self, slot: int, content: list[np.ndarray], length: int) -> None:
        self.keys[slot, :length] = content[0][:length]
        self.num_copied += length


def check_contents(cache: Cache, runtime: TokenRuntime) -> None:
    """What the slots are said to hold is what they hold, in the cache or aside."""
    cache.check_integrity()
    for slot in cache.slots:
        keys = runtime.keys[slot.index] if slot.aside is None else slot.aside[0]
        assert np.array_equal(keys[: slot.length], slot.tokens[: slot.length])
