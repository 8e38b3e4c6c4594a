"""int8 and int4, where one row alone would give other bits than a batch: still exact."""

import pytest

from support.serving import serve

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown fox"
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 5}


@pytest.fixture(scope="module", params=[("int8", "int4"), ("int4", "fp32")], ids=["int8", "int4"])
def served(request, tiny, run_dir):
    target, draft = request.param
    with serve(run_dir, tiny(target), tiny(draft)) as served:
        yield served


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_every_draft_length(served, sampling):
    reference = served.ask(PROMPT, num_draft_tokens=0, **sampling).bits
    jobs = [
        (k, drafter) for k in (0, 1, 2, 4, 8, 16) for drafter in ("ngram", "auto", "draft_model")
    ]

    def call(k, drafter):
        return served.call(text_input=PROMPT, num_draft_tokens=k, drafter=drafter, **sampling)

    for job in jobs:
        assert call(*job).finish().bits == reference, job
    together = [call(*job) for job in jobs]
    assert [c.finish().bits for c in together] == [reference] * len(jobs)
