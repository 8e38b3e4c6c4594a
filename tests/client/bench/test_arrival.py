import threading

import pytest

from specdec.client.bench.arrival import measure_arrivals
from specdec.client.bench.load import Driver, Settings
from specdec.client.bench.records import Arrival, Prompt
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import RequestRejected
from support.bench import PROMPT_TOKENS, FakeClient

STEP = 0.004
PROMPTS = [Prompt("a", "c", "short"), Prompt("b", "c", "a longer one")]


def measure(client):
    found = []
    driver = Driver(client, Settings())
    measure_arrivals(driver, PROMPTS, PLAIN, on_arrival=found.append, num_background=2)
    return found


def test_arrivals_come_while_the_others_decode_and_leave_nothing_running():
    client = FakeClient(step_seconds=STEP)
    before = threading.active_count()
    found = measure(client)
    assert [(a.prompt, a.num_input_tokens, a.num_background) for a in found] == [
        ("a", PROMPT_TOKENS, 2),
        ("b", PROMPT_TOKENS, 2),
    ]
    assert all(STEP <= a.step_seconds < 10 * STEP for a in found)
    assert all(a.ttft_seconds >= STEP and a.prefill_seconds >= STEP for a in found)
    assert client.most_in_flight == 3
    assert client.in_flight == 0
    assert threading.active_count() == before


def test_every_text_is_sent_once_only():
    """Or the prefix cache would answer for the prompt."""
    client = FakeClient(step_seconds=STEP)
    measure(client)
    texts = [text for text, _ in client.requests]
    assert len(set(texts)) == len(texts)
    assert sum("short" in text for text in texts) == 5  # four alone, one among others


def test_what_the_others_are_refused_for_is_raised():
    client = FakeClient(step_seconds=STEP)
    client.failures["very long story"] = RequestRejected("512 tokens are too many")
    with pytest.raises(RequestRejected, match="too many"):
        measure(client)
    assert client.in_flight == 0


def test_excess_is_counted_in_steps_of_the_others():
    arrival = Arrival("K=0", "a", 10, 4, prefill_seconds=0.5, ttft_seconds=0.8, step_seconds=0.2)
    assert arrival.excess_steps == pytest.approx(1.5)
