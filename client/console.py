"""How the command line speaks: data on stdout, everything else on stderr."""

from __future__ import annotations

import os

from rich.console import Console

OUT = Console(highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)


def default_url() -> str:
    """Where the server of this environment listens for gRPC."""
    return os.environ.get("SPECDEC_URL") or f"127.0.0.1:{os.environ.get('GRPC_PORT') or 8001}"
