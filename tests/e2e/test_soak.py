"""2,000 short requests, a tenth of them cancelled or malformed: nothing is left, nothing grows."""

import random
import re
import threading
from pathlib import Path

import grpc
import pytest

from support.processes import regions_of

pytestmark = pytest.mark.server

NUM_REQUESTS, NUM_CLIENTS = 2000, 16
MODELS = ("speculative", "target", "draft")
RSS_LIMIT = 8 << 20  # bytes that a process may gain in the second half
SHM_LIMIT = 1 << 20  # regions grow by 1 MB at a time and never shrink
PROMPTS = ("the fox", "a dog and the fox", "def add(a, b):\n", "weather " * 20)


def send(served, rng):
    """One request; returns the tokens received, None when it was cancelled."""
    num_tokens = rng.randrange(1, 9)
    fate = rng.random()
    call = served.call(
        text_input="" if fate < 0.05 else rng.choice(PROMPTS),
        num_draft_tokens=rng.randrange(6),
        drafter=rng.choice(["none", "ngram", "auto", "draft_model"]),
        max_tokens=1000 if fate > 0.95 else num_tokens,
        temperature=rng.choice([0.0, 0.9]),
        stream=True if fate > 0.95 else rng.random() < 0.7,
    )
    if fate > 0.95:
        call.read()
        call.cancel()
        return None
    answer = call.finish()
    assert answer.num_final == 1
    if fate < 0.05:
        assert "the prompt is empty" in answer.errors[0]
        return 0
    assert not answer.errors
    assert len(answer.ids()) == num_tokens
    return num_tokens


def run_clients(served, num_requests, seed):
    """Returns what went wrong and how many requests were cancelled."""
    faults, cancelled = [], []

    def client(number):
        rng = random.Random(seed * NUM_CLIENTS + number)
        for _ in range(num_requests // NUM_CLIENTS):
            try:
                if send(served, rng) is None:
                    cancelled.append(number)
            except (AssertionError, grpc.RpcError) as error:
                faults.append(repr(error))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a request never ended"
    return faults, len(cancelled)


def memory(served):
    """Bytes by process, and of all shared-memory regions."""
    processes = {model: served.model_process(model) for model in MODELS}
    sizes = {"tritonserver": served.server.pid, **processes}
    used = {name: resident_bytes(pid) for name, pid in sizes.items()}
    return used, sum(path.stat().st_size for path in regions_of(served.server.pid))


def resident_bytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


def test_nothing_is_left_and_nothing_grows(served):
    run_clients(served, 200, seed=0)  # first uses of everything
    served.wait_idle()
    before = served.settled_metrics()
    processes = {model: served.model_process(model) for model in MODELS}
    faults, num_cancelled = run_clients(served, NUM_REQUESTS // 2, seed=1)
    half, half_shared = memory(served)
    more_faults, more_cancelled = run_clients(served, NUM_REQUESTS // 2, seed=2)
    end, end_shared = memory(served)
    assert faults + more_faults == []
    served.wait_idle(2)
    after = served.settled_metrics()
    grown = {name: after[name] - before[name] for name in after}
    num_cancelled += more_cancelled
    assert num_cancelled > NUM_REQUESTS / 40
    assert grown["requests_cancelled_total"] == num_cancelled
    assert grown["draft_errors_total"] == 0
    gained = {name: end[name] - half[name] for name in end}
    assert max(gained.values()) < RSS_LIMIT, (half, end)
    assert end_shared - half_shared <= SHM_LIMIT, (half_shared, end_shared)
    assert processes == {model: served.model_process(model) for model in MODELS}
    # All slots are free: as many sequences as there are slots start at once.
    calls = [served.call(text_input="last", max_tokens=30) for _ in range(16)]
    assert all(len(call.finish().ids()) == 30 for call in calls)
