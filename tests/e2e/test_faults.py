"""Model processes that die: without its draft a server goes on plainly, without its target it
says so. Triton itself never starts such a process again and still calls itself healthy.

The tests take one process after another from the same server, in this order.
"""

import contextlib
import time

import grpc
import pytest

from specdec.launcher.server import ServerFailed
from support.serving import serve

pytestmark = pytest.mark.server

NUM_TOKENS = 150


@pytest.fixture(scope="module")
def mortal(tiny, run_dir):
    with serve(run_dir, tiny("fp32"), tiny("int8")) as served:
        yield served


def start(served, num, *, max_tokens=NUM_TOKENS, **options):
    calls = [
        served.call(text_input=f"the quick brown fox {i}", max_tokens=max_tokens, **options)
        for i in range(num)
    ]
    for call in calls:
        call.read()
    return calls


def test_without_its_draft_requests_go_on_plainly(mortal):
    reference = [call.finish().bits for call in start(mortal, 4, num_draft_tokens=0)]
    before = mortal.settled_metrics()
    drafting = start(mortal, 4, drafter="draft_model", num_draft_tokens=4)
    others = start(mortal, 2, drafter="ngram", num_draft_tokens=4)
    mortal.kill("draft")
    begin = time.monotonic()
    assert [call.finish().bits for call in drafting] == reference
    assert [call.finish().bits for call in others] == reference[:2]
    assert time.monotonic() - begin < 8
    grown = mortal.settled_metrics()["draft_errors_total"] - before["draft_errors_total"]
    assert grown == 4

    # New ones too, and the dead process does not cost each of them a second.
    begin = time.monotonic()
    late = start(mortal, 8, drafter="draft_model", num_draft_tokens=4)
    assert [call.finish().bits for call in late][:4] == reference
    assert time.monotonic() - begin < 5
    after = mortal.settled_metrics()
    assert after["draft_errors_total"] - before["draft_errors_total"] == 4 + 8
    mortal.wait_idle()


def test_without_its_target_requests_end_with_an_error(mortal):
    running = start(mortal, 16, max_tokens=1900)
    waiting = [mortal.call(text_input="waiting") for _ in range(8)]
    before = mortal.settled_metrics()
    mortal.kill("target")
    begin = time.monotonic()
    for call in running + waiting:
        answer = call.finish()
        assert len(answer.errors) == 1
        assert answer.errors[0].startswith("model target: ")
        assert answer.num_final == 1
    assert time.monotonic() - begin < 5
    mortal.wait_idle()
    after = mortal.settled_metrics()
    assert after["generation_tokens_total"] - before["generation_tokens_total"] < 16 * 50
    begin = time.monotonic()
    assert mortal.ask("too late").errors == ["model target: its process died"]
    assert time.monotonic() - begin < 1
    assert mortal.post(json={"text_input": "too late", "max_tokens": 4}).json() == {
        "error": "model target: its process died"
    }


def test_a_dead_process_is_noticed_and_its_clients_let_go(mortal):
    """Triton would leave them hanging: whoever waits for the server has to end it."""
    mortal.kill("speculative")
    call = mortal.call(text_input="nobody reads this")
    with pytest.raises(ServerFailed, match="a model process died"):
        mortal.server.wait()
    begin = time.monotonic()
    mortal.server.stop()
    with contextlib.suppress(grpc.RpcError):
        assert call.finish().errors
    assert time.monotonic() - begin < 5
