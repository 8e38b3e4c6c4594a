"""Our own client and command line against the real server."""

import asyncio
import json
import subprocess
import sys

import pytest

from specdec.client import (
    AsyncSpecdecClient,
    RequestRejected,
    RequestTimeout,
    ServerUnavailable,
    SpecdecClient,
)
from support.processes import wait_until
from support.serving import MAX_RUNNING, MAX_WAITING

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def reference(shared_server):
    """The model's own end ids count: that is the client's default."""
    return shared_server.ask(PROMPT, num_draft_tokens=0, end_id=None)


@pytest.fixture
def client(served):
    with SpecdecClient(served.grpc_url) as client:
        yield client


def test_generate(client, reference):
    for options in ({"num_draft_tokens": 0}, {"drafter": "draft_model"}, {}):
        completion = client.generate(PROMPT, max_tokens=24, return_logprobs=True, **options)
        assert (list(completion.token_ids), list(completion.logprobs), completion.text) == (
            reference.bits
        )
        assert completion.finish_reason == reference.finish_reason()
        stats = completion.stats
        assert stats.num_output_tokens == len(completion.token_ids)
        assert stats.num_accepted_tokens == sum(completion.from_draft)
        assert 0 < stats.ttft_seconds <= stats.total_seconds < 5


def test_stream(client, reference):
    chunks = list(client.stream(PROMPT, max_tokens=24, drafter="draft_model", num_draft_tokens=8))
    assert "".join(chunk.text for chunk in chunks) == reference.text()
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].stats is not None
    for chunk in chunks:
        assert len(chunk.text_lengths) == len(chunk.token_ids)


def test_leaving_a_stream(client, served):
    before = served.settled_metrics()["requests_cancelled_total"]
    with client.stream(PROMPT, max_tokens=1900) as chunks:
        next(chunks)
    served.wait_idle(1)
    assert served.settled_metrics()["requests_cancelled_total"] == before + 1


def test_a_deadline(client, served):
    with pytest.raises(RequestTimeout):
        client.generate(PROMPT + " a", max_tokens=2000, min_tokens=2000, timeout=0.5)
    served.wait_idle(1)


def test_errors_are_typed(client, served):
    with pytest.raises(RequestRejected, match="temperature is -1: allowed is 0 to 100"):
        client.generate(PROMPT, temperature=-1.0)
    calls = [
        served.call(text_input=f"request {i}", max_tokens=400)
        for i in range(MAX_RUNNING + MAX_WAITING)
    ]
    wait_until(lambda: served.metrics()["num_requests_waiting"] == MAX_WAITING, 3)
    with pytest.raises(ServerUnavailable, match="the server is full"):
        client.generate(PROMPT)
    for call in calls:
        call.cancel()


def test_asyncio(served, reference):
    async def run():
        async with AsyncSpecdecClient(served.grpc_url) as client:
            assert await client.is_ready()
            many = [
                client.generate(PROMPT, max_tokens=24, num_draft_tokens=k, return_logprobs=True)
                for k in range(12)
            ]
            completions = await asyncio.gather(*many)
            doomed = asyncio.create_task(client.generate(PROMPT, max_tokens=1900, min_tokens=1900))
            await asyncio.sleep(0.2)
            doomed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await doomed
            return completions

    for completion in asyncio.run(run()):
        assert (list(completion.token_ids), list(completion.logprobs), completion.text) == (
            reference.bits
        )
    served.wait_idle(1)


def test_the_command_line(served, reference):
    command = [sys.executable, "-m", "specdec.client.cli", "generate", PROMPT]
    command += ["--url", served.grpc_url, "--raw", "-n", "24", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == reference.text()
