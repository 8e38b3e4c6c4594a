"""The weights that are shipped: whole, small enough, and what their card says."""

import json
from pathlib import Path

import pytest

from specdec.export.head_source import TrainedHead

ROOT = Path(__file__).parents[1] / "weights"
HEADS = sorted(path.parent for path in ROOT.glob("*/eagle/config.json"))
MAX_BYTES = 40_000_000  # of all of them together


def test_they_are_found_and_small():
    assert HEADS
    assert sum(p.stat().st_size for p in ROOT.rglob("*") if p.is_file()) <= MAX_BYTES


@pytest.mark.parametrize("directory", HEADS, ids=lambda path: path.parent.name)
def test_a_head_can_be_read_and_has_the_acceptance_of_its_card(directory):
    head = TrainedHead.read(directory)
    assert head.weights["fc.weight"].shape == (head.shape.hidden_size, head.feature_size)
    found = json.loads((directory / "evaluation.json").read_text())
    overall = found["with_request_vocabulary"]["overall"]
    card = (directory / "README.md").read_text()
    row = next(line for line in card.splitlines() if line.startswith("| all |"))
    told = [float(cell) for cell in row.split("|")[2:7]]
    assert told == pytest.approx(
        [*overall["acceptance"][:4], overall["tokens_per_pass"]], abs=0.006
    )
