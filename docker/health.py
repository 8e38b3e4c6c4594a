"""The container's health check: asks for one token, whatever Triton says of itself.

    health.py [--url http://127.0.0.1:8000] [--end PID]

Triton never restarts the process of a Python-based model and goes on calling itself ready: every
request is then an error. Docker restarts what has ended and not what is unhealthy. So `--end` ends
the server when a process of its models is dead (process 1 of a container), and only then: a server
that refuses because it is full is alive, and one that is slow may be loading or busy.

Exit code 0: it answers, or says that it is full.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import urllib.error
import urllib.request

_REQUEST = {"text_input": "a", "max_tokens": 1, "num_draft_tokens": 0}
_DEAD = "is not healthy"  # Triton's words: Stub process 'speculative_0_0' is not healthy.
_FULL = (429, 503)  # what Triton makes of UNAVAILABLE
SECONDS = 20.0


class Unhealthy(Exception):
    """It gave no token. `is_dead`: and never will."""

    def __init__(self, reason: str, *, is_dead: bool = False) -> None:
        super().__init__(reason)
        self.is_dead = is_dead


def ask(url: str, *, seconds: float = SECONDS) -> None:
    """Raises `Unhealthy`."""
    request = urllib.request.Request(
        f"{url}/v2/models/speculative/generate", data=json.dumps(_REQUEST).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            response.read()
    except urllib.error.HTTPError as error:
        reason = error.read().decode(errors="replace")
        if error.code not in _FULL:
            raise Unhealthy(reason, is_dead=_DEAD in reason) from None
    except OSError as error:  # nobody listens, or nothing came in time
        raise Unhealthy(str(error)) from None


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """`arguments`: default: the command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--end", type=int, metavar="PID", help="the server to end if it is dead")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        ask(options.url)
    except Unhealthy as error:
        print(error, file=sys.stderr)
        if error.is_dead and options.end is not None:
            os.kill(options.end, signal.SIGTERM)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
