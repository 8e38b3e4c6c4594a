import asyncio

import pytest

import specdec.client
from specdec.client import (
    AsyncSpecdecClient,
    RequestCancelled,
    RequestRejected,
    RequestTimeout,
    ServerUnavailable,
)
from specdec.launcher.ports import Ports
from support.answers import ERRORS


def run(service, model, use):
    """Run `await use(client)` in a new event loop."""

    async def main():
        async with AsyncSpecdecClient(service.url, model) as client:
            return await use(client)

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_stream(service):
    async def use(client):
        return [c async for c in client.stream("Say hello")]

    chunks = run(service, "speculative", use)
    assert [c.text for c in chunks] == ["Hé", "llo, wörld"]
    assert [c.token_ids for c in chunks] == [(5,), (6, 7, 8)]
    assert chunks[0].finish_reason is None
    assert chunks[1].finish_reason == "length"
    assert chunks[1].stats.tokens_per_pass == 2.0


def test_requests_run_at_once(service):
    async def use(client):
        return await asyncio.gather(*(client.generate(str(i)) for i in range(12)))

    assert [c.text for c in run(service, "speculative", use)] == ["Héllo, wörld"] * 12


@pytest.mark.parametrize(("model", "kind", "message"), ERRORS)
def test_errors_are_typed(service, model, kind, message):
    with pytest.raises(getattr(specdec.client, kind), match=message):
        run(service, model, lambda client: client.generate("x"))


def test_refused_before_it_is_sent(service):
    async def use(client):
        client.stream("x", nonsense=1)

    with pytest.raises(RequestRejected, match="unknown option 'nonsense'"):
        run(service, "speculative", use)
    assert service.calls == []


def test_nobody_listens():
    async def main():
        async with AsyncSpecdecClient(f"127.0.0.1:{Ports.free().grpc}") as client:
            assert not await client.is_ready()
            await client.generate("x")

    with pytest.raises(ServerUnavailable, match="no server answers"):
        asyncio.run(main())


def test_timeout(service):
    with pytest.raises(RequestTimeout):
        run(service, "hangs", lambda client: client.generate("x", timeout=0.5))
    assert service.calls[0].cancelled.wait(2)


def test_leaving_early_cancels_only_that_request(service):
    async def use(client):
        other = client.stream("other")
        await anext(other)
        async with client.stream("x") as stream:
            assert (await anext(stream)).text == "first"
        assert [c async for c in stream] == []
        left = next(c for c in service.calls if c.inputs["text_input"] == ["x"])
        assert await asyncio.to_thread(left.cancelled.wait, 2)
        assert not next(c for c in service.calls if c is not left).cancelled.is_set()

    run(service, "hangs", use)


def test_a_cancelled_task_cancels_its_request(service):
    async def use(client):
        task = asyncio.create_task(client.generate("x"))
        while not service.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(service.calls[0].cancelled.wait, 2)

    run(service, "hangs", use)


@pytest.mark.parametrize("what", ["stream", "client"])
def test_close_by_another_task_wakes_the_reader(service, what):
    async def use(client):
        stream = client.stream("x")
        await anext(stream)
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.1)
        await (stream.aclose() if what == "stream" else client.close())
        await reader

    with pytest.raises(RequestCancelled):
        run(service, "hangs", use)


def test_ready(service):
    assert run(service, "speculative", lambda client: client.is_ready())
    assert not run(service, "none", lambda client: client.is_ready())
