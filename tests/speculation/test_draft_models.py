"""Which drafters a server offers by the models it has, and what does not fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specdec.artifact import HEAD
from specdec.config import SpeculativeConfig
from specdec.errors import InvalidArtifact, InvalidConfig
from specdec.speculation.draft_models import (
    check_models,
    head_dir,
    offered_drafters,
    target_dir,
    with_models_inside,
)
from support.runtimes import artifact

TARGET = artifact(hidden_size=8, feature_layers=(1, 2), vocabulary_sha256="tokens")
FITTING = replace(TARGET, architecture=HEAD, num_layers=1)
CONFIG = SpeculativeConfig(head_model_name="eagle")


def offered(**config):
    return set(offered_drafters(SpeculativeConfig(**config)))


def test_drafters_that_call_a_model_need_one():
    free = offered()
    assert {"none", "ngram", "auto"} <= free
    assert offered(draft_model_name="draft") - free == {"draft_model"}
    assert offered(head_model_name="eagle") - free == {"eagle"}
    assert offered(draft_model_name="draft", head_model_name="eagle") - free == {
        "draft_model",
        "eagle",
    }


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        ("eagle", "needs parameter head_model_name"),
        ("draft_model", "needs parameter draft_model_name"),
        ("oracle", "available are none, auto"),
    ],
)
def test_a_default_that_cannot_be_stops_loading(drafter, message):
    with pytest.raises(InvalidConfig, match=message):
        offered(drafter=drafter)


def test_where_a_head_lies(tmp_path):
    """Inside the version folder of whatever `speculative` is called here, if there is one."""
    version, own = tmp_path / "chat-8b/1", tmp_path / "eagle/1"

    def found(config):
        return head_dir(with_models_inside(config, version), tmp_path)

    version.mkdir(parents=True)
    assert found(CONFIG) == own
    (version / "eagle").mkdir()
    assert found(CONFIG) == version / "eagle"
    assert found(replace(CONFIG, head_in_process=False)) == own
    assert found(replace(CONFIG, head_artifact_dir="/a/head")) == Path("/a/head")
    assert with_models_inside(SpeculativeConfig(), version) == SpeculativeConfig()


def test_where_a_target_lies(tmp_path):
    version, own = tmp_path / "chat-8b/1", tmp_path / "target/1"

    def found(**config):
        return target_dir(with_models_inside(SpeculativeConfig(**config), version), tmp_path)

    version.mkdir(parents=True)
    assert found(target_in_process=True) == own
    (version / "target").mkdir()
    assert found(target_in_process=True) == version / "target"
    assert found() == own
    elsewhere = found(target_in_process=True, target_artifact_dir="/a/target")
    assert elsewhere == Path("/a/target")


def check(tmp_path: Path, head, config=CONFIG):
    for name, described in (("target", TARGET), ("eagle", head)):
        directory = tmp_path / name / "1"
        directory.mkdir(parents=True)
        if described is not None:
            described.write(directory)
    check_models(config, tmp_path / "target/1", tmp_path)


def test_a_head_made_for_the_target_fits(tmp_path):
    check(tmp_path, FITTING)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (None, "no exported model in .*eagle/1"),
        (TARGET, "is a llama: expected a head"),
        (replace(FITTING, vocabulary_sha256="others"), "another target's tokens"),
        (replace(FITTING, feature_layers=(0, 2)), "layers 0,2; the target gives out .* layers 1,2"),
        (replace(FITTING, hidden_size=16), "16 numbers of layers 1,2; the target gives out 8"),
    ],
    ids=["none", "a decoder", "tokens", "layers", "width"],
)  # fmt: skip
def test_what_does_not_fit_stops_loading(tmp_path, head, message):
    with pytest.raises(InvalidArtifact, match=message):
        check(tmp_path, head)


def test_a_head_may_be_elsewhere(tmp_path):
    FITTING.write(tmp_path)
    config = SpeculativeConfig(head_model_name="eagle", head_artifact_dir=str(tmp_path))
    check(tmp_path / "repository", None, config)
