"""The edge to Triton, with its bindings played by support.fake_pb_utils."""

import importlib.util
import logging
import sys
import threading
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from specdec import frame, wire
from specdec.errors import Cancelled, DecoderFailed, InvalidRequest, Overloaded, SpecdecError
from support import fake_pb_utils as pb
from support.processes import wait_until


@pytest.fixture
def triton_io(monkeypatch):
    """A fresh copy of the module, whose Triton is the fake."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb.module())
    monkeypatch.setattr(pb.MetricFamily, "all", {})
    found = importlib.util.find_spec("specdec.speculation.triton_io")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def outbox(triton_io):
    outbox = triton_io.Outbox()
    yield outbox
    outbox.stop()


def sent_by(request, outbox):
    """All sends, once the outbox has done what was asked of it."""
    outbox.stop()
    return request.sender.sent


# ---- reading a request -------------------------------------------------------------------


def test_read_request(triton_io):
    request = pb.Request('{"ignore_eos": true}', text_input=np.array([[b"a"]]), seed=None)
    arrays, parameters = triton_io.read_request(request)
    assert list(arrays) == ["text_input"]  # an optional input without data is left out
    assert parameters == {"ignore_eos": True}
    assert triton_io.read_request(pb.Request()) == ({}, {})


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            pb.Request(UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid start byte")),
            "the request's parameters are not UTF-8: found byte 0xff",
        ),
        (pb.Request("{"), "the request's parameters are not JSON"),
        (pb.Request("", text_input=ValueError("/some/path")), "tensors cannot be read"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused(triton_io, request_, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        triton_io.read_request(request_)
    assert "/" not in str(caught.value)


# ---- sending -----------------------------------------------------------------------------


def test_responses_leave_in_order_from_one_thread(outbox):
    requests = [pb.Request() for _ in range(4)]
    clients = [outbox.open(request) for request in requests]
    for i in range(20):
        for client in clients:
            client.send(partial(dict, n=np.array([i])), final=i == 19)
    for request in requests:
        sent = sent_by(request, outbox)
        assert [int(r.output_tensors()[0].as_numpy()[0]) for r, _ in sent] == list(range(20))
        assert [flags for _, flags in sent] == [0] * 19 + [1]
        assert request.sender.threads == {"outbox"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("no"), pb.TritonError.INVALID_ARG),
        (Overloaded("full"), pb.TritonError.UNAVAILABLE),
        (Cancelled("gone"), pb.TritonError.CANCELLED),
        (DecoderFailed("broken"), pb.TritonError.INTERNAL),
        (SpecdecError("internal error"), pb.TritonError.INTERNAL),
    ],
)
def test_an_error_is_a_code_and_the_final_flag(outbox, error, code):
    request = pb.Request()
    outbox.open(request).fail(error)
    ((response, flags),) = sent_by(request, outbox)
    assert (response.error().message(), response.error().code()) == (str(error), code)
    assert flags == 1


def test_a_body_that_cannot_be_sent_still_ends_the_request(outbox, caplog):
    request = pb.Request()
    request.sender.faults = [RuntimeError("broken tensor")]
    with caplog.at_level(logging.CRITICAL):
        outbox.open(request).send(lambda: {"n": np.array([1])}, final=True)
        assert sent_by(request, outbox) == [(None, 1)]


def test_a_delta_that_cannot_be_sent_counts_as_cancelled(outbox):
    request = pb.Request()
    request.sender.faults = [RuntimeError("closed")]
    client = outbox.open(request)
    client.send(lambda: {"n": np.array([1])}, final=False)
    outbox.poll()
    wait_until(lambda: client.cancelled)
    client.fail(Cancelled("gone"))
    assert [flags for _, flags in sent_by(request, outbox)] == [1]


def test_deltas_leave_with_the_next_poll_or_with_what_ends_their_request(outbox):
    request, other = pb.Request(), pb.Request()
    client = outbox.open(request)
    client.send(lambda: {"n": np.array([1])}, final=False)
    client.send(lambda: None, final=False)  # nothing to send yet
    outbox.open(other).fail(InvalidRequest("no"))
    wait_until(lambda: other.sender.sent)
    assert [flags for _, flags in request.sender.sent] == [0]
    client.send(lambda: {"n": np.array([2])}, final=False)
    assert not outbox._wake.qsize()
    outbox.poll()
    wait_until(lambda: len(request.sender.sent) == 2)
    outbox.poll()
    assert len(sent_by(request, outbox)) == 2


def test_a_response_that_cannot_be_made_ends_the_request(outbox, caplog):
    request = pb.Request()
    with caplog.at_level(logging.CRITICAL):
        outbox.open(request).send(lambda: 1 / 0, final=True)
        assert sent_by(request, outbox) == [(None, 1)]


@pytest.mark.parametrize("asked", [set(), {"n"}])
def test_outputs_nobody_asked_for_are_held_until_the_response_is_sent(outbox, asked):
    request = pb.Request()
    request.sender.asked = asked
    client = outbox.open(request)
    for final in (False, True):
        client.send(lambda: {"n": np.array([1]), "m": np.array([2])}, final=final)
    sent = sent_by(request, outbox)
    assert [{t.name() for t in response.output_tensors()} for response, _ in sent] == [asked] * 2
    assert request.sender.freed == []


def test_a_request_is_let_go_of_with_its_final_flag(outbox):
    """It lies in shared memory; its client is part of a cycle that Python finds when it looks."""
    request = pb.Request()
    kept = [weakref.ref(request), weakref.ref(request.sender)]
    client = outbox.open(request)
    del request
    client.send(lambda: {"n": np.array([1])}, final=False)
    outbox.poll()
    wait_until(lambda: not outbox._items)
    assert all(reference() for reference in kept)
    client.fail(Cancelled("gone"))
    outbox.stop()
    assert not any(reference() for reference in kept)


# ---- cancelling --------------------------------------------------------------------------


def test_a_cancel_is_seen_at_the_next_poll(outbox):
    request, other = pb.Request(), pb.Request()
    client, neighbour = outbox.open(request), outbox.open(other)
    request.sender.cancelled = True
    assert not client.cancelled
    outbox.poll()
    wait_until(lambda: client.cancelled)
    assert not neighbour.cancelled


def test_a_request_is_not_looked_at_after_its_final_flag(outbox):
    """The fake asserts it; the real server ends with a segmentation fault."""
    request = pb.Request()
    client = outbox.open(request)
    client.send(lambda: {"n": np.array([1])}, final=True)
    outbox.poll()
    later = pb.Request()
    outbox.open(later)
    outbox.poll()
    outbox.stop()
    assert request.sender.num_polls == 0
    assert later.sender.num_polls >= 1


def test_a_fast_engine_does_not_put_off_the_look(outbox):
    request = pb.Request()
    client = outbox.open(request)
    request.sender.cancelled = True

    def make():
        if not client.cancelled:  # there is always one more delta
            client.send(make, final=False)

    client.send(make, final=False)
    outbox.poll()
    wait_until(lambda: client.cancelled)


def test_polls_do_not_pile_up(triton_io, outbox):
    """A slow look must not make the queue of a fast engine grow."""
    gate, request = threading.Event(), pb.Request()
    request.sender.is_cancelled = lambda: gate.wait(5) and False
    outbox.open(request)
    for _ in range(1000):
        outbox.poll()
    assert outbox._wake.qsize() <= 2
    gate.set()


# ---- calling a decoder -------------------------------------------------------------------

NUM_CACHED = {"num_cached": np.array([1], np.int32)}


def transport(triton_io, monkeypatch, answers):
    """A transport whose calls get `answers` in turn; returns it and the calls made."""
    calls = []

    def handler(inputs, wanted):
        assert wanted == [frame.OUTPUT]
        calls.append(frame.unpack(inputs[frame.INPUT], wire.INPUTS))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return pb.InferenceResponse(error=pb.TritonError(answer))
        return pb.InferenceResponse([pb.Tensor(frame.OUTPUT, frame.pack(answer, wire.OUTPUTS))])

    monkeypatch.setattr(pb.InferenceRequest, "handler", staticmethod(handler))
    return triton_io.BlsTransport("draft"), calls


def test_a_call_and_its_result_are_one_tensor_each(triton_io, monkeypatch):
    call, calls = transport(triton_io, monkeypatch, [{"info": np.array([b"{}"], object)}])
    found = call({"operation": np.array([b"describe"], object)}, ("info",))
    assert {name: array.tolist() for name, array in found.items()} == {"info": [b"{}"]}
    assert {name: array.tolist() for name, array in calls[0].items()} == {
        "operation": [b"describe"]
    }


@pytest.mark.parametrize("fault", ["no slot", pb.TritonModelException("no slot")])
def test_a_failed_call_names_the_model_and_may_be_repeated(triton_io, monkeypatch, fault):
    call, calls = transport(triton_io, monkeypatch, [fault, NUM_CACHED])
    with pytest.raises(DecoderFailed, match=r"^model draft: no slot$"):
        call({}, ())
    assert call({}, ("num_cached",))["num_cached"][0] == 1
    assert len(calls) == 2


@pytest.mark.parametrize("raises", [False, True])
def test_that_the_server_ends_is_noticed_within_a_second(triton_io, monkeypatch, raises):
    """Where the target runs in this process no call to it would be refused."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(triton_io.time, "monotonic", lambda: clock.now)
    words = ["Model 'specdec-nobody' is not ready."] * 2
    words += ["Model specdec-nobody - Error when running inference: Server not ready"] * 3
    answers = [pb.TritonModelException(text) if raises else text for text in words]
    _, calls = transport(triton_io, monkeypatch, answers)
    look = triton_io.EndingWatch()
    for clock.now in (100.0, 100.5, 100.9, 101.1, 101.9):
        look()
    assert len(calls) == 2
    for clock.now in (102.2, 102.3, 102.4):
        with pytest.raises(DecoderFailed, match="the server is shutting down"):
            look()


def test_a_dead_model_is_asked_only_now_and_then(triton_io, monkeypatch):
    dead = "Stub process 'draft_0_0' is not healthy."
    call, calls = transport(triton_io, monkeypatch, [dead, dead, NUM_CACHED])
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(triton_io.time, "monotonic", lambda: clock.now)
    for _ in range(5):
        with pytest.raises(DecoderFailed, match="model draft: "):
            call({}, ())
    assert len(calls) == 1
    clock.now += triton_io.DEAD_SECONDS + 1
    with pytest.raises(DecoderFailed):
        call({}, ())
    assert len(calls) == 2
    clock.now += triton_io.DEAD_SECONDS + 1  # an operator has reloaded it
    assert call({}, ("num_cached",))["num_cached"][0] == 1


def test_nothing_of_a_failed_call_stays_alive(triton_io, monkeypatch):
    """Its tensors lie in shared memory until Python lets go of request and response."""
    made = []

    def fail(inputs, wanted):
        response = pb.InferenceResponse(error=pb.TritonError("no slot"))
        made.extend([weakref.ref(response), *map(weakref.ref, inputs.values())])
        return response

    monkeypatch.setattr(pb.InferenceRequest, "handler", staticmethod(fail))
    call = triton_io.BlsTransport("draft")
    for _ in range(3):
        try:
            call({}, ())
        except DecoderFailed:
            continue
        pytest.fail("it did not raise")
    assert len(made) >= 3
    assert not any(reference() is not None for reference in made)
