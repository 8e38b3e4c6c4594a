"""docker/health.py: who is alive, who is only slow or full, and who is ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from support.docker_script import module

health = module("health")

DEAD = "Stub process 'speculative_0_0' is not healthy."


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """Answers every request as `status` and `text` say, after `seconds`, and notes it."""
    told = SimpleNamespace(status=200, text="{}", asked=[], seconds=0.0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.asked.append((self.path, json.loads(body)))
            time.sleep(told.seconds)
            self.send_response(told.status)
            self.end_headers()
            self.wfile.write(told.text.encode())

        def log_message(self, *_: object) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=listening.serve_forever)
    thread.start()
    told.url = f"http://127.0.0.1:{listening.server_port}"
    yield told
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def other() -> Iterator[subprocess.Popen]:
    """A process that can be ended in the server's place."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("answer", "is_healthy", "is_ended"),
    [
        ((200, "{}"), True, False),
        ((503, "64 requests are waiting: allowed are 64"), True, False),
        ((400, DEAD), False, True),
        ((500, f"the target failed: {DEAD}"), False, True),
        ((400, "Request for unknown model: 'speculative' is not found"), False, False),
        ((500, "the target failed: out of memory"), False, False),
    ],
    ids=["alive", "full", "dead", "target dead", "still loading", "failing"],
)
def test_only_what_is_dead_is_ended(server, other, answer, is_healthy, is_ended):
    server.status, server.text = answer
    found = health.main(["--url", server.url, "--end", str(other.pid)])
    assert (found == 0) == is_healthy
    if is_ended:
        assert other.wait(timeout=10) != 0
    else:
        assert other.poll() is None
    assert health.main(["--url", server.url]) == found  # nobody to end: it only tells
    ((path, request), _) = server.asked
    assert path == "/v2/models/speculative/generate"
    assert (request["max_tokens"], request["num_draft_tokens"]) == (1, 0)


def test_what_does_not_answer_is_unhealthy_and_goes_on(server, other, monkeypatch):
    server.seconds = 1.0
    monkeypatch.setattr(health, "ask", partial(health.ask, seconds=0.1))
    assert health.main(["--url", server.url, "--end", str(other.pid)]) == 1
    assert health.main(["--url", "http://127.0.0.1:9", "--end", str(other.pid)]) == 1
    assert other.poll() is None
