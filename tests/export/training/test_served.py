"""A trained head, exported and served through the whole stack, is as good as training says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from specdec.export.exporter import export
from specdec.export.features import Features
from specdec.export.head_exporter import export_head
from specdec.export.training.result import write_head
from specdec.export.training.schedule import Schedule
from specdec.export.training.trainer import Settings, Trainer
from support.service import InProcessServer

NUM_TEXTS = 12


@pytest.fixture(scope="module")
def models(toy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The toy target, and a head that knows its texts by heart."""
    root = tmp_path_factory.mktemp("served")
    trainer = Trainer(
        toy.head(),
        toy.target,
        toy.vocabulary,
        toy.corpus,
        schedule=Schedule(num_steps=300, learning_rate=5e-3, unrolled=((0.0, 1), (0.5, 3))),
        settings=Settings(rows_per_batch=512, num_threads=2, half=False),
        directory=root / "training",
    )
    trainer.run()
    write_head(root / "trained", trainer.head, toy.vocabulary, {})
    with Progress(disable=True) as progress:
        features = Features(toy.corpus.feature_layers)
        target = export(toy.source, root / "target", progress=progress, features=features)
        head = export_head(root / "trained", target.directory, root / "eagle", progress=progress)
    return {"target": target.directory, "eagle": head.directory}


def serve(models, tmp_path: Path, texts, **inputs) -> list[tuple[list[int], list[int]]]:
    """Per text: the ids, and the sizes of the blocks they came in."""
    server = InProcessServer(tmp_path, models=models)
    clients = [
        server.submit(
            input_ids=text.token_ids[: text.num_prompt_tokens].tolist(),
            max_tokens=len(text.likeliest),
            **inputs,
        )
        for text in texts
    ]
    answers = []
    for client in clients:
        client.wait()
        assert client.error is None
        blocks = [len(np.ravel(row)) for row in client.rows("from_draft")]
        answers.append((client.ids(), blocks))
    server.stop()
    return answers


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8])
def test_drafts_are_accepted_and_change_nothing(
    toy, models, tmp_path: Path, num_draft_tokens: int
) -> None:
    """Were a feature beside the wrong token, or a position off by one, few drafts would hold."""
    texts = toy.corpus.texts[:NUM_TEXTS]
    drafted = serve(models, tmp_path, texts, drafter="eagle", num_draft_tokens=num_draft_tokens)
    assert [ids for ids, _ in drafted] == [text.likeliest.tolist() for text in texts]
    # The prompt's pass gives one token. The head was unrolled for three steps in training.
    num_passes = sum(len(blocks) - 1 for _, blocks in drafted)
    num_tokens = sum(sum(blocks[1:]) for _, blocks in drafted)
    wanted = {1: 1.85, 3: 3.2, 8: 3.3}[num_draft_tokens]
    assert num_tokens / num_passes > wanted
