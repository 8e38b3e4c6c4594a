"""Talk to a running server: a library, a command line, a benchmark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.client.aio import AsyncSpecdecClient
    from specdec.client.client import SpecdecClient
    from specdec.client.errors import (
        ClientError,
        RequestCancelled,
        RequestRejected,
        RequestTimeout,
        ServerFailed,
        ServerUnavailable,
        StreamBroken,
    )
    from specdec.client.results import Chunk, Completion, Stats

# Imported on first use: gRPC takes a quarter of a second, and the command line starts here.
_ORIGIN = {
    "AsyncSpecdecClient": "aio",
    "SpecdecClient": "client",
    "Chunk": "results",
    "Completion": "results",
    "Stats": "results",
    "ClientError": "errors",
    "RequestCancelled": "errors",
    "RequestRejected": "errors",
    "RequestTimeout": "errors",
    "ServerFailed": "errors",
    "ServerUnavailable": "errors",
    "StreamBroken": "errors",
}

__all__ = [
    "AsyncSpecdecClient",
    "Chunk",
    "ClientError",
    "Completion",
    "RequestCancelled",
    "RequestRejected",
    "RequestTimeout",
    "ServerFailed",
    "ServerUnavailable",
    "SpecdecClient",
    "Stats",
    "StreamBroken",
]


def __getattr__(name: str) -> Any:
    if name not in _ORIGIN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ORIGIN[name]}"), name)
