"""A `Head` over a scripted next-token function; it believes no row whose features are not those of
the token before it."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from specdec.errors import DecoderFailed
from specdec.types import DecoderInfo, HeadCall, HeadDraft, HeadResult, SamplingParams
from support.fakes import FEATURE_SIZE, VOCAB_SIZE, NextToken, features_after, hash_text

LIKELY, UNLIKELY = 0.8, 0.1


class ScriptedHead:
    """Its trees: the scripted text, which it is rather sure of, with other tokens beside it.

    `caches` holds, per sequence, the text that its rows have shown, from the first row on.
    """

    def __init__(
        self,
        next_token: NextToken = hash_text,
        *,
        max_sequences: int = 16,
        max_sequence_length: int = 512,
        fail_at: Sequence[int] = (),
        num_held: int = 0,
    ) -> None:
        """`num_held`: rows of every text that another sequence left."""
        self.num_held = num_held
        self.salts: dict[int, int] = {}
        self.opened_first: list[int] = []
        self.next_token = next_token
        self.info = DecoderInfo(
            max_sequences,
            max_sequence_length,
            VOCAB_SIZE,
            "distribution",
            1,
            "scripted",
            feature_size=FEATURE_SIZE,
        )
        self.fail_at = set(fail_at)
        self.caches: dict[int, list[int]] = {}  # the whole text, of which ...
        self.firsts: dict[int, int] = {}  # ... the head has seen this position first
        self.calls: list[list[HeadCall]] = []
        self.closed: list[tuple[int, int]] = []

    def describe(self) -> DecoderInfo:
        return self.info

    def reset(self) -> None:
        self.caches.clear()
        self.firsts.clear()

    def open(
        self,
        sequence_id: int,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
        first: int = 0,
    ) -> int:
        if len(self.caches) == self.info.max_sequences:
            raise DecoderFailed("no free slot")
        assert sequence_id not in self.caches
        self.caches[sequence_id] = list(prompt_ids)
        self.salts[sequence_id] = cache_salt
        self.opened_first.append(first)
        held = min(self.num_held, max(len(prompt_ids) - 2, 0))
        if held:
            self.firsts[sequence_id] = max(first - held, 0)
        return held

    def draft(self, calls: Sequence[HeadCall]) -> HeadResult:
        number = len(self.calls)
        self.calls.append(list(calls))
        if number in self.fail_at:
            raise DecoderFailed("scripted failure")
        assert len({call.sequence_id for call in calls}) == len(calls)
        return HeadResult([self._draft(call) for call in calls], 0.0)

    def _draft(self, call: HeadCall) -> HeadDraft:
        text = self.caches[call.sequence_id]
        assert call.features.shape == (len(call.token_ids), FEATURE_SIZE), call
        if call.start == 0 and call.sequence_id not in self.firsts:
            self.firsts[call.sequence_id] = _position_of(call.features[0], text)
        position = self.firsts[call.sequence_id] + call.start
        for token_id, features in zip(call.token_ids, call.features, strict=True):
            assert np.array_equal(features, features_after(text[: position + 1])), position
            assert position + 1 <= len(text), (position, len(text))
            text[position + 1 :] = [token_id]
            position += 1
        rows = position - self.firsts[call.sequence_id]
        assert rows <= self.info.max_sequence_length
        return self._tree(call, [*text, *call.carry]) if call.max_tokens else HeadDraft()

    def _tree(self, call: HeadCall, text: list[int]) -> HeadDraft:
        nodes: list[tuple[float, int, int, float]] = []  # (value, token, parent, logprob)
        value, parent = 0.0, -1
        for _ in range(call.max_depth):
            token_id = self.next_token(text)
            for i in range(call.width):
                probability = UNLIKELY / i if i else LIKELY
                other = (token_id + i) % VOCAB_SIZE
                nodes.append((value + log(probability), other, parent, log(probability)))
            parent, value = len(nodes) - call.width, value + log(LIKELY)
            text.append(token_id)
        least = log(call.least) if call.least else -1e9
        order = sorted(range(len(nodes)), key=lambda i: -nodes[i][0])
        kept = [i for i in order if nodes[i][0] >= least][: call.max_tokens]
        places = {-1: -1, **{number: place for place, number in enumerate(kept)}}
        return HeadDraft(
            tuple(nodes[i][1] for i in kept),
            tuple(places[nodes[i][2]] for i in kept),
            tuple(nodes[i][3] for i in kept),
        )

    def close(self, sequences: Sequence[tuple[int, int]]) -> None:
        for sequence_id, rows in sequences:
            self.caches.pop(sequence_id, None)
            self.firsts.pop(sequence_id, None)
            self.closed.append((sequence_id, rows))


def _position_of(features: np.ndarray, text: Sequence[int]) -> int:
    found = [p for p in range(len(text)) if np.array_equal(features, features_after(text[: p + 1]))]
    assert found, "features of no position of the text"
    return found[0]


def show(drafter, views, first: int = 0) -> None:
    """What a drafter that needs features has not absorbed of these texts, from `first` on."""
    if not drafter.needs_features:
        return
    for view in views:
        state = drafter._head._states.get(view.sequence_id)
        start = state.end if state else first
        texts = [view.token_ids[: p + 1] for p in range(start, len(view.token_ids) - 1)]
        rows = [features_after(text) for text in texts]
        empty = np.zeros((0, FEATURE_SIZE), np.float16)
        drafter.absorb(view, start, np.stack(rows) if rows else empty)
