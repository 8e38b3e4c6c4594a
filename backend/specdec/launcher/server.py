"""One tritonserver process: start, wait until ready, watch, end it and what it left behind.

Knows nothing of the models it serves.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from specdec.errors import SpecdecError
from specdec.launcher import exec_server, shared_memory
from specdec.launcher.embedded import EmbeddedServer
from specdec.launcher.ports import DEFAULT_PORTS, HOST, Ports
from specdec.launcher.server_log import failure_reasons, loaded_models
from specdec.launcher.stop_signal import StopSignal

_POLL_SECONDS = 0.1
_KILL_SECONDS = 5.0  # how long the server may overrun its own exit timeout

OnProgress = Callable[[list[str]], None]  # gets the names of the models loaded so far


class ServerFailed(SpecdecError):
    """The server did not start, or ended by itself."""

    exit_code = 1


class Stopped(SpecdecError):
    """The user asked to stop before the server was ready."""


class TritonServer:
    """The server as a context manager: started on entry, ended and cleaned up on exit.

    `start` must be called by a thread that outlives the server: the kernel ends the server with
    it, which is what keeps a killed launcher from leaving a server behind.
    """

    def __init__(
        self,
        embedded: EmbeddedServer,
        *,
        models: Path,
        backends: Path,
        log: Path,
        ports: Ports = DEFAULT_PORTS,
        verbose: bool = False,
        exit_timeout_seconds: int = 10,
        stop: StopSignal | None = None,
    ) -> None:
        self._embedded = embedded
        self._models, self._backends = models.resolve(), backends.resolve()
        self._verbose = verbose
        self._exit_timeout = exit_timeout_seconds
        self._stop = stop or StopSignal()
        self._process: subprocess.Popen[bytes] | None = None
        self._model_processes: frozenset[int] = frozenset()
        self.ports = ports
        self.log = log

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not started"
        return self._process.pid

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process; returns at once.

        Raises:
            InvalidConfig: a port is in use.
        """
        self.ports.check()
        shared_memory.sweep_stale()
        environment = self._embedded.environment()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only us, and we end the whole group
            )

    def _command(self) -> Sequence[str]:
        ports = self.ports
        arguments = [
            f"--model-repository={self._models}",
            f"--backend-directory={self._backends}",
            "--model-control-mode=none",
            f"--exit-timeout-secs={self._exit_timeout}",
            *(f"--{x}-address={HOST}" for x in ("http", "grpc", "metrics")),
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            "--allow-gpu-metrics=false",
            *(["--log-verbose=1"] if self._verbose else []),
        ]
        prefix = shared_memory.region_prefix(exec_server.PID)
        arguments.append(f"--backend-config=python,shm-region-prefix-name={prefix}")
        # -I -S: nothing but the standard library, so that it starts in a few milliseconds
        launcher = [sys.executable, "-I", "-S", exec_server.__file__, str(os.getpid())]
        return [*launcher, str(self._embedded.binary), *arguments]

    def wait_ready(self, *, timeout: float = 600.0, on_progress: OnProgress | None = None) -> None:
        """Return once every model is loaded and requests are answered.

        Raises:
            ServerFailed: it ended, or is not ready after `timeout` seconds; says why in short.
            Stopped: a stop was requested meanwhile.
        """
        assert self._process is not None, "the server is not started"
        deadline = time.monotonic() + timeout
        url = f"http://{HOST}:{self.ports.http}/v2/health/ready"
        with httpx.Client(trust_env=False, timeout=2.0) as client:
            while not _is_ready(client, url):
                if self._process.poll() is not None:
                    raise ServerFailed(self._failure("the server did not start"))
                if time.monotonic() > deadline:
                    raise ServerFailed(self._failure(f"the server is not ready after {timeout} s"))
                if on_progress:
                    on_progress(loaded_models(self._log_text()))
                if self._stop.wait(_POLL_SECONDS):
                    raise Stopped("stopped while the models were loading")
        self._model_processes = self._group_members() - {self.pid}

    def wait(self) -> None:
        """Block until a stop is requested.

        Raises:
            ServerFailed: the server ended, or one of its model processes did. Triton never
                restarts such a process and still calls itself healthy, while clients hang.
        """
        assert self._process is not None, "the server is not started"
        while not self._stop.wait(1.0):
            if self._process.poll() is not None:
                raise ServerFailed(self._failure("the server ended unexpectedly"))
            if self._model_processes - self._group_members():
                # Triton would wait for it at its own exit, as long as its timeout allows.
                self._stop.hurry = True
                raise ServerFailed(self._failure("a model process died"))

    def stop(self) -> None:
        """End the server; kill it when it overruns its exit timeout or when asked to hurry."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        deadline = time.monotonic() + self._exit_timeout + _KILL_SECONDS
        while process.poll() is None and time.monotonic() < deadline and not self._stop.hurry:
            time.sleep(_POLL_SECONDS)
        # Model processes outlive a server that did not end in order.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + _KILL_SECONDS
        while _live_group_members(process.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        shared_memory.remove_regions(process.pid)

    def _group_members(self) -> frozenset[int]:
        return frozenset(_live_group_members(self.pid))

    def _failure(self, what: str) -> str:
        reasons = failure_reasons(self._log_text()) or ["the log is empty"]
        return "\n  ".join([f"{what}:", *reasons, f"log: {self.log}"])

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _is_ready(client: httpx.Client, url: str) -> bool:
    # A kept-alive connection would hold up the server's exit.
    with contextlib.suppress(httpx.HTTPError):
        return client.get(url, headers={"Connection": "close"}).status_code == httpx.codes.OK
    return False


def _live_group_members(group: int) -> list[int]:
    """Ids of the processes of a group, zombies left out."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # "pid (any name) state parent group ...": the name may hold blanks and brackets
            state, _, found = re.sub(r"^.*\) ", "", path.read_text()).split()[:3]
            if int(found) == group and state != "Z":
                members.append(int(path.parent.name))
    return members
