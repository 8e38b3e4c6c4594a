"""Finds out at load time from how many rows on this runtime's logits are bitwise stable.

Matrix kernels are chosen by shape, and some shapes add up in another order. Padding every pass, and
what it has behind whole blocks of rows, to `min_rows` avoids the shapes that differ: then one by
one or in chunks, alone or in a batch, with or without branches of a draft tree, with a longer cache
or a used one, a token's logits are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from specdec.artifact import Artifact
from specdec.decoder import batch
from specdec.decoder.batch import ROW_BLOCK, Share
from specdec.decoder.runtimes import Logits, Runtime

CANDIDATES = (1, 2, 4, 8, 16)
_LENGTHS = (256, 384, 512)  # cache positions to compare
_SIZE = 24  # tokens of the text whose logits are compared
_LONG = ROW_BLOCK + 1  # rows of the longest chunk tried: wider ones repeat its kernels

Floats = np.ndarray[Any, np.dtype[np.float32]]


class Finding(NamedTuple):
    exactness: Literal["bitwise", "distribution"]
    min_rows: int


def probe(runtime: Runtime, artifact: Artifact) -> Finding:
    """Find the smallest row count that is stable; 1 and `distribution` if none is.

    Overwrites the cache. Raises `DecoderFailed` if a pass fails.
    """
    for min_rows in CANDIDATES:
        if all(_comparisons(_Passes(runtime, artifact, min_rows))):
            return Finding("bitwise", min_rows)
    return Finding("distribution", 1)


class _Passes:
    """Evaluates parts of one text in passes of many shapes."""

    def __init__(self, runtime: Runtime, artifact: Artifact, min_rows: int) -> None:
        self.num_slots = runtime.num_slots
        self._runtime = runtime
        self._min_rows = min_rows
        self._max_position = artifact.max_position_embeddings
        self._num_ids = min(artifact.num_tokens, artifact.vocab_size)
        self._random = np.random.default_rng(0)
        self.longest = min(_LONG, batch.most_rows(runtime.max_rows, min_rows) or _LONG)
        self._text = self._noise(self.longest)

    def _noise(self, size: int) -> list[int]:
        noise: list[int] = self._random.integers(0, self._num_ids, size).tolist()
        return noise

    def resize(self, length: int) -> None:
        self._runtime.resize(length, [0] * self.num_slots)

    def scribble(self, size: int) -> None:
        """Leave the keys and values of other tokens in the first slot."""
        self._forward([Share(0, 0, self._noise(size), 1)])

    def rows(
        self,
        start: int,
        end: int,
        *,
        outputs: int = -1,
        slot: int = 0,
        beside: int = 0,
        branches: int = 0,
    ) -> Floats:
        """Logits of the text's tokens [start, end), of the last `outputs` of them if given.

        With `beside`, the slots below `slot` evaluate as many tokens of something else; with
        `branches`, so many other tokens follow the text's last ones, one each.
        """
        outputs = end - start if outputs < 0 else outputs
        others = [Share(i, 7 * i + 3, self._noise(beside), beside) for i in range(slot)]
        share = Share(
            slot,
            start,
            self._text[start:end] + self._noise(branches),
            outputs + branches,
            range(end - branches, end),
        )
        shares = (others if beside else []) + [share]
        logits = self._forward(shares)
        before = sum(s.num_outputs for s in shares[:-1])
        found: Floats = logits[before : before + outputs].copy()
        return found

    def _forward(self, shares: list[Share]) -> Logits:
        return self._runtime.forward(
            batch.build(
                shares,
                [0] * self.num_slots,
                length=self._runtime.length,
                min_rows=self._min_rows,
                max_position=self._max_position,
            )
        )


def _comparisons(passes: _Passes) -> Iterator[bool]:
    """Whether each way to evaluate the text gives the first way's bits; most telling first."""
    passes.resize(_LENGTHS[0])
    whole = passes.rows(0, _SIZE)

    def same(*cuts: int, slot: int = 0, beside: int = 0) -> bool:
        """In one pass for each two neighbouring cuts."""
        return all(
            np.array_equal(passes.rows(a, b, slot=slot, beside=beside), whole[a:b])
            for a, b in pairwise(cuts)
        )

    yield same(21, 22, 23, 24)  # one by one
    yield same(4, 6, 9, 13, 18, 24)  # in chunks, whose keys and values the next ones read
    yield np.array_equal(passes.rows(16, 24, outputs=1), whole[-1:])
    yield np.array_equal(passes.rows(18, 21, branches=6), whole[18:21])
    yield same(21, 24)  # over what the branches left, behind a trunk evaluated with them
    for size in (2, 4):
        if size <= passes.num_slots:
            slot = size - 1
            yield same(0, 17, slot=slot, beside=1)
            yield same(17, 18, slot=slot, beside=1)
            yield same(18, 24, slot=slot, beside=7)
    passes.scribble(_SIZE + 8)
    yield same(0, 12, 13)
    for length in _LENGTHS[1:]:
        passes.resize(length)
        yield same(0, 16, 17, 19)
    # A long prompt at once, against halves and single tokens.
    longest = passes.longest
    tail = passes.rows(0, longest, outputs=2)
    passes.rows(0, longest // 2, outputs=0)
    passes.rows(longest // 2, longest - 2, outputs=0)
    singles = [passes.rows(i, i + 1) for i in range(longest - 2, longest)]
    yield np.array_equal(np.concatenate(singles), tail)
