import json

import grpc
import numpy as np
import pytest

from specdec.client import RequestRejected
from specdec.client.protocol import ResponseReader, build_request
from specdec.speculation.contract import OUTPUTS
from support.fake_service import Call, final, tokens

ALWAYS = (
    "stream",
    "exclude_input_in_output",
    "return_output_ids",
    "return_num_input_tokens",
    "return_perf_metrics",
)


class NoContext(grpc.ServicerContext):
    """Only what `Call` needs to decode a request."""

    def add_callback(self, callback):
        return True


NoContext.__abstractmethods__ = frozenset()


def inputs(prompt="x", *, messages=None, input_ids=None, **options):
    request = build_request("speculative", prompt, messages, input_ids, options)
    return Call(request, NoContext()).inputs


def test_a_prompt_and_nothing_else():
    found = inputs("Grüße")
    assert found.pop("text_input") == ["Grüße"]
    assert found.pop("max_tokens") == [256]
    assert found == {name: [True] for name in ALWAYS}


def test_only_outputs_that_are_read_are_asked_for_and_the_server_has_them_all():
    declared = {field.name for field in OUTPUTS}
    plain = {o.name for o in build_request("speculative", "x", None, None, {}).outputs}
    more = build_request("speculative", "x", None, None, {"return_logprobs": True}).outputs
    assert plain < declared
    assert {o.name for o in more} - plain == {"output_log_probs"}


def test_every_option_has_its_tensor():
    found = inputs(
        max_tokens=7,
        min_tokens=1,
        temperature=1,
        top_k=3,
        top_p=0.5,
        min_p=0.25,
        seed=2**64 - 1,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.5,
        stop_words=["a", "ß"],
        bad_words=[],
        num_draft_tokens=0,
        adaptive=False,
        drafter="ngram",
        return_logprobs=True,
    )
    del found["text_input"]
    for name in ALWAYS:
        assert found.pop(name) == [True]
    assert found == {
        "max_tokens": [7],
        "min_tokens": [1],
        "temperature": [1.0],
        "top_k": [3],
        "top_p": [0.5],
        "min_p": [0.25],
        "seed": [2**64 - 1],
        "repetition_penalty": [1.5],
        "presence_penalty": [-0.5],
        "frequency_penalty": [0.5],
        "stop_words": ["a", "ß"],
        "bad_words": [],
        "num_draft_tokens": [0],
        "adaptive": [False],
        "drafter": ["ngram"],
        "return_log_probs": [True],
    }


def test_text_input_is_empty_beside_messages_and_ids():
    chat = [{"role": "user", "content": "Hé"}]
    found = inputs(None, messages=chat)
    assert (found["text_input"], json.loads(found["messages"][0])) == ([""], chat)
    found = inputs(None, input_ids=np.array([3, 1]).tolist())
    assert (found["text_input"], found["input_ids"]) == ([""], [3, 1])


def test_none_means_the_servers_default():
    assert "seed" not in inputs(seed=None)


@pytest.mark.parametrize("given", [{}, {"messages": [], "input_ids": [1]}, {"prompt": "x"}])
def test_one_kind_of_prompt(given):
    given = {"prompt": None, **given} if "prompt" not in given else {**given, "input_ids": [1]}
    with pytest.raises(RequestRejected, match=r"give one of .*: (0|2) of them"):
        inputs(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": "9"}, "max_tokens is '9': expected a 32-bit integer"),
        ({"max_tokens": 2**31}, "max_tokens is 2147483648: expected a 32-bit integer"),
        ({"max_tokens": True}, "max_tokens is True: expected a 32-bit integer"),
        ({"seed": -1}, "seed is -1: expected an unsigned 64-bit integer"),
        ({"top_k": 1.5}, "top_k is 1.5: expected a 32-bit integer"),
        ({"temperature": 1e39}, "temperature is 1e.39: expected a 32-bit number"),
        ({"stop_words": [1]}, r"stop_words is \[1\]: expected text"),
        ({"drafter": "\ud800"}, "drafter is '.ud800': expected text that UTF-8 can express"),
        ({"input_ids": [1.5]}, r"input_ids is \[1.5\]: expected a 32-bit integer"),
        ({"input_ids": ["a"] * 99}, r"^input_ids is .{,60}\.\.\.: expected a 32-bit integer$"),
        ({"topk": 1}, "unknown option 'topk': known are max_tokens, "),
    ],
)
def test_bad_options_are_named(options, message):
    prompt = None if "input_ids" in options else "x"
    with pytest.raises(RequestRejected, match=message):
        inputs(prompt, **options)


def test_times_are_those_of_the_first_and_last_token():
    now = iter([10.0, 10.25, 10.5, 11.5, 12.0])
    reader = ResponseReader(lambda: next(now))
    assert reader.read(tokens("", [], [], counts=(0, 0))).stats is None  # at 10.25: no token yet
    reader.read(tokens("a", [1], [False], counts=(0, 0)))
    last = reader.read(tokens("b", [2, 3], [True, True], counts=(4, 2), finish_reason="stop"))
    assert (last.stats.ttft_seconds, last.stats.total_seconds) == (0.5, 1.5)
    assert last.stats.tokens_per_second == 2.0
    assert last.stats.num_target_passes == 2  # a stop cut off the second pass's own token
    assert reader.read(final()) is None
    assert reader.is_complete
