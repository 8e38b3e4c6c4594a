"""The container's health check: Triton's word, and whether its models' processes are there.

    health.py [--url http://127.0.0.1:8000] [--server PID]

Triton never restarts the process of a Python-based model and goes on calling it ready, while
every request is an error. Docker restarts what has ended and not what is unhealthy. So a server
that calls a model ready which no process of it runs is ended here, if a second look finds the same.
No request is made: that would take a slot and a row of the prefix cache from users, and a busy
server would look ill.

Exit code 0: it is ready, and so are its models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

SECONDS = 20.0  # for all questions together
_AGAIN_SECONDS = 2.0  # until the second look: a model that is being unloaded is gone by then
_BACKENDS = ("python", "specdec")  # whose models run in processes of their own
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Server:
    """One tritonserver: what it says, and what it runs."""

    def __init__(self, url: str, pid: int) -> None:
        self._url, self.pid = url, pid
        self._deadline = time.monotonic() + SECONDS

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """JSON, or None for an empty answer. Raises `OSError`: none, or a refusal."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data)
        left = max(self._deadline - time.monotonic(), 0.01)
        with _NO_PROXY.open(request, timeout=left) as response:
            answer = response.read()
        return json.loads(answer) if answer else None

    def dead(self) -> list[str]:
        """Instances of ready models that no process runs.

        Raises `OSError`: the server does not tell, for it starts or ends.
        """
        ready = [m["name"] for m in self.ask("/v2/repository/index", {"ready": True})]
        configs = [self.ask(f"/v2/models/{name}/config") for name in ready]
        words = self._words()
        return [
            instance
            for config in configs
            if config.get("backend") in _BACKENDS
            for instance in _instances(config)
            if instance not in words
        ]

    def _words(self) -> set[str]:
        """Of its children's command lines; one that has ended has none."""
        words: set[str] = set()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                # "pid (any name) state parent ...": the name may hold blanks and brackets
                stat = path.read_text(errors="replace").rpartition(")")[2]
                if int(stat.split()[1]) == self.pid:
                    words.update((path.parent / "cmdline").read_text(errors="replace").split("\0"))
        return words

    def end(self) -> None:
        """Process 1 of a container may also be a small init: then nothing is known."""
        comm = Path(f"/proc/{self.pid}/comm").read_text().strip()
        if comm != "tritonserver":
            raise OSError(f"process {self.pid} is {comm}, not tritonserver: pass --server")
        os.kill(self.pid, signal.SIGTERM)


def _instances(config: dict[str, Any]) -> list[str]:
    """Triton's names of a model's instances, which their processes have among their words."""
    groups = config.get("instance_group", [])
    return [f"{g['name']}_{i}" for g in groups for i in range(g.get("count", 1))]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """`arguments`: default: the command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--server", type=int, metavar="PID", default=1, help="tritonserver's")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    server = Server(options.url, options.server)
    try:
        if dead := server.dead():
            time.sleep(_AGAIN_SECONDS)
            dead = [instance for instance in server.dead() if instance in dead]
        if dead:
            print(f"no process runs {', '.join(dead)}", file=sys.stderr)
            server.end()
            return 1
        server.ask("/v2/health/ready")
    except OSError as error:  # nobody listens, nothing came in time, or it is not ready
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
