"""Acceptance by position, as a server would see it.

A draft is kept while it repeats the text, so unrolling along the text tells exactly what would be
accepted; at each row the draft may propose the static ids and those the request had shown by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.export.training import batches
from specdec.export.training.corpus import Corpus, Text
from specdec.export.training.head import Head, Inputs
from specdec.export.training.target import Target
from specdec.export.training.vocabulary import DraftVocabulary, positions_in

Array = np.ndarray[Any, Any]

_CHUNK = 512  # rows whose logits exist at once


@dataclass(slots=True)
class Acceptance:
    """Of chains of J draft tokens; counts, so that categories can be added up."""

    offered: Array  # int64 [J] rows where the drafts before it were accepted, and one was possible
    accepted: Array  # int64 [J] of those, the ones where this one was too
    num_tokens: int = 0  # that the target passes of `num_passes` emitted
    num_passes: int = 0

    @classmethod
    def none(cls, num_steps: int) -> Acceptance:
        return cls(np.zeros(num_steps, np.int64), np.zeros(num_steps, np.int64))

    def __iadd__(self, other: Acceptance) -> Acceptance:
        self.offered = self.offered + other.offered
        self.accepted = self.accepted + other.accepted
        self.num_tokens += other.num_tokens
        self.num_passes += other.num_passes
        return self

    @property
    def rates(self) -> list[float]:
        """n-alpha: P(draft token n holds | those before it), by position."""
        return [a / o if o else float("nan") for a, o in self._pairs]

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.accepted.tolist(), self.offered.tolist(), strict=True))

    @property
    def acceptance_length(self) -> float:
        """Tokens per target pass when J tokens are drafted in every one."""
        return self.num_tokens / self.num_passes if self.num_passes else float("nan")


@dataclass(slots=True)
class Evaluation:
    """By source of the prompt, with and without the ids of the request."""

    num_steps: int
    with_request: dict[str, Acceptance] = field(default_factory=dict)
    static_only: dict[str, Acceptance] = field(default_factory=dict)

    def total(self, *, with_request: bool = True) -> Acceptance:
        result = Acceptance.none(self.num_steps)
        for part in (self.with_request if with_request else self.static_only).values():
            result += part
        return result


def evaluate(
    head: Head,
    target: Target,
    vocabulary: DraftVocabulary,
    corpus: Corpus,
    *,
    num_steps: int = 6,
    rows_per_batch: int = 2048,
) -> Evaluation:
    """Greedy chains along greedy answers; texts that were sampled are left out."""
    device = next(head.parameters()).device
    target = target.to(device=device)
    usable = [
        t for t in corpus.texts if not t.temperature and len(t.likeliest) >= batches.MIN_ANSWER
    ]
    parts: dict[bool, dict[str, Acceptance]] = {
        flag: defaultdict(lambda: Acceptance.none(num_steps)) for flag in (True, False)
    }
    with torch.inference_mode():
        for chosen in batches.order(usable, rows_per_batch=rows_per_batch, seed=0, epoch=0):
            texts = [usable[i] for i in chosen]
            batch = batches.build(texts, num_steps=num_steps, ahead=head.config.ahead)
            inputs = Inputs.of(
                batch,
                config=head.config,
                corpus_layers=corpus.feature_layers,
                hidden_size=target.hidden_size,
                device=device,
            )
            choices = _Choices.of(vocabulary, texts, batch, target)
            hits = _hits(head, target, choices, inputs, batch)
            for flag, table in hits.items():
                for b, text in enumerate(texts):
                    mine = batch.text_of_scored == b
                    parts[flag][text.source] += count(table[:, mine], batch.valid[:, mine])
    return Evaluation(num_steps, dict(parts[True]), dict(parts[False]))


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """What the drafts of one batch may propose."""

    row_ids: Array  # int64 [V'] the static ids, then all others of these texts
    num_static: int
    rows: Tensor  # [V', H] of the LM head
    unseen: Tensor  # bool [Q, V' - num_static] not in the text yet when the draft is made

    @classmethod
    def of(
        cls,
        vocabulary: DraftVocabulary,
        texts: Sequence[Text],
        batch: batches.Batch,
        target: Target,
    ) -> _Choices:
        row_ids = vocabulary.joined(np.unique(np.concatenate([t.token_ids for t in texts])))
        num_static = len(vocabulary)
        seen_from = first_seen(texts, row_ids[num_static:], vocabulary.vocab_size)
        # The newest token known when step 0 of the draft reads its row; what the draft adds to
        # the text is in its set already.
        newest = batch.positions[batch.scored] + batch.ahead
        unseen = seen_from[batch.text_of_scored] > newest[:, None]
        device = target.head.device
        rows = target.head[torch.from_numpy(row_ids).to(device)]
        return cls(row_ids, num_static, rows, torch.from_numpy(unseen).to(device))


def _hits(
    head: Head, target: Target, choices: _Choices, inputs: Inputs, batch: batches.Batch
) -> dict[bool, Array]:
    """bool [J, Q] whether the draft's token is the text's; with the request's ids, and without."""
    num_steps = len(batch.valid)
    num_unrolled = num_steps if head.config.reads_token else 1
    hits: dict[bool, list[Array]] = {True: [], False: []}
    for step, z in enumerate(head.unroll(inputs, target, num_unrolled)):
        for flag, proposed in _proposals(z, choices).items():
            hits[flag].append(proposed == batch.ids_ahead[step + 1])
    if num_unrolled == 1:  # it goes on with its own tokens: step j is the first one of a later row
        for rows in hits.values():
            rows += [np.append(rows[0][j:], np.zeros(j, np.bool_)) for j in range(1, num_steps)]
    return {flag: np.stack(tables) for flag, tables in hits.items()}


def _proposals(z: Tensor, choices: _Choices) -> dict[bool, Array]:
    """int64 [Q] the likeliest target id of each row, by what it may choose from."""
    num_static = choices.num_static
    best: dict[bool, list[Tensor]] = {True: [], False: []}
    for part, unseen in zip(z.split(_CHUNK), choices.unseen.split(_CHUNK), strict=True):
        logits = part @ choices.rows.T
        best[False].append(logits[:, :num_static].argmax(-1))
        logits[:, num_static:].masked_fill_(unseen, float("-inf"))
        best[True].append(logits.argmax(-1))
    return {flag: choices.row_ids[torch.cat(chosen).cpu().numpy()] for flag, chosen in best.items()}


def first_seen(texts: Sequence[Text], ids: Array, vocab_size: int) -> Array:
    """int64 [B, len(ids)] index in each text where an id first stands; beyond its end: never."""
    places = positions_in(ids, vocab_size)
    seen = np.full((len(texts), len(ids)), np.iinfo(np.int64).max)
    for b, text in enumerate(texts):
        column = places[text.token_ids]
        known = column >= 0
        np.minimum.at(seen[b], column[known], np.flatnonzero(known))
    return seen


def count(hits: Array, valid: Array) -> Acceptance:
    """Acceptance along one text.

    Args:
        hits: bool [J, n] whether draft token j of the draft made at row i is the text's.
        valid: bool [J, n] whether the text has such a token.
    """
    num_rows = hits.shape[1]
    held = np.cumprod(hits & valid, axis=0).astype(np.bool_)
    before = np.concatenate([np.ones((1, num_rows), np.bool_), held[:-1]])
    offered = before & valid
    lengths = held.sum(0)
    row = num_passes = 0
    while row < num_rows:  # as served: the next draft starts behind the last emitted token
        num_passes += 1
        row += int(lengths[row]) + 1
    return Acceptance(offered.sum(1), held.sum(1), num_rows, num_passes)
