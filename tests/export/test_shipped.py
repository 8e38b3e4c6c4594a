"""Which of the shipped heads belongs to a target, and which heads are the user's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.artifact import HEAD, Artifact, head_source
from specdec.export import shipped
from specdec.export.shipped import label_of, own_head, shipped_for
from support.trivial_repository import write_artifact

RECORD = {"source": "a wheel", "weights_sha256": "fp32", "vocabulary_sha256": "tokens"}


@pytest.fixture
def target(tmp_path: Path) -> Artifact:
    found = Artifact.read(write_artifact(tmp_path / "target") / "1")
    return replace(found, **RECORD)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped one, among others."""
    weights = tmp_path / "weights"
    monkeypatch.setattr(shipped, "WEIGHTS", weights)
    for name, record in (
        ("a-model", {"target": RECORD | {"source": "x", "weights_sha256": "x"}}),
        ("model", {"target": RECORD}),
        ("old-model", {}),
    ):
        (weights / name / HEAD).mkdir(parents=True)
        (weights / name / HEAD / "config.json").write_text(json.dumps(record))
    return weights / "model" / HEAD


@pytest.mark.parametrize(
    "target_is",
    [{}, {"weights_sha256": "int8", "precision": "int8"}, {"source": "/a/file.gguf"}],
)
def test_the_head_of_a_target_is_found(target, head, target_is):
    assert shipped_for(replace(target, **target_is)) == head


@pytest.mark.parametrize(
    "target_is",
    [{"source": "/fine-tuned", "weights_sha256": "y"}, {"vocabulary_sha256": "other tokens"}],
)
@pytest.mark.usefixtures("head")
def test_another_target_has_none(target, target_is):
    assert shipped_for(replace(target, **target_is)) is None


def test_where_nothing_is_shipped(target, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "WEIGHTS", tmp_path / "weights")
    assert shipped_for(target) is None


def test_what_is_shipped_is_called_by_its_model_too(head, tmp_path, monkeypatch):
    assert label_of(head) == "model/eagle"
    monkeypatch.chdir(tmp_path)
    assert label_of(Path("weights/model/eagle")) == "model/eagle"
    assert label_of(Path("trained/eagle")) == "eagle"


def test_a_head_of_ones_own_is_told_from_the_shipped_one(target, head, tmp_path):
    def own(source: str, **changed) -> bool:
        folder = write_artifact(tmp_path / "eagle", source=source, **fits | changed) / "1"
        return own_head(folder, target, head) is not None

    fits = {"architecture": HEAD, "vocabulary_sha256": "tokens"}
    assert own_head(tmp_path / "nothing", target, head) is None
    assert own(head_source("eagle", target))
    assert not own(head_source("model/eagle", target))
    assert not own("eagle for another target")
    assert not own(head_source("eagle", target), feature_layers=(1,))
