"""Reads from /metrics what a running server's controller knows of itself.

Heavy for a command line's start (an HTTP client, a parser): imported when a command runs.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specdec.client.errors import ServerUnavailable

PREFIX = "specdec:"
_LOOPBACK = ("http://127.", "http://localhost", "http://[::1]")


class Sample(NamedTuple):
    """One gauge or counter, its name without the prefix."""

    name: str
    labels: dict[str, str]
    value: float


def metrics_url(address: str | None) -> str:
    """`HOST:PORT` or a URL; None: this machine's default."""
    address = address or f"127.0.0.1:{os.environ.get('METRICS_PORT') or 8002}"
    if "://" not in address:
        address = f"http://{address}"
    return address if address.count("/") > 2 else f"{address}/metrics"


def read_samples(address: str | None) -> list[Sample]:
    """Every number this product publishes there.

    Raises `ServerUnavailable`: nothing answers, or none of ours is in the answer.
    """
    url = metrics_url(address)
    try:
        # A proxy from the environment is never asked for a server on this machine.
        response = httpx.get(url, timeout=5.0, trust_env=not url.startswith(_LOOPBACK))
        response.raise_for_status()
        samples = parse(response.text)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ServerUnavailable(f"no metrics at {url}: {error}") from None
    if not samples:
        raise ServerUnavailable(f"{url} holds none of {PREFIX}*: is this a specdec server?")
    return samples


def parse(text: str) -> list[Sample]:
    """Raises `ValueError`: this is not the text format."""
    return [
        Sample(s.name.removeprefix(PREFIX), dict(s.labels), s.value)
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name.startswith(PREFIX)
    ]
