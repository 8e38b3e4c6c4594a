"""Reads the server's /metrics: what it counted between two moments.

The server publishes a few times a second, so a reading right after a request is too early:
`after` waits until the requests in question are counted as finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specdec.client.bench.records import Work
from specdec.client.errors import ClientError

PREFIX = "specdec:"
# Field of `Work` -> counter of the server.
COUNTERS = {
    "num_steps": "num_steps_total",
    "step_seconds": "step_seconds_total",
    "draft_seconds": "draft_seconds_total",
    "verify_seconds": "verify_seconds_total",
    "num_drafts": "spec_decode_num_drafts_total",
    "num_draft_tokens": "spec_decode_num_draft_tokens_total",
    "num_accepted_tokens": "spec_decode_num_accepted_tokens_total",
    "num_output_tokens": "generation_tokens_total",
    "num_prompt_tokens": "prompt_tokens_total",
    "num_cached_tokens": "prefix_cache_hits_total",
    "num_finished": "requests_finished_total",
    "num_draft_errors": "draft_errors_total",
}
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 3.0  # the server publishes every 0.25 s
_LOOPBACK = ("http://127.", "http://localhost", "http://[::1]")


class MetricsUnavailable(ClientError):
    """No metrics of a specdec server are there."""


class Scraper:
    """Counters of one server."""

    def __init__(self, fetch: Callable[[], str], *, poll_seconds: float = _POLL_SECONDS) -> None:
        """`fetch` returns the text of /metrics or raises `MetricsUnavailable`."""
        self._fetch = fetch
        self._poll_seconds = poll_seconds

    def read(self) -> Work:
        """All counters since the server started. Raises `MetricsUnavailable`."""
        return parse(self._fetch())

    def after(self, before: Work, num_requests: int) -> Work:
        """What was counted since `before`, once `num_requests` more requests are finished.

        Gives up waiting after some seconds and returns what there is then.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            work = self.read() - before
            if work.num_finished >= num_requests or time.monotonic() > deadline:
                return work
            time.sleep(self._poll_seconds)


def connect(url: str) -> Scraper:
    """A scraper of the /metrics at `url`. Raises `MetricsUnavailable` if nothing useful is there.

    A proxy from the environment is never asked for a server on this machine.
    """
    http = httpx.Client(trust_env=not url.startswith(_LOOPBACK), timeout=5.0)

    def fetch() -> str:
        try:
            response = http.get(url)
            response.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MetricsUnavailable(f"no metrics at {url}: {error}") from None
        return response.text

    scraper = Scraper(fetch)
    scraper.read()
    return scraper


def parse(text: str) -> Work:
    """Counters out of the text format, summed over labels.

    Raises `MetricsUnavailable`: this is not the text format, or no counter of ours is in it.
    """
    fields = {PREFIX + counter: name for name, counter in COUNTERS.items()}
    values = dict.fromkeys(COUNTERS, 0.0)
    found = False
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in fields:
                    values[fields[sample.name]] += sample.value
                    found = True
    except ValueError as error:
        raise MetricsUnavailable(f"the metrics cannot be read: {error}") from None
    if not found:
        raise MetricsUnavailable(f"the metrics hold none of {PREFIX}*: is this a specdec server?")
    return Work(**values)
