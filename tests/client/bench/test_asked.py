import threading

import pytest

from specdec.client.bench.asked import Asked
from specdec.client.bench.load import Driver, Settings
from specdec.client.bench.records import Prompt
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import ServerFailed
from support.bench import FakeClient

HELLO = Prompt("chat/1", "chat", "Hello")


class Held(FakeClient):
    """Opens no stream before it is let go."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def stream(self, prompt=None, **options):
        self.go.wait()
        return super().stream(prompt, **options)


def test_an_answer_is_complete_at_the_end():
    asked = Asked(Driver(FakeClient(), Settings(max_tokens=4)), HELLO, PLAIN)
    asked.join()
    assert asked.is_over
    assert asked.record.token_ids == tuple(asked.token_ids) == (5, 6, 7, 8)
    assert asked.error is None


def test_cancelling_keeps_what_has_come():
    client = FakeClient(step_seconds=0.002)
    asked = Asked(Driver(client, Settings(max_tokens=10_000)), HELLO, PLAIN)
    while len(asked.token_ids) < 3:
        assert not asked.is_over
    asked.cancel()
    asked.join()
    assert asked.record is asked.error is None
    assert 3 <= len(asked.token_ids) < 10_000
    assert client.in_flight == 0


def test_cancelled_before_it_was_sent():
    client = Held()
    asked = Asked(Driver(client, Settings(max_tokens=4)), HELLO, PLAIN)
    asked.cancel()
    client.go.set()
    asked.join()
    assert asked.record is asked.error is None
    assert not asked.token_ids


@pytest.mark.parametrize("cancelled", [True, False])
def test_another_error_is_kept(cancelled):
    client = Held()
    client.failures["Hello"] = ServerFailed("the target broke")
    asked = Asked(Driver(client, Settings()), HELLO, PLAIN)
    if cancelled:
        asked.cancel()
    client.go.set()
    asked.join()
    assert isinstance(asked.error, ServerFailed)
