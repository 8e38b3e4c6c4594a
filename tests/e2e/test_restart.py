"""`specdec serve` with real models: stop, start again, and end with streams open."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from specdec.launcher.ports import Ports
from support.processes import SHARED_MEMORY, is_running
from support.serving import SOURCE, Served

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox"


class Launcher:
    """Stands in for `TritonServer`: a server that another process started."""

    def __init__(self, process, ports):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (self.pid,) = map(int, children)
        self.ports = ports
        self.process = process


@contextmanager
def command(tiny, run_dir, ports, option):
    """Run `specdec serve` until it is ready; nothing of it is left at the end."""
    arguments = ["--model-repository", str(SOURCE), "--run-dir", str(run_dir)]
    arguments += ["--target", str(tiny("fp32")), "--draft", str(tiny("int8")), option]
    for name in ("http", "grpc", "metrics"):
        arguments += [f"--{name}-port", str(getattr(ports, name))]
    process = subprocess.Popen(
        [sys.executable, "-m", "specdec.client.cli", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert any(line.startswith("ready") for line in iter(process.stdout.readline, ""))
        launcher = Launcher(process, ports)
        members = group(launcher.pid)
        # The server, draft, speculative, and perhaps the target.
        assert len(members) == 3 + (option == "--target-apart")
        yield Served(launcher)
        process.wait(20)
    finally:
        process.kill()
        process.communicate()
    assert not any(map(is_running, members))
    assert list(SHARED_MEMORY.glob(f"specdec_{launcher.pid}_*")) == []


def group(leader):
    """Processes of the server's group."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(path.name)) == leader:
                found.append(int(path.name))
        except ProcessLookupError:
            continue
    return found


def outcome(call):
    """How a stream ended: all of it, an error message, or a broken connection."""
    try:
        answer = call.finish()
    except grpc.RpcError as error:
        return error.code().name
    assert answer.num_final == 1
    return answer.errors[0] if answer.errors else answer.finish_reason()


@pytest.mark.parametrize("option", ["--target-inside", "--target-apart"])
def test_terminated_with_streams_open_and_started_again(tiny, tmp_path, option):
    ports = Ports.free()
    with command(tiny, tmp_path, ports, option) as served:
        reference = served.ask(PROMPT, max_tokens=100).bits
        cancelled = served.call(text_input="cancelled", max_tokens=1900)
        cancelled.read()
        cancelled.cancel()
        events = served.events(text_input=PROMPT, max_tokens=100, end_id=-1, stream=True)
        texts = [next(events)["text_output"]]
        calls = [served.call(text_input=f"{PROMPT} {i}", max_tokens=1900) for i in range(20)]
        calls[0].read()
        begin = time.monotonic()
        served.server.process.send_signal(signal.SIGTERM)
        outcomes = [outcome(call) for call in calls]
        texts += [event["text_output"] for event in events]
    assert served.server.process.returncode == 0
    assert time.monotonic() - begin < 15
    assert "".join(texts) == reference[2]  # HTTP streams are waited for
    # gRPC streams are not; each ends with an error.
    assert all("Server not ready" in x or "shutting down" in x for x in outcomes), outcomes
    assert list(tmp_path.iterdir()) == []

    with command(tiny, tmp_path, ports, option) as served:  # the same ports
        assert served.ask(PROMPT, max_tokens=100).bits == reference
        served.server.process.send_signal(signal.SIGTERM)
