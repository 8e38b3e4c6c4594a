"""The whole way with the real server, through the command line, on models without weights."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from specdec.launcher.ports import Ports
from specdec.launcher.stop_signal import StopSignal
from support.processes import SHARED_MEMORY, is_running, wait_until
from support.trivial_repository import write_servable

SERVE = [sys.executable, "-m", "specdec.client.cli", "serve"]


def child_of(launcher: int) -> int:
    """The server's process id: the launcher's only child."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


@pytest.mark.server
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_serve_until_a_signal(tmp_path, number, code):
    repository, ports = write_servable(tmp_path / "repository"), Ports.free()
    environment = os.environ | {
        "HTTP_PORT": str(ports.http),
        "GRPC_PORT": str(ports.grpc),
        "METRICS_PORT": str(ports.metrics),
    }
    run_dir = tmp_path / "run"
    command = [*SERVE, "--model-repository", str(repository), "--run-dir", str(run_dir)]
    command.append("--target-apart")
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    try:
        lines = iter(launcher.stdout.readline, "")
        ready = next(line for line in lines if line.startswith("ready"))
        assert re.search(rf"generate --url 127.0.0.1:{ports.grpc} ", ready)
        server = child_of(launcher.pid)
        assert len(list(SHARED_MEMORY.glob(f"specdec_{server}_*"))) == 2
        assert echo(ports) == f"{sys.prefix}|model.onnx|model.py|specdec.json"
        begin = time.monotonic()
        launcher.send_signal(number)
        assert launcher.wait(20) == code
    finally:
        launcher.kill()
        launcher.communicate()
    assert time.monotonic() - begin < 8
    wait_until(lambda: not is_running(server))
    assert list(SHARED_MEMORY.glob(f"specdec_{server}_*")) == []
    assert list(run_dir.iterdir()) == []


def echo(ports: Ports) -> str:
    """What the target says of itself."""
    body = {"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}]}
    url = f"http://127.0.0.1:{ports.http}/v2/models/target/infer"
    answer = httpx.post(url, json=body, headers={"Connection": "close"}, trust_env=False).json()
    return answer["outputs"][0]["data"][0]


@pytest.mark.server
def test_a_model_that_does_not_load_is_one_line(tmp_path):
    repository, ports = write_servable(tmp_path / "repository"), Ports.free()
    (repository / "speculative" / "1" / "model.py").write_text("import no_such_module\n")
    command = [*SERVE, "--model-repository", str(repository), "--run-dir", str(tmp_path / "run")]
    for name in ("http", "grpc", "metrics"):
        command += [f"--{name}-port", str(getattr(ports, name))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "speculative: ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 5


def test_stop_signal_restores_the_handlers():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(1)
        assert not stop.hurry
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: stop.hurry)
    assert stop.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
