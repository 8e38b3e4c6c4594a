"""The weights that are shipped: whole, small enough, and what their card says."""

import json
from pathlib import Path

import pytest
from rich.progress import Progress

from specdec.artifact import Artifact
from specdec.export.head_source import TrainedHead
from specdec.export.shipped import WEIGHTS, shipped_for
from specdec.export.sources import resolve
from support.trivial_repository import write_artifact

ROOT = Path(__file__).parents[1] / "weights"
SHIPPED = sorted(path.parent for path in ROOT.glob("*/*/config.json"))  # .../eagle and .../draft
MAX_BYTES = 40_000_000  # of all of them together


def test_they_are_found_and_small():
    assert {path.name for path in SHIPPED} == {"eagle", "draft"}
    assert sum(p.stat().st_size for p in ROOT.rglob("*") if p.is_file()) <= MAX_BYTES


@pytest.mark.parametrize("directory", SHIPPED, ids=lambda path: "/".join(path.parts[-2:]))
def test_it_can_be_read_and_has_the_acceptance_of_its_card(directory):
    trained = TrainedHead.read(directory)
    assert trained.reads_token == (directory.name == "eagle")
    found = json.loads((directory / "evaluation.json").read_text())
    vocabulary = "with_request" if trained.reads_token else "static"  # what its graph scores
    overall = found[f"{vocabulary}_vocabulary"]["overall"]
    card = (directory / "README.md").read_text()
    row = next(line for line in card.splitlines() if line.startswith("| all |"))
    told = [float(cell) for cell in row.split("|")[2:7]]
    assert told == pytest.approx(
        [*overall["acceptance"][:4], overall["tokens_per_pass"]], abs=0.006
    )


@pytest.mark.parametrize("directory", SHIPPED, ids=lambda path: "/".join(path.parts[-2:]))
def test_it_is_found_by_its_target(directory, tmp_path):
    assert ROOT == WEIGHTS
    recorded = json.loads((directory / "config.json").read_text())["target"]
    target = Artifact.read(write_artifact(tmp_path / "target", **recorded) / "1")
    assert shipped_for(target, directory.name) == directory


def test_the_default_model_has_both():
    with Progress(disable=True) as progress:
        label = resolve("smollm2", progress).label
    recorded = [json.loads((path / "config.json").read_text())["target"] for path in SHIPPED]
    assert [target["source"] for target in recorded].count(label) == 2
