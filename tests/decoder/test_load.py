"""The artifact says what it is; what does not fit is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from specdec.artifact import GRAPH, HEAD, STATIC_IDS, Artifact
from specdec.config import DecoderConfig
from specdec.decoder.decoder import CachedDecoder
from specdec.decoder.head import HeadDecoder
from specdec.decoder.load import load
from specdec.errors import InvalidArtifact
from support.heads import STATIC_IDS as IDS
from support.heads import export_tiny_head, random_head
from support.tiny import export_tiny

CONFIG = DecoderConfig(max_sequences=2, num_threads=1)


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Path]:
    """(target, head)"""
    target = export_tiny(tmp_path)
    return target, export_tiny_head(tmp_path, target, random_head(tmp_path / "model")[0])


def test_each_is_loaded_as_what_it_is(exported):
    target, head = exported
    assert isinstance(load(CONFIG, target), CachedDecoder)
    loaded = load(CONFIG, head)
    assert isinstance(loaded, HeadDecoder)
    assert loaded._runtime.static_ids.tolist() == list(IDS)
    elsewhere = replace(CONFIG, artifact_dir=str(head))
    assert isinstance(load(elsewhere, target), HeadDecoder)


def test_a_decoder_that_says_it_is_a_head(exported):
    target, _ = exported
    replace(Artifact.read(target), architecture=HEAD).write(target)
    with pytest.raises(InvalidArtifact, match="inputs are"):
        load(CONFIG, target)


def test_a_head_of_other_sizes(exported):
    _, head = exported
    replace(Artifact.read(head), feature_layers=(1, 2)).write(head)
    with pytest.raises(InvalidArtifact, match=r"192, 64\).* expected \(128, 64"):
        load(CONFIG, head)


def test_a_head_that_does_not_say_its_ids(exported):
    _, head = exported
    model = onnx.load(head / GRAPH, load_external_data=False)
    kept = [p for p in model.metadata_props if p.key != STATIC_IDS]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    (head / GRAPH).write_bytes(model.SerializeToString())
    with pytest.raises(InvalidArtifact, match="export again"):
        load(CONFIG, head)
