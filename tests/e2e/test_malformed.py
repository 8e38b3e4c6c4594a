"""Bad requests get a short answer within a second, and touch nobody else."""

import re
import struct
import time

import numpy as np
import pytest

from support.serving import ALL, add_input, infer_request

pytestmark = pytest.mark.server


def request(**inputs):
    return infer_request(**{**ALL, "text_input": "a", "max_tokens": 4, **inputs})


def raw(data, *, name="text_input", datatype="BYTES", shape=(1, 1)):
    """The request with one input as bytes that no library would write."""
    made = request(**{name: None})
    made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.raw_input_contents.append(data)
    return made


def parameter(name, **value):
    made = request()
    for field, content in value.items():
        setattr(made.parameters[name], field, content)
    return made


def undeclared():
    made = request()
    add_input(made, "beam_size", np.array([[1]], np.int32))
    return made


def twice():
    made = request()
    add_input(made, "text_input", np.array([[b"b"]], np.object_))
    return made


TEXT = np.object_
OVER_GRPC = {
    "no text": (lambda: request(text_input=None), "text_input is missing: it is required"),
    "no max_tokens": (lambda: request(max_tokens=None), "max_tokens is missing: it is required"),
    "nothing": (infer_request, "missing required input"),
    "unknown model": (lambda: infer_request("gpt", text_input="a"), "'gpt' is not found"),
    "undeclared input": (undeclared, "unexpected inference input 'beam_size'"),
    "an input twice": (twice, "input 'text_input' already exists in request"),
    "wrong type": (
        lambda: request(max_tokens=np.array([[4]], np.int64)),
        "data-type is 'INT64', but model 'speculative' expects 'INT32'",
    ),
    "text as number": (
        lambda: raw(struct.pack("<i", 1), datatype="INT32"),
        "data-type is 'INT32', but model 'speculative' expects 'BYTES'",
    ),
    "no batch dim": (
        lambda: request(text_input=np.array([b"a"], TEXT)),
        "Expected [-1,1], got [1]",
    ),
    "two texts in a row": (
        lambda: request(text_input=np.array([[b"a", b"b"]], TEXT)),
        "Expected [-1,1], got [1,2]",
    ),
    "no element": (lambda: request(text_input=np.zeros((1, 0), TEXT)), "got [1,0]"),
    "batches differ": (
        lambda: request(text_input=np.array([[b"a"], [b"b"]], TEXT)),
        "batch size does not match",
    ),
    "too many prompts": (
        lambda: infer_request(
            text_input=np.array([[b"a"]] * 65, TEXT), max_tokens=np.ones((65, 1), np.int32)
        ),
        "must be <= 64",
    ),
    "empty text": (lambda: request(text_input=""), "the prompt is empty: give one of text_input"),
    "text and ids": (
        lambda: request(input_ids=[1, 2]),
        "both text_input and input_ids are given: give one of",
    ),
    "too long": (
        lambda: request(text_input="word " * 3000),
        "max_tokens 4 make 15004: allowed are 2048",
    ),
    "too many tokens": (lambda: request(max_tokens=100_000), "make 100001: allowed are 2048"),
    "negative tokens": (lambda: request(max_tokens=-5), "max_tokens is -5: allowed is 1 to"),
    "10 MB": (
        lambda: request(text_input="x" * 10_000_000),
        "text_input has 10000000 bytes: allowed are 1048576",
    ),
    "not UTF-8": (
        lambda: request(text_input=np.array([[b"ab\xff\xfe"]], TEXT)),
        "text_input is not UTF-8: byte 0xff at position 2",
    ),
    "unknown drafter": (
        lambda: request(drafter="magic"),
        "drafter is 'magic': allowed are none, auto, draft_model",
    ),
    "too many drafts": (lambda: request(num_draft_tokens=17), "is 17: allowed is 0 to 16"),
    "negative drafts": (lambda: request(num_draft_tokens=-1), "is -1: allowed is 0 to 16"),
    "NaN": (lambda: request(temperature=float("nan")), "temperature is nan: allowed is 0 to 100"),
    "infinite": (lambda: request(temperature=float("inf")), "temperature is inf: allowed is 0"),
    "top_p": (lambda: request(top_p=1.5), "top_p is 1.5: allowed is 0 to 1"),
    "min over max": (lambda: request(min_tokens=9), "min_tokens is 9: allowed is max_tokens, 4"),
    "two seeds": (lambda: request(seed=1, random_seed=2), "seed is 1 and random_seed is 2"),
    "negative id": (
        lambda: request(text_input="", input_ids=[-1]),
        "input_ids holds -1: allowed are 0 to 319",
    ),
    "large id": (
        lambda: request(text_input="", input_ids=[320]),
        "input_ids holds 320: allowed are 0 to 319",
    ),
    "messages": (lambda: request(text_input="", messages="{no"), "messages is not JSON"),
    "deep messages": (lambda: request(text_input="", messages="[" * 100_000), "nested too deeply"),
    "a role": (lambda: request(text_input="", messages='[{"role": 5}]'), "messages[0].role is 5"),
    "beams": (lambda: request(beam_width=2), "beam_width 2 is not supported: allowed is 1"),
    "a grammar": (
        lambda: request(guided_decoding_guide_type="json"),
        "guided_decoding_guide_type 'json' is not supported",
    ),
    "misspelt parameter": (
        lambda: parameter("max_tokenz", int64_param=3),
        "unknown parameter 'max_tokenz': the input is max_tokens",
    ),
    "wrong parameter": (
        lambda: parameter("ignore_eos", string_param="yes"),
        "ignore_eos is 'yes': allowed are true and false",
    ),
    "short data": (lambda: raw(b""), "expected 1 string elements"),
    "no length": (lambda: raw(b"a"), "incomplete string length indicator"),
    "long length": (lambda: raw(struct.pack("<I", 1 << 31) + b"a"), "incomplete string data"),
}
OVER_HTTP = {
    "empty body": (b"", "The document is empty"),
    "not JSON": (b'{"text_input": ', "failed to parse the request JSON buffer"),
    "a list": (b"[1, 2]", "non-object"),
    "no max_tokens": (b'{"text_input": "a"}', "missing required input(s) ['max_tokens']"),
    "max_tokens as text": (b'{"text_input": "a", "max_tokens": "4"}', "Unable to parse"),
    "NaN": (b'{"text_input": "a", "max_tokens": 4, "temperature": NaN}', "temperature is nan"),
    "overflow": (b'{"text_input": "a", "max_tokens": 1099511627776}', "max_tokens is 0"),
    "an object": (b'{"text_input": "a", "max_tokens": 4, "x": {"y": 1}}', "invalid type"),
    "other API": (b'{"text_input": "a", "max_tokens": 4, "stop": "x"}', "the input is stop_words"),
    "not UTF-8": (b'{"text_input": "a\xff", "max_tokens": 4}', "text_input is not UTF-8"),
    "parameter not UTF-8": (
        b'{"text_input": "a", "max_tokens": 4, "x": "\xff\xfe"}',
        "the request's parameters are not UTF-8",
    ),
    "key not UTF-8": (
        b'{"text_input": "a", "max_tokens": 4, "\xff": 1}',
        "the request's parameters are not UTF-8",
    ),
    "half a surrogate pair": (b'{"text_input": "a\\ud800", "max_tokens": 4}', "surrogate pair"),
}
# Odd, and still fine.
HARMLESS = {
    "unknown parameter": lambda: parameter("junk", string_param="x"),
    "quotes": lambda: parameter("junk", string_param='"}\\ \x01 \u2028 ü'),
    "NaN parameter": lambda: parameter("junk", double_param=float("nan")),
    "a NUL": lambda: request(text_input="a\0b"),
    "no stop words": lambda: request(stop_words=[""], bad_words=[""]),
    "an empty optional": lambda: request(input_ids=np.zeros((1, 0), np.int32)),
}


def assert_short(message, expected):
    assert expected in message
    assert len(message) < 600
    assert not re.search(r"Traceback|\.py|/\w+/", message), message


def refusal(served, made):
    begin = time.monotonic()
    answer = served.call(made).finish()
    assert time.monotonic() - begin < 1
    assert not answer.bodies
    assert len(answer.errors) == 1
    return answer.errors[0]


@pytest.mark.parametrize("name", OVER_GRPC)
def test_grpc(served, name):
    make, expected = OVER_GRPC[name]
    assert_short(refusal(served, make()), expected)


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize("name", OVER_HTTP)
def test_http(served, name, verb):
    body, expected = OVER_HTTP[name]
    begin = time.monotonic()
    response = served.post(verb, content=body)
    assert time.monotonic() - begin < 1
    assert response.status_code in (400, 500)
    assert_short(response.text, expected)


@pytest.mark.parametrize("name", HARMLESS)
def test_odd_requests_are_served(served, name):
    assert len(served.call(HARMLESS[name]()).finish().ids()) == 4


def test_a_stream_beside_them_is_untouched(served):
    """All of the above while one sequence runs: it goes on, and writes the same."""
    call = served.call(text_input="long", max_tokens=1200)
    call.read()
    for make, expected in OVER_GRPC.values():
        assert expected in refusal(served, make())
    for body, expected in OVER_HTTP.values():
        assert expected in served.post(content=body).text
    # It was still running when the last bad request was answered.
    assert served.settled_metrics()["num_requests_running"] == 1
    assert call.finish().bits == served.ask("long", max_tokens=1200, num_draft_tokens=0).bits
