"""Exactly one final flag on every path. (A failing target is in test_faults.)

A request whose flag is missing would hold its stream open until the deadline; a second flag is an
error in Triton's bindings, which the log would show.
"""

import numpy as np
import pytest

from support.serving import ALL, infer_request
from support.triton_client import Stream, is_final

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def quiet_log(served):
    """Our side reports what it could not send."""
    begin = len(served.log())
    yield
    assert "sending a response failed" not in served.log()[begin:]


PATHS = {
    "streamed": {},
    "in one piece": {"stream": False},
    "one token": {"max_tokens": 1},
    "without speculation": {"num_draft_tokens": 0},
    "a stop word": {"stop_words": [" ", "e", "t", "a"]},
    "refused": {"max_tokens": -1},
    "refused, in one piece": {"max_tokens": -1, "stream": False},
}


@pytest.mark.parametrize("model", ["speculative", "ensemble"])
@pytest.mark.parametrize("path", PATHS)
def test_one_flag_on_the_last_message(served, path, model):
    inputs = {**ALL, "text_input": "the fox", "max_tokens": 64, **PATHS[path]}
    call = served.call(infer_request(model, **inputs))
    answer = call.finish()
    assert answer.num_final == 1
    assert call.messages[-1].infer_response.parameters["triton_final_response"].bool_param
    assert len(answer.errors) == path.startswith("refused")
    if not inputs["stream"]:
        assert len(answer.bodies) + len(answer.errors) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_one_flag_for_a_batch(served, stream):
    """Its prompts end at different times."""
    inputs = {
        "text_input": np.array([[b"one"], [b"two"], [b"three"]], np.object_),
        "max_tokens": np.array([[3], [30], [12]], np.int32),
        "end_id": np.full((3, 1), -1, np.int32),
        "stream": np.full((3, 1), stream),
        "return_output_ids": np.full((3, 1), True),
    }
    answer = served.call(infer_request(**inputs)).finish()
    assert answer.num_final == 1
    assert [len(answer.ids(i)) for i in range(3)] == [3, 30, 12]
    assert [answer.finish_reason(i) for i in range(3)] == ["length"] * 3


def test_no_empty_response_unless_asked(served):
    made = infer_request(**ALL, text_input="the fox")
    del made.parameters["triton_enable_empty_final_response"]
    call = served.call(made)
    call.finish()
    assert all(message.infer_response.outputs for message in call.messages)


def test_each_of_many_on_one_stream(served):
    """tritonclient's usual way: one stream, many requests; some refused, some cancelled."""
    stream = Stream(served.grpc_url)
    for i in range(12):
        max_tokens = -1 if i % 4 == 3 else 5 + i
        stream.send(request_id=f"r{i}", text_input=f"prompt {i}", max_tokens=max_tokens, end_id=-1)
    finals, errors = [], []
    while len(finals) + len(errors) < 12:
        result, error = stream.read()
        if error is not None:
            errors.append(error.message())
        elif is_final(result):
            finals.append(result.get_response().id)
    stream.send(request_id="late", text_input="cancelled", max_tokens=1900, end_id=-1, stream=True)
    stream.read()
    stream.close(cancel=True)
    left = list(stream.results.queue)
    assert sorted(finals) == sorted(f"r{i}" for i in range(12) if i % 4 != 3)
    assert len(errors) == 3
    assert all("max_tokens is -1" in error for error in errors)
    assert not any(result.get_response().id in finals for result, _ in left if result is not None)
