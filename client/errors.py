"""What a request can end with, other than text. Messages are short and fit to show to a person."""

from __future__ import annotations

from specdec.errors import SpecdecError


class ClientError(SpecdecError):
    """Base of the errors below."""

    exit_code = 1  # of the command line


class RequestRejected(ClientError):
    """The request is at fault: a value was refused, by this library or by the server."""

    exit_code = 2


class ServerUnavailable(ClientError):
    """No server answers, it is not ready, or its waiting line is full: try again later."""


class RequestTimeout(ClientError):
    """The answer was not complete in time; the server was told to stop."""


class RequestCancelled(ClientError):
    """The request was cancelled before it was complete."""


class StreamBroken(ClientError):
    """The connection ended in the middle of an answer, or the answer made no sense."""


class ServerFailed(ClientError):
    """The server gave up on this request through no fault of the request."""
