import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from specdec.errors import InvalidConfig
from specdec.launcher.ports import HOST, Ports
from specdec.launcher.server import ServerFailed, Stopped
from specdec.launcher.stop_signal import StopSignal
from support.processes import is_running, regions_of, wait_until

LOG = Path(__file__).parent / "logs" / "missing_artifact.log"


def child_of(server) -> int:
    return int(re.search(r"CHILD (\d+)", server.log.read_text())[1])


def test_ready_then_stop_leaves_nothing(make_server):
    with make_server("ready") as server:
        server.wait_ready(timeout=20)
        pid, child = server.pid, child_of(server)
        assert is_running(pid)
        assert is_running(child)
        assert len(regions_of(pid)) == 1
    assert not is_running(pid)
    wait_until(lambda: not is_running(child))
    assert regions_of(pid) == []


def test_progress_names_the_loaded_models(make_server):
    seen = []
    with make_server("ready") as server:
        server.wait_ready(timeout=20, on_progress=seen.append)
    assert seen[0] == []  # the interpreter is still starting
    assert all(x in ([], ["m1"]) for x in seen)


def test_a_failed_start_says_why_in_short(make_server):
    with make_server(f"fails:{LOG}") as server, pytest.raises(ServerFailed) as caught:
        server.wait_ready(timeout=20)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the server did not start:"
    assert lines[1].strip().startswith("target: no exported model in /x (specdec.json is missing)")
    assert lines[2].strip() == f"log: {server.log}"
    assert len(lines) == 3


def test_not_ready_in_time(make_server):
    with make_server("loading") as server, pytest.raises(ServerFailed, match="not ready after"):
        server.wait_ready(timeout=0.5)
    assert server.log.exists()


def test_a_port_in_use_is_named_and_nothing_is_started(make_server):
    with socket.create_server((HOST, 0)) as taken:
        free = Ports.free()
        server = make_server("ready", ports=Ports(free.http, taken.getsockname()[1], free.metrics))
        with pytest.raises(InvalidConfig) as caught:
            server.start()
    assert str(caught.value) == (
        f"grpc port {server.ports.grpc} is in use: set GRPC_PORT or --grpc-port to another one"
    )
    assert not server.log.exists()


def test_the_exit_timeout_is_enforced(make_server):
    with make_server("stubborn") as server:
        server.wait_ready(timeout=20)
        pid, child = server.pid, child_of(server)
        begin = time.monotonic()
    assert 1 < time.monotonic() - begin < 9  # its own second, and the grace
    assert not is_running(pid)
    wait_until(lambda: not is_running(child))
    assert regions_of(pid) == []


def test_a_second_signal_kills_at_once(make_server):
    stop = StopSignal()
    with make_server("stubborn", stop=stop) as server:
        server.wait_ready(timeout=20)
        pid = server.pid
        stop.request(signal.SIGINT)
        server.wait()
        stop.request(signal.SIGINT)
        begin = time.monotonic()
    assert time.monotonic() - begin < 1
    assert not is_running(pid)
    assert stop.number == signal.SIGINT


def test_stop_while_loading(make_server):
    stop = StopSignal()
    with make_server("loading", stop=stop) as server:
        threading.Timer(0.3, stop.request).start()
        with pytest.raises(Stopped):
            server.wait_ready(timeout=20)
        pid = server.pid
    assert not is_running(pid)


def test_a_dead_model_process_ends_the_wait_and_the_server_at_once(make_server):
    with make_server("stubborn") as server:
        server.wait_ready(timeout=20)
        pid = server.pid
        os.kill(child_of(server), signal.SIGKILL)
        with pytest.raises(ServerFailed, match="a model process died"):
            server.wait()
        begin = time.monotonic()
    assert time.monotonic() - begin < 1, "Triton waits for the dead model"
    assert not is_running(pid)
    assert regions_of(pid) == []


def test_a_server_that_ends_by_itself_ends_the_wait(make_server, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_TRITON_FILE", str(tmp_path / "now"))
    with make_server("exits") as server:
        server.wait_ready(timeout=20)
        pid, child = server.pid, child_of(server)
        (tmp_path / "now").touch()
        with pytest.raises(ServerFailed, match="ended unexpectedly"):
            server.wait()
    assert not is_running(child)
    assert regions_of(pid) == []


def test_a_killed_launcher_takes_its_server_with_it(tmp_path, make_server):
    binary = make_server("ready")._embedded.binary
    code = f"""
        from pathlib import Path
        from specdec.launcher.embedded import EmbeddedServer
        from specdec.launcher.ports import Ports
        from specdec.launcher.server import TritonServer
        here = Path({str(tmp_path)!r})
        server = TritonServer(EmbeddedServer(Path({str(binary)!r}), here, here, here), models=here,
                              backends=here, log=here / "server.log", ports=Ports.free())
        server.start()
        server.wait_ready(timeout=20)
        print(server.pid, flush=True)
        server.wait()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        pid = int(launcher.stdout.readline())
        launcher.kill()
    wait_until(lambda: not is_running(pid))
