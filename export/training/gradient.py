"""One batch's loss and gradient, computed by several threads of one core each.

Two threads with half a batch each meet once per batch. One product split over two cores meets
hundreds of times, and waits each time for whichever core another program has just taken: on a busy
machine that was five times slower. Halves are added in a fixed order, so results repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec.export.training import batches
from specdec.export.training.batches import Batch
from specdec.export.training.corpus import Corpus, Text
from specdec.export.training.head import Head, Inputs
from specdec.export.training.loss import draft_loss, teacher_probs
from specdec.export.training.target import Target
from specdec.export.training.vocabulary import DraftVocabulary, positions_in


class Gradient(NamedTuple):
    """Of one batch, by steps of a draft."""

    parameters: list[Tensor]  # in the order of the head's parameters
    loss: float  # decayed sum over steps of the mean cross-entropy, nats
    agreement: tuple[float, ...]  # share of rows whose likeliest id is the target's, by step
    num_tokens: int  # rows scored


class _Part(NamedTuple):
    """What one thread works on. J steps, Q scored rows, V' ids that its texts need."""

    batch: Batch
    row_ids: Any  # int64 [V']
    likeliest: Any  # int64 [Q] index in `row_ids`, -1: not there
    counted: Any  # bool [J, Q] what the loss is of


class GradientComputer:
    """Holds the threads; a call leaves torch with one of its own per operation."""

    def __init__(
        self,
        head: Head,
        target: Target,
        vocabulary: DraftVocabulary,
        corpus: Corpus,
        *,
        decay: float,
        half: bool,
        num_threads: int,
    ) -> None:
        """`target`: on the head's device. `half`: products in bfloat16."""
        self._head, self._vocabulary, self._decay = head, vocabulary, decay
        self._layers = corpus.feature_layers
        self._parameters = list(head.parameters())
        self._device = self._parameters[0].device
        self._half = half
        self._target = target.to(
            device=self._device, tables=torch.bfloat16 if half else torch.float32
        )
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads)

    def __call__(self, texts: Sequence[Text], *, num_steps: int) -> Gradient:
        """Of the mean loss over all texts' counted rows."""
        if self._device.type == "cpu":
            torch.set_num_threads(1)
        shares = [s for i in range(self._num_threads) if (s := texts[i :: self._num_threads])]
        parts = list(self._pool.map(partial(self._prepare, num_steps=num_steps), shares))
        counts = np.sum([p.counted.sum(-1) for p in parts], axis=0)  # [J]
        weights = self._decay ** np.arange(num_steps) / np.maximum(counts, 1)
        done = list(self._pool.map(partial(self._differentiate, weights=weights), parts))
        valid = np.sum([p.batch.valid.sum(-1) for p in parts], axis=0)
        same = zip(*(d[0] for d in done), strict=True)
        return Gradient(
            parameters=[torch.stack(halves).sum(0) for halves in same],
            loss=sum(d[1] for d in done),
            agreement=tuple(np.sum([d[2] for d in done], axis=0) / np.maximum(valid, 1)),
            num_tokens=sum(len(p.batch) for p in parts),
        )

    def _prepare(self, texts: Sequence[Text], *, num_steps: int) -> _Part:
        batch = batches.build(texts, num_steps=num_steps, ahead=self._head.config.ahead)
        row_ids = self._vocabulary.joined(np.unique(batch.ids_ahead))
        likeliest = positions_in(row_ids, self._vocabulary.vocab_size)[batch.likeliest]
        counted = batch.valid.copy()
        for step, row in enumerate(counted):  # step j at row r predicts what row r + j is about
            row[: len(row) - step] &= likeliest[step:] >= 0
        return _Part(batch, row_ids, likeliest, counted)

    def _differentiate(
        self, part: _Part, *, weights: Any
    ) -> tuple[Sequence[Tensor], float, list[float]]:
        """Gradients, loss, and the number of hits at each step."""
        inputs = Inputs.of(
            part.batch,
            config=self._head.config,
            corpus_layers=self._layers,
            hidden_size=self._target.hidden_size,
            device=self._device,
        )
        rows = self._target.head.index_select(0, self._tensor(part.row_ids))
        hidden = self._target.final_hidden(inputs.final_feature[inputs.teacher_rows])
        probs = teacher_probs(hidden, rows)
        likeliest, counted = self._tensor(part.likeliest), self._tensor(part.counted)
        loss = torch.zeros((), device=self._device)
        hits = []
        with self._autocast():
            for step, z in enumerate(self._head.unroll(inputs, self._target, len(weights))):
                kept = len(z) - step
                scores = draft_loss(
                    z[:kept].float(),
                    rows,
                    probs[step:],
                    likeliest[step:],
                    counted[step, :kept] * float(weights[step]),
                )
                loss = loss + scores.loss
                hits.append(float(scores.num_hits))
        return torch.autograd.grad(loss, self._parameters), float(loss.detach()), hits

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _autocast(self) -> Any:
        if not self._half:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)
