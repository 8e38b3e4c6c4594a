"""The loop: it learns, it repeats, it stops and goes on as if it had not stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from specdec.export.training.evaluation import evaluate
from specdec.export.training.options import Settings
from specdec.export.training.schedule import Schedule
from specdec.export.training.trainer import Interrupted, Trainer

SETTINGS = Settings(rows_per_batch=512, num_threads=2, half=False)


def trainer(toy, directory: Path, *, num_steps: int = 12, unrolled=((0.0, 1), (0.4, 3)), **kwargs):
    schedule = Schedule(num_steps=num_steps, learning_rate=3e-3, unrolled=unrolled)
    return Trainer(
        toy.head(),
        toy.target,
        toy.vocabulary,
        toy.corpus,
        schedule=schedule,
        settings=SETTINGS,
        directory=directory,
        **kwargs,
    )


def weights(trained: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trained.head.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def test_overfits_32_texts(toy, checkpoint_dir: Path) -> None:
    """The classical bug, a feature beside the wrong token, stays near chance here."""
    trained = trainer(toy, checkpoint_dir, num_steps=400)
    trained.run()
    total = evaluate(trained.head, toy.target, toy.vocabulary, toy.corpus).total()
    assert total.rates[0] > 0.95
    assert total.rates[1] > 0.9  # fed with its own hidden state
    assert total.acceptance_length > 3.5


def test_same_seed_same_weights(toy, tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        trained = trainer(toy, tmp_path / name)
        trained.run()
        runs.append(weights(trained))
    assert same(*runs)


def test_resumed_training_gives_the_same_weights(toy, tmp_path: Path) -> None:
    whole = trainer(toy, tmp_path / "whole")
    whole.run()
    for stop_at in (1, 5, 8):  # within an epoch, at its end, after the third step unrolls
        directory = tmp_path / str(stop_at)
        first = trainer(toy, directory)

        def stop(step, stop_at=stop_at) -> None:
            if step.position.step == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted):
            first.run(stop)
        assert first.position.step == stop_at
        second = trainer(toy, directory)
        assert second.resume()
        second.run()
        assert same(weights(whole), weights(second))
        assert second.position.step == whole.position.step


def test_a_checkpoint_of_another_training_is_refused(toy, checkpoint_dir: Path) -> None:
    trainer(toy, checkpoint_dir).run()
    other = trainer(toy, checkpoint_dir, num_steps=13)
    with pytest.raises(ValueError, match="another schedule"):
        other.resume()


def test_nothing_to_resume(toy, checkpoint_dir: Path) -> None:
    assert not trainer(toy, checkpoint_dir).resume()
