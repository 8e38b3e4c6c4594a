"""A client that leaves frees its slot within a step, and nobody else notices."""

import os
import subprocess
import sys
from contextlib import contextmanager

import grpc
import pytest

from support.processes import wait_until
from support.serving import MAX_RUNNING, MAX_WAITING, PUBLISHED
from support.triton_client import Stream

pytestmark = pytest.mark.server

ENDLESS = {"max_tokens": 1900, "end_id": -1, "stream": True}
CLIENT = """
import sys
from support.triton_client import Stream
stream = Stream(sys.argv[1])
stream.send(text_input="doomed", max_tokens=1900, end_id=-1, stream=True)
while True:
    print(stream.read(), flush=True)
"""


@contextmanager
def stopped_stream(served):
    stream = Stream(served.grpc_url)
    stream.send(text_input="doomed", **ENDLESS)
    stream.read()
    yield
    stream.close(cancel=True)


@contextmanager
def deadline(served):
    """A stream whose deadline passes: the client's library cancels it."""
    call = served.call(text_input="doomed", timeout=2.0, **ENDLESS)
    call.read()
    yield
    with pytest.raises(grpc.RpcError):
        call.finish()


@contextmanager
def killed_client(served):
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, served.grpc_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert client.stdout.readline()
    yield
    client.kill()
    client.communicate()


@contextmanager
def closed_http_stream(served):
    events = served.events(text_input="doomed", **ENDLESS)
    next(events)
    yield
    events.close()


WAYS = [stopped_stream, deadline, killed_client, closed_http_stream]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_leaving_frees_the_slot_at_once(served, way):
    before = served.settled_metrics()
    with way(served):
        neighbour = served.call(text_input="neighbour", max_tokens=500)
        neighbour.read()
        wait_until(lambda: served.metrics()["num_requests_running"] == 2, 2)
    wait_until(lambda: served.metrics()["num_requests_running"] <= 1, 1)
    answer = neighbour.finish()
    assert answer.bits == served.ask("neighbour", max_tokens=500, num_draft_tokens=0).bits
    served.wait_idle(1)
    after = served.settled_metrics()
    assert after["requests_cancelled_total"] == before["requests_cancelled_total"] + 1
    assert after["requests_finished_total"] == before["requests_finished_total"] + 2
    assert served.settled_metrics() == after  # nothing generates any more


def test_a_whole_batch_is_cancelled(served):
    before = served.settled_metrics()
    calls = [served.call(text_input=f"doomed {i}", **ENDLESS) for i in range(20)]
    wait_until(lambda: served.metrics()["num_requests_waiting"] == 4, 3)
    calls[0].read()
    for call in reversed(calls):  # the waiting ones first
        call.cancel()
    served.wait_idle(1 + PUBLISHED)
    after = served.settled_metrics()
    assert after["requests_cancelled_total"] == before["requests_cancelled_total"] + 20
    assert after["requests_finished_total"] == before["requests_finished_total"]


def test_waiting_requests_leave_the_line(served):
    """They make room in it although nothing of what runs has ended."""
    running = [served.call(text_input=f"running {i}", max_tokens=400) for i in range(MAX_RUNNING)]
    for call in running:
        call.read()
    waiting = [served.call(text_input="doomed", **ENDLESS) for _ in range(MAX_WAITING)]
    wait_until(lambda: served.metrics()["num_requests_waiting"] == MAX_WAITING, 2)
    for call in waiting:
        call.cancel()
    wait_until(lambda: served.metrics()["num_requests_waiting"] == 0, 1)
    assert served.metrics()["num_requests_running"] == MAX_RUNNING
    for call in running:
        call.cancel()


def test_a_cancelled_request_leaves_a_usable_prefix(served):
    """What it had computed may be reused, and is right."""
    prompt = "a prompt of some length that is used twice"
    call = served.call(text_input=prompt, **ENDLESS)
    for _ in range(5):
        call.read()
    call.cancel()
    served.wait_idle(2)
    again = served.ask(prompt, return_perf_metrics=True)
    assert again.count("kv_cache_reused_blocks") > 0
    assert again.bits == served.ask(prompt, num_draft_tokens=0).bits
