"""The container's health check: Triton's word, and whether its models' processes are there.

    health.py [--url http://127.0.0.1:8000] [--server PID]

Triton never restarts the process of a Python-based model and goes on calling itself ready, while
every request is an error. Docker restarts what has ended and not what is unhealthy. So a server
that calls a model ready which no process of it runs is ended here. No request is made: that would
take a slot and a row of the prefix cache from users, and a busy server would look ill.

Exit code 0: it is ready, and so are its models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

_SECONDS = 5.0  # of one question; three are asked of a server with one model
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_WITHOUT_PROCESS = "ensemble"  # platform of a model that only names others


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """JSON, or None for an empty answer. Raises `OSError`: none, or a refusal."""
    data = None if body is None else json.dumps(body).encode()
    with _NO_PROXY.open(urllib.request.Request(url + path, data), timeout=_SECONDS) as response:
        answer = response.read()
    return json.loads(answer) if answer else None


def models(url: str) -> list[str]:
    """Ready ones that have a process each. Raises `OSError`: the server is not ready."""
    ask(url, "/v2/health/ready")
    names = [m["name"] for m in ask(url, "/v2/repository/index", {"ready": True})]
    return [
        name
        for name in names
        if ask(url, f"/v2/models/{name}/config").get("platform") != _WITHOUT_PROCESS
    ]


def running(server: int) -> set[str]:
    """Words of the command lines of the server's children; an ended one has none."""
    words: set[str] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # "pid (any name) state parent ...": the name may hold blanks and brackets
            if int(path.read_text().rpartition(")")[2].split()[1]) == server:
                words.update((path.parent / "cmdline").read_text(errors="replace").split("\0"))
    return words


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """`arguments`: default: the command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--server", type=int, metavar="PID", default=1, help="tritonserver's")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        wanted = models(options.url)
    except OSError as error:  # nobody listens, nothing came in time, or it is not ready
        print(error, file=sys.stderr)
        return 1
    found = running(options.server)
    dead = [name for name in wanted if f"{name}_0_0" not in found]  # Triton's name of an instance
    if dead:
        print(f"no process runs {', '.join(dead)}: ending the server", file=sys.stderr)
        os.kill(options.server, signal.SIGTERM)
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
