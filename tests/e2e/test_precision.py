"""int8, w8a8 and int4, where one row alone would give other bits than a batch: still exact.

The head is a model of its own here; with the shared server it runs beside the scheduler.
"""

import pytest

from specdec.launcher.server_log import loaded_models
from support.serving import serve

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown fox"
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 5}


DRAFTS = {"int8": "int4", "w8a8": "fp32", "int4": "fp32"}  # of each target


@pytest.fixture(scope="module", params=DRAFTS)
def served(request, tiny, tiny_head, run_dir):
    models = tiny(request.param), tiny(DRAFTS[request.param]), tiny_head
    with serve(run_dir, *models, speculative={"head_in_process": "false"}) as served:
        assert "eagle" in loaded_models(served.server.log.read_text())
        yield served


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_every_draft_length(served, sampling):
    reference = served.ask(PROMPT, num_draft_tokens=0, **sampling).bits
    jobs = [
        (k, drafter)
        for k in (0, 1, 2, 4, 8, 16)
        for drafter in ("ngram", "auto", "draft_model", "eagle")
    ]

    def call(k, drafter):
        return served.call(text_input=PROMPT, num_draft_tokens=k, drafter=drafter, **sampling)

    for job in jobs:
        assert call(*job).finish().bits == reference, job
    together = [call(*job) for job in jobs]
    assert [c.finish().bits for c in together] == [reference] * len(jobs)
