"""The loop: batches -> unrolled head -> loss -> AdamW, with checkpoints and a clean stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from specdec.export.training import batches
from specdec.export.training.checkpoint import Checkpoint, Position
from specdec.export.training.corpus import Corpus, Text
from specdec.export.training.gradient import GradientComputer
from specdec.export.training.head import Head, describe
from specdec.export.training.options import Settings
from specdec.export.training.schedule import Schedule
from specdec.export.training.target import Target
from specdec.export.training.vocabulary import DraftVocabulary

_REPORT_EVERY = 20  # steps that one line of the history is the mean of


class Step(NamedTuple):
    """One batch's outcome."""

    position: Position
    progress: float
    rate: float
    loss: float  # decayed sum over the steps of a draft, nats
    # [unrolled steps] draft's argmax = target's, given the text so far: not yet conditional
    agreement: tuple[float, ...]
    num_tokens: int  # answer tokens predicted at step 0


class Interrupted(Exception):
    """Ctrl-C; the checkpoint is written."""


class Trainer:
    """Trains one head on one corpus; `run` may be called once."""

    def __init__(
        self,
        head: Head,
        target: Target,
        vocabulary: DraftVocabulary,
        corpus: Corpus,
        *,
        schedule: Schedule,
        settings: Settings,
        directory: Path,
        device: torch.device | None = None,
    ) -> None:
        """`directory`: of the checkpoint, read by `resume` and written by `run`."""
        self.head = head.to(device or torch.device("cpu"))
        self.target, self.vocabulary = target, vocabulary
        self._schedule, self._settings, self._directory = schedule, settings, directory
        self._texts = [t for t in corpus.texts if len(t.likeliest) >= batches.MIN_ANSWER]
        self._gradient = GradientComputer(
            self.head,
            target,
            vocabulary,
            corpus,
            decay=settings.decay,
            half=settings.half,
            num_threads=settings.num_threads,
        )
        self._optimizer = torch.optim.AdamW(
            self.head.parameters(),
            lr=schedule.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.position = Position()
        self.history: list[dict[str, float]] = []

    def resume(self) -> bool:
        """Go on from the checkpoint, if there is one made with the same settings.

        Raises ValueError naming a setting that differs.
        """
        found = Checkpoint.read(self._directory)
        if found is None:
            return False
        mine = self._description()
        wrong = sorted(name for name in mine if found.settings.get(name) != mine[name])
        if wrong:
            raise ValueError(f"the checkpoint in {self._directory} has another {', '.join(wrong)}")
        self.head.load_state_dict(found.head)
        self._optimizer.load_state_dict(found.optimizer)
        self.position, self.history = found.position, found.history
        return True

    def save(self) -> None:
        Checkpoint(
            self.position,
            self._description(),
            self.head.state_dict(),
            self._optimizer.state_dict(),
            self.history,
        ).write(self._directory)

    def run(self, on_step: Callable[[Step], None] = lambda step: None) -> None:
        """Train to the end of the schedule. Raises `Interrupted` after Ctrl-C, saved."""
        began = time.monotonic() - self.position.seconds
        saved = time.monotonic()
        window: list[Step] = []
        with _stop_flag() as stopped, _threads_restored():
            for texts in self._batches():
                progress = self._schedule.progress(self.position.step, self.position.seconds)
                if progress >= 1 or stopped():
                    break
                step = self._step(texts, progress)
                self._advance(time.monotonic() - began)
                window.append(step)
                if len(window) == _REPORT_EVERY:
                    self.history.append(_mean(window))
                    window.clear()
                on_step(step)
                if time.monotonic() - saved > 60 * self._settings.checkpoint_minutes:
                    self.save()
                    saved = time.monotonic()
            self.save()
            if stopped():
                raise Interrupted

    def _batches(self) -> Iterator[list[Text]]:
        """From the present position on, without end."""
        while True:
            order = batches.order(
                self._texts,
                rows_per_batch=self._settings.rows_per_batch,
                seed=self._settings.seed,
                epoch=self.position.epoch,
            )
            for number in order[self.position.batch :]:
                yield [self._texts[i] for i in number]
            self.position.epoch, self.position.batch = self.position.epoch + 1, 0

    def _advance(self, seconds: float) -> None:
        self.position.step += 1
        self.position.batch += 1
        self.position.seconds = seconds

    def _step(self, texts: list[Text], progress: float) -> Step:
        rate = self._schedule.rate(progress)
        gradient = self._gradient(texts, num_steps=self._schedule.steps_unrolled(progress))
        for parameter, value in zip(self.head.parameters(), gradient.parameters, strict=True):
            parameter.grad = value
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), self._settings.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return Step(
            self.position, progress, rate, gradient.loss, gradient.agreement, gradient.num_tokens
        )

    def _description(self) -> dict[str, Any]:
        """What must not change between two parts of one training."""
        return {
            **describe(self.head.config, self.head.shape),
            "settings": asdict(self._settings),
            "schedule": asdict(self._schedule),
            "vocabulary": self.vocabulary.ids.tolist(),
            "num_texts": len(self._texts),
        }


def _mean(steps: list[Step]) -> dict[str, float]:
    """One line of the history; of the steps that unrolled as far as the last one."""
    last = steps[-1]
    alike = [s for s in steps if len(s.agreement) == len(last.agreement)]
    line = {
        "step": last.position.step,
        "seconds": last.position.seconds,
        "rate": last.rate,
        "loss": float(np.mean([s.loss for s in alike])),
        "tokens": sum(s.num_tokens for s in steps),
    }
    for number in range(len(last.agreement)):
        line[f"agreement_{number}"] = float(np.mean([s.agreement[number] for s in alike]))
    return line


@contextmanager
def _threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _stop_flag() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end the loop after the batch at hand instead of in its middle."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
