"""Decoders, drafters and sinks one can compute by hand; they record every call."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from specdec.drafters.base import Drafter, ProposeResult
from specdec.errors import DecoderFailed, SpecdecError
from specdec.types import (
    NOT_DRAWN,
    Chunk,
    DecoderInfo,
    Extend,
    Extended,
    ExtendResult,
    Proposal,
    SamplingParams,
)

VOCAB_SIZE = 50
FEATURE_SIZE = 6
NextToken = Callable[[Sequence[int]], int]


def hash_text(token_ids: Sequence[int], memory: int = 2) -> int:
    """A target whose next token is a fixed function of the last `memory` tokens; never 0."""
    return 1 + zlib.crc32(bytes(token_ids[-memory:])) % (VOCAB_SIZE - 1)


def features_after(token_ids: Sequence[int]) -> np.ndarray:
    """The scripted target's features of a text's last token: float16 [FEATURE_SIZE]."""
    seed = zlib.crc32(np.asarray(token_ids, np.int32).tobytes())
    return np.random.default_rng(seed).standard_normal(FEATURE_SIZE).astype(np.float16)


def reference_text(prompt_ids: Sequence[int], num_tokens: int, target: NextToken) -> list[int]:
    """Plain one-token-at-a-time decoding: what every drafter must reproduce."""
    token_ids = list(prompt_ids)
    for _ in range(num_tokens):
        token_ids.append(target(token_ids))
    return token_ids[len(prompt_ids) :]


class ScriptedDecoder:
    """The `Decoder` protocol over a scripted next-token function, with the cache kept as tokens.

    It refuses whatever a real decoder would refuse, so an engine that loses track of a cache
    length fails here. `fail_at` makes the extend call of that number (from 0) fail.
    """

    def __init__(
        self,
        next_token: NextToken = hash_text,
        *,
        max_sequences: int = 16,
        max_sequence_length: int = 512,
        fail_at: Sequence[int] = (),
        num_reused: int = 0,
    ) -> None:
        self.next_token = next_token
        self.info = DecoderInfo(
            max_sequences,
            max_sequence_length,
            VOCAB_SIZE,
            "bitwise",
            2,
            "scripted",
            feature_size=FEATURE_SIZE,
        )
        self.fail_at = set(fail_at)
        self.num_reused = num_reused
        self.caches: dict[int, list[int]] = {}
        self.wants_logprobs: dict[int, bool] = {}
        self.calls: list[list[Extend]] = []
        self.closed: list[tuple[int, int]] = []
        self.num_opened = 0
        self.salts: dict[int, int] = {}  # of every sequence ever opened

    def describe(self) -> DecoderInfo:
        return self.info

    def reset(self) -> None:
        self.caches.clear()

    def open(
        self,
        sequence_id: int,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
    ) -> int:
        if len(self.caches) == self.info.max_sequences:
            raise DecoderFailed("no free slot")
        assert sequence_id not in self.caches
        num_cached = min(self.num_reused, len(prompt_ids) - 1)
        self.caches[sequence_id] = list(prompt_ids[:num_cached])
        self.num_opened += 1
        self.salts[sequence_id] = cache_salt
        self.wants_logprobs[sequence_id] = sampling.logprobs
        return num_cached

    def extend(self, calls: Sequence[Extend]) -> ExtendResult:
        number = len(self.calls)
        self.calls.append(list(calls))
        if number in self.fail_at:
            raise DecoderFailed("scripted failure")
        assert len({call.sequence_id for call in calls}) == len(calls)
        return ExtendResult([self._extend(call) for call in calls], 0.0)

    def _extend(self, call: Extend) -> Extended:
        cache = self.caches[call.sequence_id]
        assert call.start <= len(cache), (call, len(cache))
        assert 0 <= call.num_outputs <= len(call.token_ids)
        del cache[call.start :]
        root = len(call.token_ids) - len(call.parents)
        cache += call.token_ids[:root]
        given = [cache[: call.start + i] for i in range(1, root + 1)]
        texts = [cache[: len(cache) - i] for i in reversed(range(call.num_outputs))]
        if call.parents:
            assert not call.num_draft_steps
            texts = self._tree(call, root)
            given += texts[1:]
        assert all(len(text) <= self.info.max_sequence_length for text in texts)
        sampled = [self.next_token(text) for text in texts]
        candidates = [self.candidates(text, call.num_candidates) for text in texts]
        for _ in range(call.num_draft_steps):
            if -sum(sampled[call.num_outputs - 1 :]) < call.least_logprob:
                break
            cache.append(sampled[-1])
            sampled.append(self.next_token(cache))
        assert len(cache) <= self.info.max_sequence_length
        if call.follows_draws:
            assert not call.num_draft_steps
            self._leave_out(call, sampled, candidates)
        return Extended(
            tuple(sampled),
            tuple(self._logprob(call, t) for t in sampled),
            tuple(candidates) if call.num_candidates else (),
            np.stack([features_after(text) for text in given]) if call.wants_features else None,
        )

    def _logprob(self, call: Extend, token_id: int) -> float:
        if token_id == NOT_DRAWN:
            return 0.0
        return -float(token_id) if self.wants_logprobs[call.sequence_id] else math.nan

    def _leave_out(
        self, call: Extend, sampled: list[int], candidates: list[tuple[int, ...]]
    ) -> None:
        """What no draw leads to."""
        drafts = call.token_ids[len(call.token_ids) - call.num_outputs + 1 :]
        for i, token_id in enumerate(drafts):
            parent = call.parents[i] if call.parents else i - 1
            if sampled[parent + 1] != token_id:
                sampled[i + 1] = NOT_DRAWN
                candidates[i + 1] = (NOT_DRAWN,) * call.num_candidates

    def _tree(self, call: Extend, root: int) -> list[list[int]]:
        """The text that each row sees, the root's first; the trunk stays in the cache."""
        cache = self.caches[call.sequence_id]
        assert len(call.parents) == call.num_outputs - 1 <= 64, call
        texts = [list(cache)]
        for i, parent in enumerate(call.parents):
            assert -1 <= parent < i, call
            texts.append([*texts[parent + 1], call.token_ids[root + i]])
        trunk = 0
        while trunk < len(call.parents) and call.parents[trunk] == trunk - 1:
            trunk += 1
        cache += call.token_ids[root : root + trunk]
        return texts

    def candidates(self, token_ids: Sequence[int], count: int) -> tuple[int, ...]:
        """The likeliest ids after a text: the next token, then those above it."""
        first = self.next_token(token_ids)
        return tuple((first + i) % VOCAB_SIZE for i in range(count))

    def close(self, sequences: Sequence[tuple[int, int]]) -> None:
        for sequence_id, length in sequences:
            cache = self.caches.pop(sequence_id, [])
            assert length <= len(cache), (sequence_id, length, len(cache))
            self.closed.append((sequence_id, length))

    @property
    def num_tokens_fed(self) -> int:
        return sum(len(c.token_ids) + c.num_draft_steps for call in self.calls for c in call)


class ScriptedDrafter(Drafter):
    """Proposes the target's own text, wrong at the places `is_wrong(position)` says."""

    name = "scripted"

    def __init__(
        self, next_token: NextToken = hash_text, is_wrong: Callable[[int], bool] = lambda _: False
    ) -> None:
        super().__init__()
        self.next_token = next_token
        self.is_wrong = is_wrong
        self.num_calls = 0
        self.open: set[int] = set()
        self.observed: list[tuple[int, int]] = []  # (sequence, accepted)

    def begin(self, view):
        self.open.add(view.sequence_id)

    def propose(self, views, limits, judge=None):
        self.num_calls += 1
        for view, limit in zip(views, limits, strict=True):
            assert limit >= 1
            assert view.sequence_id in self.open
        return ProposeResult([self._one(v, k) for v, k in zip(views, limits, strict=True)])

    def _one(self, view, limit):
        start = [*view.token_ids, *view.carry]
        token_ids = list(start)
        for _ in range(limit):
            wrong = self.is_wrong(len(token_ids))
            token_ids.append(0 if wrong else self.next_token(token_ids))
        return Proposal(tuple(token_ids[len(start) :]))

    def observe(self, view, verdict):
        self.observed.append((view.sequence_id, verdict.num_accepted))

    def end(self, sequence_ids):
        self.open.difference_update(sequence_ids)


class ScriptedTreeDrafter(ScriptedDrafter):
    """The same as a tree: where the chain would be wrong, the right token is a second branch."""

    name = "scripted_tree"
    num_candidates = 3

    def _one(self, view, limit):
        text = [*view.token_ids, *view.carry]
        token_ids, parents, parent = [], [], -1
        while len(token_ids) < limit:
            right = self.next_token(text)
            for token_id in [0, right] if self.is_wrong(len(text)) and right else [right]:
                token_ids.append(token_id)
                parents.append(parent)
            text.append(right)
            parent = len(token_ids) - 1
        return Proposal(tuple(token_ids), (), tuple(parents)).first(limit)


class RecordingSink:
    """Collects chunks; counts endings, of which there must be exactly one."""

    def __init__(self) -> None:
        self.cancelled = False
        self.closed = False
        self.chunks: list[Chunk] = []
        self.error: SpecdecError | None = None
        self.num_endings = 0

    def chunk(self, sequence, chunk: Chunk) -> None:
        assert not self.num_endings, "a chunk after the end"
        self.chunks.append(chunk)
        self.num_endings += chunk.finish_reason is not None

    def fail(self, error: SpecdecError) -> None:
        assert not self.num_endings, "an error after the end"
        self.error = error
        self.num_endings += 1

    @property
    def token_ids(self) -> list[int]:
        return [t for chunk in self.chunks for t in chunk.token_ids]

    @property
    def logprobs(self) -> list[float]:
        return [p for chunk in self.chunks for p in chunk.logprobs]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def finish_reason(self) -> str | None:
        return self.chunks[-1].finish_reason if self.chunks else None


class NumberTokenizer:
    """Token 7 reads "7 ": enough text for stop words to straddle tokens."""

    num_tokens = VOCAB_SIZE

    def text_decoder(self) -> NumberTokenizer:
        return self

    def push(self, token_id: int) -> str:
        return f"{token_id} "

    def flush(self) -> str:
        return ""
