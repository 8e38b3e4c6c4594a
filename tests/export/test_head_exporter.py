"""A head's artifact is whole or absent, fits its target, and is kept while nothing changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specdec.artifact import HEAD, Artifact, why_unfit
from specdec.errors import InvalidArtifact, SpecdecError, UnsupportedModel
from specdec.export import graph, head_graph
from specdec.export.head_exporter import export_head
from specdec.export.quantize import Precision
from support.heads import LAYERS, random_head, write_head
from support.tiny import export_tiny


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(trained folder, exported target)"""
    root = tmp_path_factory.mktemp("parts")
    target = export_tiny(root)
    head, _ = random_head(root / "model")
    return write_head(root / "trained", head), target


def run(parts, output: Path, progress, precision: Precision = Precision.fp32, **options):
    return export_head(*parts, output, precision=precision, progress=progress, **options)


def test_an_artifact_describes_the_head_and_shares_the_targets_tokens(parts, tmp_path, progress):
    made = run(parts, tmp_path / "eagle", progress)
    found, target = Artifact.read(made.directory), Artifact.read(parts[1])
    assert found == made.artifact
    assert (found.architecture, found.num_layers, found.feature_layers) == (HEAD, 1, LAYERS)
    assert found.vocabulary_sha256 == target.vocabulary_sha256
    assert (found.vocab_size, found.num_tokens) == (target.vocab_size, target.num_tokens)
    assert found.weights_sha256 != target.weights_sha256
    assert 'backend: "specdec"' in (tmp_path / "eagle/config.pbtxt").read_text()


def test_it_is_kept_until_something_changes(parts, tmp_path, progress):
    assert not run(parts, tmp_path, progress).reused
    assert run(parts, tmp_path, progress).reused
    assert not run(parts, tmp_path, progress, force=True).reused
    assert not run(parts, tmp_path, progress, Precision.int8).reused
    changed = tmp_path / "trained"
    head, _ = random_head(parts[0].parent / "model", seed=1)
    assert not run((write_head(changed, head), parts[1]), tmp_path, progress).reused


@pytest.mark.parametrize("part", [graph, head_graph], ids=["a decoder's", "a head's own"])
def test_another_graph_is_exported_again(parts, tmp_path, progress, monkeypatch, part):
    run(parts, tmp_path, progress)
    assert run(parts, tmp_path, progress).reused
    monkeypatch.setattr(part, "VERSION", 99)
    assert not run(parts, tmp_path, progress).reused


def test_what_is_kept_is_found_without_torch(parts, tmp_path):
    """Its import would be most of every later `make serve`'s set-up."""
    code = (
        "import sys; from specdec.client.cli import app\n"
        f"try: app('export head --model {parts[0]} --target {parts[1].parent} "
        f"--output {tmp_path}'.split())\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    for state, imported in (("exported", True), ("up to date", False)):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        line, torch = done.stdout.splitlines()
        assert (line.partition(":")[0], torch) == (state, str(imported))


def redescribed(target: Path, copy: Path, **changed: object) -> Path:
    """The same weights under another description."""
    shutil.copytree(target, copy)
    description = json.loads((copy / "specdec.json").read_text())
    (copy / "specdec.json").write_text(json.dumps({**description, **changed}))
    return copy


def test_the_same_weights_that_give_out_other_layers_now_are_refused(parts, tmp_path, progress):
    assert not run(parts, tmp_path, progress).reused
    target = redescribed(parts[1], tmp_path / "target", feature_layers=[1])
    with pytest.raises(InvalidArtifact, match=r"--features 0,1,2$"):
        run((parts[0], target), tmp_path, progress)


def test_a_target_of_another_name_gets_a_head_that_fits_it(parts, tmp_path, progress):
    """Else `serve` would leave out what `export head` calls up to date."""
    assert not run(parts, tmp_path, progress).reused
    target = redescribed(parts[1], tmp_path / "target", source="/moved")
    again = run((parts[0], target), tmp_path, progress)
    assert not again.reused
    assert why_unfit(again.artifact, Artifact.read(target)) == ""
    assert why_unfit(again.artifact, Artifact.read(parts[1])) != ""


def test_a_target_that_gives_out_other_layers_is_refused(parts, tmp_path, progress):
    head, _ = random_head(parts[0].parent / "model", feature_layers=(1, 2))
    trained = write_head(tmp_path / "trained", head)
    with pytest.raises(InvalidArtifact, match=r"--features 1,2$"):
        run((trained, parts[1]), tmp_path / "eagle", progress)


def test_a_head_of_another_target_is_refused(parts, tmp_path, progress):
    wide = export_tiny(tmp_path, hidden_size=128)
    with pytest.raises(UnsupportedModel, match="hidden size is 64, the target's 128"):
        run((parts[0], wide), tmp_path / "eagle", progress)
    narrow = export_tiny(tmp_path / "narrow", vocab_size=300)
    with pytest.raises(UnsupportedModel, match="the target has 300"):
        run((parts[0], narrow), tmp_path / "eagle", progress)
    assert not (tmp_path / "eagle/1").exists()


@pytest.mark.parametrize("broken", ["no folder", "no weights", "not JSON", "another kind"])
def test_what_is_no_head_is_refused(parts, tmp_path, progress, broken: str):
    trained = tmp_path / "trained"
    if broken != "no folder":
        kind = {"reads_token": False, "feature_layers": (2,)} if broken == "another kind" else {}
        write_head(trained, random_head(parts[0].parent / "model", **kind)[0])
    if broken == "no weights":
        (trained / "model.safetensors").unlink()
    if broken == "not JSON":
        (trained / "config.json").write_text("{")
    with pytest.raises(SpecdecError, match="trained"):
        run((trained, parts[1]), tmp_path / "eagle", progress)


def test_the_plan_of_a_target_has_no_tables(parts, tmp_path, progress):
    description = json.loads((parts[1] / "specdec.json").read_text())
    (tmp_path / "specdec.json").write_text(json.dumps(description))
    with pytest.raises(InvalidArtifact, match="for onnxruntime"):
        run((parts[0], tmp_path), tmp_path / "eagle", progress)
