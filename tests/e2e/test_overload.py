"""The waiting line is bounded; what does not fit is told so at once, the rest is served."""

import re
import time

import grpc
import numpy as np
import pytest

from support.processes import wait_until
from support.serving import ALL, MAX_RUNNING, MAX_WAITING, infer_request

pytestmark = pytest.mark.server

CAPACITY = MAX_RUNNING + MAX_WAITING


def test_the_line_is_bounded(served):
    begin = time.monotonic()
    calls = [served.call(text_input=f"request {i}", max_tokens=150) for i in range(CAPACITY + 16)]
    answers = [call.finish() for call in calls]
    accepted = [answer for answer in answers if not answer.errors]
    refused = [answer for answer in answers if answer.errors]
    assert CAPACITY <= len(accepted) < len(calls)
    assert all(len(answer.ids()) == 150 for answer in accepted)
    for answer in refused:
        found = re.fullmatch(
            r"the server is full: (\d+) running, (\d+) waiting, "
            r"at most 8 may wait; try again later",
            answer.errors[0],
        )
        assert int(found[1]) + int(found[2]) == CAPACITY
        assert answer.num_final == 1
    assert time.monotonic() - begin < 20


def test_the_code_is_unavailable(served):
    """Over gRPC for a client that asks for codes; HTTP's generate has one code for all errors."""
    calls = [served.call(text_input=f"request {i}", max_tokens=400) for i in range(CAPACITY)]
    wait_until(lambda: served.metrics()["num_requests_waiting"] == MAX_WAITING, 3)
    refused = served.stub.ModelStreamInfer(
        iter([infer_request(**{**ALL, "text_input": "one too many"})]),
        timeout=10,
        metadata=[("triton_grpc_error", "true")],
    )
    begin = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        list(refused)
    assert time.monotonic() - begin < 1
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "the server is full" in caught.value.details()
    response = served.post(json={"text_input": "one too many", "max_tokens": 4})
    assert response.is_error
    assert "the server is full" in response.json()["error"]
    for call in calls:
        call.cancel()


def test_a_batch_that_does_not_fit_is_refused_as_a_whole(served):
    def batch(size):
        prompts = np.array([[b"prompt %d" % i] for i in range(size)], dtype=np.object_)
        inputs = {
            "text_input": prompts,
            "max_tokens": np.full((size, 1), 2, np.int32),
            "return_output_ids": np.ones((size, 1), np.bool_),
        }
        return served.call(infer_request(**inputs)).finish()

    assert batch(CAPACITY).ids(CAPACITY - 1)
    before = served.settled_metrics()
    answer = batch(CAPACITY + 1)
    assert "the server is full" in answer.errors[0]
    assert answer.num_final == 1
    assert not answer.bodies
    assert served.settled_metrics()["prompt_tokens_total"] == before["prompt_tokens_total"]
