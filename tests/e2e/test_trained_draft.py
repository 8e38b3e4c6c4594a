"""A draft that was trained, exported with its target's tables, is served as any draft model is."""

import pytest
import torch
from rich.progress import Progress

from specdec.export.draft_exporter import export_draft
from specdec.export.sources import HuggingFaceSource
from specdec.export.training.initialise import initialise
from specdec.export.training.options import Start
from support.heads import DRAFT, random_head, write_head
from support.serving import serve

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def served_draft(tiny, run_dir, tmp_path_factory):
    """It has all layers of its target, and all ids: it knows what the target will say."""
    root, target = tmp_path_factory.mktemp("draft"), tiny("fp32")
    model = target.parent / "model"
    head, of_target = random_head(model, **DRAFT)
    weights = HuggingFaceSource(model).weights
    initialise(head, of_target, weights, torch.empty(0), Start.target, seed=0)
    trained = write_head(root / "trained", head, static_ids=tuple(range(320)))
    with Progress(disable=True) as progress:
        export_draft(trained, target / "1", root / "exported", progress=progress)
    with serve(run_dir, target, root / "exported") as served:
        yield served


def test_its_drafts_are_taken_and_the_text_is_the_targets(served_draft):
    reference = served_draft.ask(PROMPT, num_draft_tokens=0, max_tokens=40).bits
    before = served_draft.settled_metrics()
    for num_draft_tokens in (1, 4):
        options = {"num_draft_tokens": num_draft_tokens, "adaptive": False, "max_tokens": 40}
        assert served_draft.ask(PROMPT, drafter="draft_model", **options).bits == reference
    after = served_draft.settled_metrics()
    drafted, accepted = (
        after[f"spec_decode_num_{name}_tokens_total"]
        - before[f"spec_decode_num_{name}_tokens_total"]
        for name in ("draft", "accepted")
    )
    assert drafted > 40
    assert accepted > 0.9 * drafted
