"""Drafts that need no features: trained as heads, run by anything that runs a Llama."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.progress import Progress
from transformers import AutoModelForCausalLM

from specdec.artifact import Artifact
from specdec.errors import InvalidRequest, UnsupportedModel
from specdec.export.exporter import export
from specdec.export.sources import HuggingFaceSource
from specdec.export.training import standalone
from specdec.export.training.corpus import Text
from specdec.export.training.evaluation import evaluate
from specdec.export.training.head import HeadConfig
from specdec.export.training.initialise import layers_of
from specdec.export.training.kinds import Kind, head_config
from specdec.export.training.options import Settings, Start
from specdec.export.training.schedule import Schedule
from specdec.export.training.trainer import Trainer


def trained(toy: Any, directory: Path, *, layer: int, num_blocks: int, num_steps: int) -> Trainer:
    head = toy.head(feature_layers=(layer,), num_blocks=num_blocks, reads_token=False)
    trainer = Trainer(
        head,
        toy.target,
        toy.vocabulary,
        toy.corpus,
        schedule=Schedule(num_steps=num_steps, learning_rate=3e-3, unrolled=((0.0, 1),)),
        settings=Settings(rows_per_batch=512, num_threads=1, half=False),
        directory=directory,
    )
    trainer.run()
    return trainer


@pytest.mark.parametrize(("layer", "num_blocks"), [(0, 2), (1, 1)], ids=["draft", "exit"])
def test_the_written_model_drafts_what_was_evaluated(
    toy: Any, tmp_path: Path, progress: Progress, layer: int, num_blocks: int
) -> None:
    trainer = trained(toy, tmp_path, layer=layer, num_blocks=num_blocks, num_steps=150)
    corpus = toy.corpus.select(lambda text: text in toy.corpus.texts[:4])
    found = evaluate(trainer.head, toy.target, toy.vocabulary, corpus, num_steps=3).total()
    standalone.write(tmp_path / "model", trainer.head, toy.source)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    offered = accepted = 0
    for text in corpus.texts:
        ids = torch.from_numpy(text.token_ids)
        with torch.inference_mode():
            proposed = model(ids[None]).logits[0].argmax(-1)
        rows = range(text.num_prompt_tokens, len(text) - 1)
        offered += len(rows)
        accepted += sum(int(proposed[i]) == int(ids[i + 1]) for i in rows)
    assert offered == found.offered[0]
    assert abs(accepted - int(found.accepted[0])) <= 2  # its weights are stored in float16
    assert found.rates[0] > 0.5  # and it has learnt something
    exported = export(
        HuggingFaceSource(tmp_path / "model"), tmp_path / "draft", progress=progress
    ).artifact
    assert exported.num_layers == layer + num_blocks
    assert exported.vocab_size == toy.target.head.shape[0]


def test_what_a_kind_reads_must_be_given_out(tiny: Path) -> None:
    artifact = Artifact.read(tiny / "artifact" / "1")
    assert head_config(Kind.eagle, artifact).feature_layers == artifact.feature_layers
    assert head_config(Kind.exit, artifact).feature_layers == (1,)
    assert head_config(Kind.draft, artifact, num_blocks=2).num_blocks == 2
    with pytest.raises(InvalidRequest, match="--features 3,2"):
        head_config(Kind.exit, artifact, layer=3)


def test_an_exit_behind_layers_that_no_llama_has_is_refused() -> None:
    standalone.refuse_layers("qwen3", 0)
    with pytest.raises(UnsupportedModel, match="qwen3"):
        standalone.refuse_layers("qwen3", 2)


def test_a_draft_with_all_layers_of_its_target_starts_as_the_target(toy: Any) -> None:
    head = toy.head(feature_layers=(0,), num_blocks=2, reads_token=False, start=Start.target)
    found = evaluate(head, toy.target, toy.vocabulary, toy.corpus, num_steps=3).total()
    assert found.rates[0] > 0.99  # features are float16, and greedy near-ties exist


def test_blocks_start_as_the_layers_that_follow_the_features(toy: Any) -> None:
    target = replace(toy.target, num_layers=9)

    def layers(num_blocks: int, feature_layers: tuple[int, ...], reads_token: bool) -> list[int]:
        config = HeadConfig(feature_layers, num_blocks, reads_token)
        return layers_of(config, target)

    assert layers(3, (0,), reads_token=False) == [0, 1, 2]
    assert layers(2, (4,), reads_token=False) == [4, 5]
    assert layers(2, (2, 5, 9), reads_token=True) == [7, 8]
    for num_blocks, feature_layers, reads_token in ((10, (0,), False), (10, (2, 9), True)):
        with pytest.raises(InvalidRequest, match="the target has 9 layers: use fewer --blocks"):
            layers(num_blocks, feature_layers, reads_token=reads_token)


@pytest.mark.parametrize(
    "kind",
    [{}, {"feature_layers": (0,), "reads_token": False}],
    ids=["a head", "a draft"],
)
@pytest.mark.parametrize("length", [1, 2])
def test_short_answers_are_trained_on_where_anything_can_be_drafted(
    toy: Any, tmp_path: Path, kind: dict[str, Any], length: int
) -> None:
    """Of the first answer token nothing is drafted: a text that has no other is passed over."""

    def cut(text: Text) -> Text:
        size = text.num_prompt_tokens + length
        likeliest, features = text.likeliest[:length], text.features[: size - 1]
        ids = text.token_ids[:size]
        return replace(text, token_ids=ids, likeliest=likeliest, features=features)

    corpus = replace(toy.corpus, texts=[*toy.corpus.texts[:4], cut(toy.corpus.texts[5])])
    trainer = Trainer(
        toy.head(**kind),
        toy.target,
        toy.vocabulary,
        corpus,
        schedule=Schedule(num_steps=2, learning_rate=1e-3, unrolled=((0.0, 1),)),
        settings=Settings(rows_per_batch=512, num_threads=1, half=False),
        directory=tmp_path,
    )
    trained: list[int] = []
    trainer.run(lambda step: trained.append(step.num_tokens))
    assert trained[0] == sum(len(t.likeliest) - 1 for t in corpus.texts)
    found = evaluate(trainer.head, toy.target, toy.vocabulary, corpus, num_steps=3).total()
    assert found.offered[0] == trained[0]
