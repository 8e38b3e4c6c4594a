"""How both clients open a gRPC channel."""

from __future__ import annotations

_UNLIMITED = -1
_LOOPBACK = ("127.", "localhost", "[::1]")


def channel_options(url: str) -> list[tuple[str, int]]:
    """A proxy from the environment is never asked for a server on this machine."""
    options = [
        ("grpc.max_send_message_length", _UNLIMITED),
        ("grpc.max_receive_message_length", _UNLIMITED),
    ]
    if url.startswith(_LOOPBACK):
        options.append(("grpc.enable_http_proxy", 0))
    return options
