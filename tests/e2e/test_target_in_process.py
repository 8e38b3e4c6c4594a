"""The target inside `speculative`: the same bits as from the model of its own, and nothing lost."""

import pytest

from specdec.launcher.server_log import loaded_models
from support.serving import serve

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown fox"
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 5}
DRAFTERS = ("ngram", "auto", "draft_model", "eagle")


@pytest.fixture(scope="module")
def inside(tiny, tiny_head, run_dir):
    parameters = {"target_in_process": "true", "max_running": "8"}
    models = tiny("fp32"), tiny("int8"), tiny_head
    with serve(run_dir, *models, speculative=parameters) as served:
        assert set(loaded_models(served.log())) == {"draft", "speculative", "ensemble"}
        yield served


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_the_same_bits_as_from_a_model_of_its_own(inside, served, sampling):
    reference = served.ask(PROMPT, num_draft_tokens=0, **sampling).bits
    jobs = [(0, "none"), *((k, drafter) for k in (1, 2, 4, 8, 16) for drafter in DRAFTERS)]

    def call(k, drafter):
        return inside.call(text_input=PROMPT, num_draft_tokens=k, drafter=drafter, **sampling)

    for job in jobs:
        assert call(*job).finish().bits == reference, job
    together = [call(*job) for job in jobs]
    assert [c.finish().bits for c in together] == [reference] * len(jobs)


def test_deltas_come_while_it_writes_and_a_cancel_frees_its_slot(inside):
    call = inside.call(text_input=PROMPT, max_tokens=1900, end_id=-1, stream=True)
    for _ in range(3):
        call.read()
    call.cancel()
    inside.wait_idle()
    assert not inside.ask(PROMPT).errors


def test_metrics_say_what_its_passes_take(inside):
    inside.ask(PROMPT)
    found = inside.settled_metrics()
    assert 0 < found["verify_seconds_total"] < found["step_seconds_total"]
