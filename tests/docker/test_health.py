"""docker/health.py: which server is healthy, which is only not ready, and which is ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
GROUP = {"count": 1, "kind": "KIND_CPU"}
CONFIGS = {
    "speculative": {"backend": "python", "instance_group": [{"name": "speculative_0", **GROUP}]},
    "target": {"backend": "specdec", "instance_group": [{"name": "mine", "count": 2}]},
    "ensemble": {"platform": "ensemble", "instance_group": []},
    "other": {"backend": "onnxruntime", "instance_group": [{"name": "other", **GROUP}]},
}
INSTANCES = ("speculative_0_0", "mine_0", "mine_1")


@pytest.fixture
def triton() -> Iterator[SimpleNamespace]:
    """Says it is ready (or `status`) and names its models, after `seconds`."""
    told = SimpleNamespace(status=200, seconds=0.0, asked=[], models=list(CONFIGS))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_config = self.path.endswith("/config")
            self.answer(told.status, CONFIGS[self.path.split("/")[3]] if is_config else None)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(told.status, [{"name": name, "state": "READY"} for name in told.models])

        def answer(self, status: int, body: object) -> None:
            told.asked.append(self.path)
            time.sleep(told.seconds)
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


@pytest.fixture
def start(tmp_path: Path) -> Callable:
    """Starts a process called tritonserver, or `called`, whose children run instances."""

    @contextmanager
    def run(*instances: str, called: str = "tritonserver") -> Iterator[subprocess.Popen]:
        binary = tmp_path / called
        binary.symlink_to(sys.executable)
        with subprocess.Popen([binary, "-c", SERVER, *instances]) as process:
            server = health.Server("", process.pid)
            wait_until(lambda: set(instances) <= server._words())
            yield process
            process.kill()

    return run


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_AGAIN_SECONDS", 0.1)


def check(triton: SimpleNamespace, process: subprocess.Popen) -> int:
    return health.main(["--url", triton.url, "--server", str(process.pid)])


def test_a_server_with_all_its_processes_is_healthy(triton, start):
    with start(*INSTANCES) as process:
        assert check(triton, process) == 0
        assert process.poll() is None
    assert not [path for path in triton.asked if "generate" in path]


@pytest.mark.parametrize("left", [INSTANCES[1:], INSTANCES[:2], ()])
def test_a_server_that_has_lost_a_process_is_ended(triton, start, capsys, left):
    with start(*left) as process:
        assert check(triton, process) == 1
        assert process.wait(timeout=10) != 0
    lost = [name for name in INSTANCES if name not in left]
    assert capsys.readouterr().err == f"no process runs {', '.join(lost)}\n"


def test_a_model_that_is_being_unloaded_is_not_missed(triton, start, monkeypatch):
    """It was ready when the index was read, and its process is gone."""
    sleep = time.sleep

    def unloaded(seconds: float) -> None:
        triton.models.remove("target")
        sleep(seconds)

    with start(INSTANCES[0]) as process:
        monkeypatch.setattr(
            health, "time", SimpleNamespace(sleep=unloaded, monotonic=time.monotonic)
        )
        assert check(triton, process) == 0
        assert process.poll() is None


def test_a_process_that_is_no_server_is_not_ended(triton, start, capsys):
    """Process 1 is an init then, and the models' processes are none of its children."""
    with start(called="tini") as process:
        assert check(triton, process) == 1
        assert process.poll() is None
    assert "is tini, not tritonserver: pass --server" in capsys.readouterr().err


@pytest.mark.parametrize("why", ["loading", "slow", "not there"])
def test_what_is_not_ready_is_unhealthy_and_goes_on(triton, start, monkeypatch, why):
    """Without any process of a model too: they are still being started."""
    with start() as process:
        if why == "loading":
            triton.status = 400
        elif why == "slow":
            triton.seconds = 0.5
            monkeypatch.setattr(health, "SECONDS", 0.05)
        else:
            triton.url = "http://127.0.0.1:9"
        assert check(triton, process) == 1
        assert process.poll() is None


def test_a_proxy_is_not_asked(triton, start, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with start(*INSTANCES) as process:
        assert check(triton, process) == 0
