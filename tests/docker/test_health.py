"""docker/health.py: which server is healthy, which is only not ready, and which is ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from support.docker_script import module
from support.processes import wait_until

health = module("health")

# A server's process: its children have Triton's names of instances among their words.
SERVER = """
import subprocess, sys, time
for name in sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", name])
time.sleep(60)
"""
PLATFORMS = {"speculative": "", "target": "", "ensemble": "ensemble"}


@pytest.fixture
def triton() -> Iterator[SimpleNamespace]:
    """Says it is ready (or `status`), after `seconds`, and names its models."""
    told = SimpleNamespace(status=200, seconds=0.0, asked=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append(self.path)
            time.sleep(told.seconds)
            is_config = self.path.endswith("/config")
            answer = {"platform": PLATFORMS[self.path.split("/")[3]]} if is_config else None
            self.answer(told.status, answer)

        def do_POST(self) -> None:
            told.asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, [{"name": name, "state": "READY"} for name in PLATFORMS])

        def answer(self, status: int, body: object) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"" if body is None else json.dumps(body).encode())

        def log_message(self, *_: object) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=listening.serve_forever)
    thread.start()
    told.url = f"http://127.0.0.1:{listening.server_port}"
    yield told
    listening.shutdown()
    thread.join()
    listening.server_close()


def start(*models: str) -> subprocess.Popen:
    names = [f"{model}_0_0" for model in models]
    process = subprocess.Popen([sys.executable, "-c", SERVER, *names], start_new_session=True)
    wait_until(lambda: set(names) <= health.running(process.pid))
    return process


@pytest.fixture
def server() -> Iterator[subprocess.Popen]:
    with start("speculative", "target") as process:
        yield process
        process.kill()


def check(triton: SimpleNamespace, process: subprocess.Popen) -> int:
    return health.main(["--url", triton.url, "--server", str(process.pid)])


def test_a_server_with_all_its_processes_is_healthy(triton, server):
    assert check(triton, server) == 0
    assert server.poll() is None
    assert not [path for path in triton.asked if "generate" in path]


@pytest.mark.parametrize("left", [("target",), ("speculative",), ()])
def test_a_server_that_has_lost_a_process_is_ended(triton, capsys, left):
    with start(*left) as process:
        assert check(triton, process) == 1
        assert process.wait(timeout=10) != 0
    lost = [name for name in ("speculative", "target") if name not in left]
    assert f"no process runs {', '.join(lost)}: ending" in capsys.readouterr().err


@pytest.mark.parametrize("why", ["loading", "slow", "not there"])
def test_what_is_not_ready_is_unhealthy_and_goes_on(triton, monkeypatch, why):
    """Without any process of a model too: they are still being started."""
    with start() as process:
        if why == "loading":
            triton.status = 400
        elif why == "slow":
            triton.seconds = 0.5
            monkeypatch.setattr(health, "_SECONDS", 0.05)
        else:
            triton.url = "http://127.0.0.1:9"
        assert check(triton, process) == 1
        assert process.poll() is None
        process.kill()


def test_a_proxy_is_not_asked(triton, server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert check(triton, server) == 0
