import gc
import threading
import time

import pytest

import specdec.client
from specdec.client import RequestCancelled, RequestTimeout, ServerUnavailable, SpecdecClient
from specdec.launcher.ports import Ports
from support.answers import ERRORS
from support.processes import wait_until


@pytest.fixture
def connect(service):
    clients = []

    def connect(model="speculative"):
        clients.append(SpecdecClient(service.url, model))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def test_stream(connect):
    chunks = list(connect().stream("Say hello"))
    assert [c.text for c in chunks] == ["Hé", "llo, wörld"]
    assert [c.token_ids for c in chunks] == [(5,), (6, 7, 8)]
    assert [c.from_draft for c in chunks] == [(False,), (True, True, False)]
    assert [c.finish_reason for c in chunks] == [None, "length"]
    assert chunks[0].stats is None
    stats = chunks[1].stats
    assert (stats.num_input_tokens, stats.num_output_tokens) == (3, 4)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 2)
    assert stats.acceptance_rate == pytest.approx(2 / 3)
    assert stats.tokens_per_pass == 2.0  # 4 tokens of 2 passes
    assert 0 < stats.ttft_seconds <= stats.total_seconds
    assert stats.tokens_per_second == pytest.approx(4 / stats.total_seconds)


def test_generate_joins(connect):
    done = connect().generate("Say hello")
    assert done.text == "Héllo, wörld"
    assert done.token_ids == (5, 6, 7, 8)
    assert done.from_draft == (False, True, True, False)
    assert done.finish_reason == "length"
    assert done.stats.num_output_tokens == 4


def test_the_final_flag_may_come_with_data(connect):
    assert connect("final_with_data").generate("x").text == "all"


def test_tokens_without_text_are_not_lost(connect):
    chunks = list(connect("no_text").stream("x"))
    assert [c.text for c in chunks] == ["", "é"]
    assert connect("no_text").generate("x").token_ids == (1, 2)


def test_logprobs(connect):
    assert connect("logprobs").generate("x", return_logprobs=True).logprobs == (-0.5, -0.25)


@pytest.mark.parametrize(("model", "kind", "message"), ERRORS)
def test_errors_are_typed(connect, model, kind, message):
    with pytest.raises(getattr(specdec.client, kind), match=message) as caught:
        connect(model).generate("x")
    assert caught.value.__suppress_context__ or caught.value.__cause__ is None


def test_an_error_comes_after_the_chunks_before_it(connect):
    stream = connect("fails").stream("x")
    assert next(stream).text == "x"
    with pytest.raises(specdec.client.ServerFailed):
        next(stream)


def test_nobody_listens():
    url = f"127.0.0.1:{Ports.free().grpc}"
    with SpecdecClient(url) as client:
        with pytest.raises(ServerUnavailable, match=f"no server answers at {url}"):
            client.generate("x")
        assert not client.is_ready()


def test_timeout_of_the_whole_answer(connect, service):
    stream = connect("hangs").stream("x", timeout=0.5)
    assert next(stream).text == "first"
    begin = time.monotonic()
    with pytest.raises(RequestTimeout):
        next(stream)
    assert time.monotonic() - begin < 2
    assert service.calls[0].cancelled.wait(2)


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_leaving_early_cancels_only_that_request(connect, service, how):
    client = connect("hangs")
    other, stream = client.stream("other"), client.stream("x")
    assert next(other).text == next(stream).text == "first"
    left = next(c for c in service.calls if c.inputs["text_input"] == ["x"])
    if how == "close":
        stream.close()
        assert list(stream) == []
    elif how == "with":
        with stream:
            pass
    else:
        del stream
        gc.collect()
    assert left.cancelled.wait(2)
    assert not next(c for c in service.calls if c is not left).cancelled.is_set()


def test_close_from_another_thread_wakes_the_reader(connect):
    stream = connect("hangs").stream("x")
    next(stream)
    threading.Timer(0.2, stream.close).start()
    with pytest.raises(RequestCancelled):
        next(stream)


def test_many_threads_share_a_client(connect, service):
    client, texts = connect(), []
    threads = [
        threading.Thread(target=lambda i=i: texts.append(client.generate(str(i)).text))
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert texts == ["Héllo, wörld"] * 12
    sent = sorted(int(c.inputs["text_input"][0]) for c in service.calls)
    assert sent == list(range(12))


def test_ready(connect):
    assert connect().is_ready()
    assert not connect("none").is_ready()


def test_metadata_is_sent(service):
    with SpecdecClient(service.url, metadata=[("triton-grpc-protocol-key", "k")]) as client:
        client.generate("x")
    wait_until(lambda: service.metadata)
    assert service.metadata[0]["triton-grpc-protocol-key"] == "k"
    assert service.metadata[0]["triton_grpc_error"] == "true"
