"""A trained stand-alone draft becomes a decoder that computes what was trained, for some ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.artifact import Artifact
from specdec.errors import SpecdecError
from specdec.export import draft_graph, graph
from specdec.export.check import PROMPTS, encode, exported_logits, reference_logits
from specdec.export.draft_exporter import export_draft
from specdec.export.draft_graph import NEVER
from specdec.export.quantize import Precision
from specdec.export.sources import HuggingFaceSource
from specdec.export.training import standalone
from support.heads import DRAFT, STATIC_IDS, random_head, write_head
from support.tiny import export_tiny


class Parts(NamedTuple):
    trained: Path
    target: Path  # exported
    model: Path  # the same draft, as transformers reads it


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    root = tmp_path_factory.mktemp("parts")
    target = export_tiny(root)
    head, _ = random_head(root / "model", **DRAFT)
    standalone.write(root / "whole", head, HuggingFaceSource(root / "model"))
    return Parts(write_head(root / "trained", head), target, root / "whole")


def run(parts: Parts, output: Path, progress, precision=Precision.fp32, **options):
    return export_draft(
        parts.trained, parts.target, output, precision=precision, progress=progress, **options
    )


def test_an_artifact_is_a_decoders_with_the_targets_tokens(parts, tmp_path, progress):
    made = run(parts, tmp_path / "draft", progress)
    found, target = Artifact.read(made.directory), Artifact.read(parts.target)
    assert found == made.artifact
    assert (found.architecture, found.num_layers, found.feature_layers) == ("llama", 2, ())
    assert found.vocabulary_sha256 == target.vocabulary_sha256
    assert (found.vocab_size, found.num_tokens) == (target.vocab_size, target.num_tokens)
    assert (found.end_ids, found.source) == (target.end_ids, f"trained for {target.source}")
    names = {path.name for path in made.directory.iterdir()}
    assert names == {path.name for path in parts.target.iterdir()}
    assert 'backend: "specdec"' in (tmp_path / "draft/config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 0.02), ("int8", 1.0), ("w8a8", 1.0), ("int4", None)]
)
def test_logits_are_those_of_the_model_for_its_ids(parts, tmp_path, progress, precision, tolerance):
    """Its own are stored whole, the other's in float16: hence the first tolerance."""
    made = run(parts, tmp_path / "draft", progress, Precision(precision))
    model = AutoModelForCausalLM.from_pretrained(parts.model, dtype=torch.float32).eval()
    prompts = encode(parts.target)
    assert len(prompts) == len(PROMPTS)
    expected = np.concatenate([reference_logits(model, ids) for ids in prompts])
    found = np.concatenate(exported_logits(made.directory, prompts))
    others = np.setdiff1d(np.arange(found.shape[1]), STATIC_IDS)
    assert (found[:, others] == NEVER).all()
    ids = list(STATIC_IDS)
    assert np.corrcoef(found[:, ids].ravel(), expected[:, ids].ravel())[0, 1] > 0.9
    if tolerance is not None:
        np.testing.assert_allclose(found[:, ids], expected[:, ids], atol=tolerance)


def test_it_is_kept_until_something_changes(parts, tmp_path, progress, monkeypatch):
    assert not run(parts, tmp_path, progress).reused
    assert run(parts, tmp_path, progress).reused
    assert not run(parts, tmp_path, progress, force=True).reused
    assert not run(parts, tmp_path, progress, Precision.int8).reused
    (tmp_path / "1/tokenizer.json").unlink()
    assert not run(parts, tmp_path, progress, Precision.int8).reused
    changed = shutil.copytree(parts.target, tmp_path / "target")
    description = json.loads((changed / "specdec.json").read_text())
    for name, value in (("source", "/moved"), ("end_ids", [1]), ("vocabulary_sha256", "x")):
        (changed / "specdec.json").write_text(json.dumps({**description, name: value}))
        again = run(parts._replace(target=changed), tmp_path, progress, Precision.int8)
        assert not again.reused, name
    other = export_tiny(tmp_path / "other", seed=5)
    assert not run(parts._replace(target=other), tmp_path, progress).reused
    assert not run(parts, tmp_path, progress).reused
    for module in (graph, draft_graph):
        monkeypatch.setattr(module, "VERSION", 99)
        assert not run(parts, tmp_path, progress).reused


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"reads_token": True, "feature_layers": (0, 1, 2)}, "`specdec export head` takes it"),
        ({"feature_layers": (1,)}, "behind 1 layers of its target"),
    ],
    ids=["a head", "an exit"],
)
def test_what_is_no_draft_is_refused(parts, tmp_path, progress, kind, message):
    head, _ = random_head(parts.target.parents[1] / "model", **{**DRAFT, **kind})
    trained = write_head(tmp_path / "trained", head)
    with pytest.raises(SpecdecError, match=message):
        run(parts._replace(trained=trained), tmp_path / "draft", progress)
    assert not (tmp_path / "draft/1").exists()
