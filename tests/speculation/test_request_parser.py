"""Whole requests: prompts, ends, speculation, options, and what real clients send."""

import json

import numpy as np
import pytest

from specdec.config import SpeculativeConfig
from specdec.errors import InvalidRequest
from specdec.speculation.contract import INPUTS, NUMPY_TYPES
from support.requests import LIMITS, column, parse_inputs
from support.text import tiny_tokenizer

CHAT = json.dumps([{"role": "user", "content": "the fox"}])


def one(parameters=None, **inputs):
    return parse_inputs(parameters, **inputs).prompts[0]


# ---- the prompt ------------------------------------------------------------------------------


def test_raw_text_is_encoded_as_it_is():
    assert one(text_input="the fox").prompt_ids == tiny_tokenizer().encode("the fox")


def test_chat_goes_through_the_template():
    found = one(text_input="", messages=CHAT)
    expected = tiny_tokenizer().encode_chat([{"role": "user", "content": "the fox"}])
    assert found.prompt_ids == expected


def test_ids_are_taken_as_they_are():
    assert one(text_input="", input_ids=[5, 6, 7]).prompt_ids == (5, 6, 7)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"text_input": ""}, "the prompt is empty: give one of text_input, messages, input_ids"),
        ({"messages": CHAT}, "both text_input and messages are given: give one of"),
        ({"input_ids": [5]}, "both text_input and input_ids are given"),
        (
            {"text_input": "", "messages": CHAT, "input_ids": [5]},
            "both messages and input_ids are given",
        ),
        ({"text_input": "", "messages": "hello"}, "messages is not JSON"),
        ({"text_input": "", "input_ids": [5, 320]}, "input_ids holds 320: allowed are 0 to 319"),
        ({"text_input": "", "input_ids": [-1]}, "input_ids holds -1: allowed are 0 to 319"),
    ],
)
def test_exactly_one_prompt_is_wanted(inputs, message):
    with pytest.raises(InvalidRequest, match=message):
        parse_inputs(**inputs)


@pytest.mark.parametrize("name", ["text_input", "messages"])
def test_a_long_prompt_is_refused_before_it_is_tokenised(name, monkeypatch):
    monkeypatch.setattr(tiny_tokenizer(), "encode", lambda text: pytest.fail("tokenised"))
    inputs = {"text_input": "", name: "x" * 10_000_000}
    with pytest.raises(InvalidRequest, match=f"{name} has 10000000 bytes: allowed are 1048576"):
        parse_inputs(**inputs)


def test_the_byte_limit_is_the_configs():
    config = SpeculativeConfig(max_prompt_bytes=3)
    assert one(text_input="abc", config=config).prompt_ids
    with pytest.raises(InvalidRequest, match="text_input has 4 bytes: allowed are 3"):
        parse_inputs(text_input="abcd", config=config)


# ---- lengths and ends ----------------------------------------------------------------------


def test_prompt_and_output_must_fit():
    num_prompt = len(tiny_tokenizer().encode("the fox"))
    room = LIMITS.max_sequence_length - num_prompt
    assert one(max_tokens=room).max_tokens == room
    with pytest.raises(
        InvalidRequest,
        match=f"prompt's {num_prompt} tokens and max_tokens {room + 1} make 129: allowed are 128",
    ):
        parse_inputs(max_tokens=room + 1)


@pytest.mark.parametrize("value", [0, -1])
def test_at_least_one_token_is_wanted(value):
    with pytest.raises(InvalidRequest, match=f"max_tokens is {value}: allowed is 1 to"):
        parse_inputs(max_tokens=value)


@pytest.mark.parametrize(
    ("inputs", "parameters", "expected"),
    [
        ({}, {}, (2, 0)),
        ({"end_id": 7}, {}, (7,)),
        ({"end_id": -1}, {}, ()),
        ({}, {"ignore_eos": True}, ()),
        ({"end_id": 2}, {"ignore_eos": True}, ()),
    ],
)
def test_end_ids(inputs, parameters, expected):
    assert one(parameters, **inputs).sampling.end_ids == expected


@pytest.mark.parametrize("value", [-2, 320])
def test_an_end_id_outside_the_vocabulary_is_refused(value):
    with pytest.raises(InvalidRequest, match=f"end_id is {value}: allowed is -1 to 319"):
        parse_inputs(end_id=value)


def test_stop_words_without_empty_or_repeated_ones():
    assert one(stop_words=["b", "", "a", "b"]).stop_words == ("b", "a")
    assert one(stop_words=[""]).stop_words == ()
    assert one().stop_words == ()


# ---- speculation -----------------------------------------------------------------------------


def test_speculation_is_the_servers_unless_set():
    found = one()
    assert (found.num_draft_tokens, found.drafter) == (None, None)
    found = one(num_draft_tokens=0, drafter="ngram")
    assert (found.num_draft_tokens, found.drafter) == (0, "ngram")
    assert one(drafter="").drafter is None


@pytest.mark.parametrize("value", [-1, 17, 1000])
def test_a_draft_length_beyond_the_cap_names_the_cap(value):
    with pytest.raises(InvalidRequest, match=f"num_draft_tokens is {value}: allowed is 0 to 16"):
        parse_inputs(num_draft_tokens=value)


def test_an_unknown_drafter_lists_what_there_is():
    with pytest.raises(InvalidRequest, match="drafter is 'eagle': allowed are none, ngram"):
        parse_inputs(drafter="eagle")


# ---- batches ----------------------------------------------------------------------------------


def test_each_prompt_of_a_batch_has_its_own_values():
    parsed = parse_inputs(
        text_input=column(["the fox", "the lazy dog"]),
        max_tokens=column([3, 5], np.int32),
        num_draft_tokens=column([0, 4], np.int32),
        stop_words=np.array([[b"x", b"y"], [b"z", b""]], np.object_),
        temperature=0.5,
        seed=9,
    )
    first, second = parsed.prompts
    assert first.prompt_ids == tiny_tokenizer().encode("the fox")
    assert second.prompt_ids == tiny_tokenizer().encode("the lazy dog")
    assert (first.max_tokens, second.max_tokens) == (3, 5)
    assert (first.num_draft_tokens, second.num_draft_tokens) == (0, 4)
    assert (first.stop_words, second.stop_words) == (("x", "y"), ("z",))
    assert first.sampling == second.sampling
    assert first.sampling.seed == 9


def test_prompts_of_a_batch_without_seed_differ():
    parsed = parse_inputs(text_input=column(["a", "a"]), max_tokens=column([3, 3], np.int32))
    assert len({prompt.sampling.seed for prompt in parsed.prompts}) == 2


def test_one_bad_prompt_refuses_the_batch():
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        parse_inputs(text_input=column(["a", ""]), max_tokens=column([3, 3], np.int32))


# ---- options ----------------------------------------------------------------------------------


def test_nothing_extra_comes_back_unless_asked():
    options = parse_inputs().options
    assert options.exclude_input_in_output
    assert options.prompt_texts == ()
    assert not any(
        getattr(options, name)
        for name in options._fields
        if name.startswith("return_") or name == "stream"
    )


@pytest.mark.parametrize(
    "name",
    [
        "stream",
        "return_log_probs",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "return_perf_metrics",
        "return_output_ids",
    ],
)
def test_options_are_read(name):
    assert getattr(parse_inputs(**{name: True}).options, name)
    assert not getattr(parse_inputs(**{name: False}).options, name)


def test_stream_has_an_older_spelling():
    assert parse_inputs(streaming=True).options.stream
    assert parse_inputs(streaming=True, stream=True).options.stream
    with pytest.raises(InvalidRequest, match="stream is True and streaming is False"):
        parse_inputs(stream=True, streaming=False)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"text_input": "the fox"}, "the fox"),
        ({"text_input": "", "input_ids": [*tiny_tokenizer().encode("dog")]}, "dog"),
        (
            {"text_input": "", "messages": CHAT},
            "<|im_start|>user\nthe fox<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_the_answer_starts_with_the_prompt_when_asked(inputs, expected):
    options = parse_inputs(exclude_input_in_output=False, **inputs).options
    assert options.prompt_texts == (expected,)


def test_a_stream_never_starts_with_the_prompt():
    # NVIDIA's own client always sends exclude_input_in_output, false by default, and expects
    # the prompt only when it does not stream.
    options = parse_inputs(exclude_input_in_output=False, stream=True).options
    assert options.prompt_texts == ()


def test_pad_id_is_kept_for_filling_up():
    assert parse_inputs(pad_id=50256).options.pad_id == 50256
    assert parse_inputs().options.pad_id == -1


# ---- nothing is lost -------------------------------------------------------------------------

VALUES = {"STRING": b"json", "BOOL": True}  # of other types: 3, and 0.5


def asking(field):
    """The input with a value that is no default."""
    value = VALUES.get(field.datatype, 0.5 if field.datatype.startswith("FP") else 3)
    value = False if field.name == "exclude_input_in_output" else value
    shape = (1, *(max(dim, 1) for dim in field.dims))
    return np.full(shape, value, NUMPY_TYPES[field.datatype])


# The finish reason is always returned.
@pytest.mark.parametrize("field", [f for f in INPUTS if f.name != "return_finish_reason"])
def test_every_declared_input_changes_the_request_or_is_refused(field):
    if field.name == "random_seed":
        assert one(random_seed=3).sampling.seed == 3
        return
    without = parse_inputs(seed=1)
    assert parse_inputs(seed=1) == without
    try:
        found = parse_inputs(**{"seed": 1, field.name: asking(field)})
    except InvalidRequest as error:
        assert field.name in str(error)  # noqa: PT017  (not all are refused)
    else:
        assert found != without


# ---- what real clients send ------------------------------------------------------------------

PAYLOADS = {
    "triton_cli": {"stop_words": "", "bad_words": ""},
    "genai-perf": {
        "max_tokens": 16,
        "min_length": 16,
        "stream": True,
        "exclude_input_in_output": True,
    },
    "litellm": {"bad_words": [""], "stop_words": [""], "stream": False},
    "langchain": {
        "top_k": 1,
        "top_p": 0.0,
        "temperature": 1.0,
        "length_penalty": 1.0,
        "repetition_penalty": 1.0,
        "random_seed": 0,
        "beam_width": 1,
        "stream": True,
    },
    "openai frontend": {
        "stream": True,
        "stop_words": ["\n\n", "END"],
        "top_p": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "temperature": 1.0,
        "seed": 7,
        "exclude_input_in_output": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    },
    "end_to_end_grpc_client": {
        "stream": False,
        "beam_width": 1,
        "temperature": 1.0,
        "num_return_sequences": 1,
        "num_draft_tokens": 5,
        "use_draft_logits": False,
        "end_id": 2,
        "pad_id": 2,
        "exclude_input_in_output": False,
        "return_perf_metrics": True,
    },
}
PARAMETERS = {
    "vllm benchmark": {"accumulate_tokens": True, "ignore_eos": True},
    "litellm": {"id": "42"},
}


@pytest.mark.parametrize("client", PAYLOADS)
def test_what_real_clients_send_is_accepted(client):
    assert len(parse_inputs(**PAYLOADS[client]).prompts) == 1


def test_what_real_clients_mean():
    assert one(**PAYLOADS["litellm"]).stop_words == ()
    assert one(**PAYLOADS["langchain"]).sampling.temperature == 0.0
    assert one(**PAYLOADS["genai-perf"]).sampling.min_tokens == 16
    assert one(**PAYLOADS["openai frontend"]).stop_words == ("\n\n", "END")
    assert one(**PAYLOADS["openai frontend"]).sampling.seed == 7
    assert one(**PAYLOADS["end_to_end_grpc_client"]).num_draft_tokens == 5
    assert one(PARAMETERS["vllm benchmark"], temperature=0.0).sampling.end_ids == ()
    assert one(PARAMETERS["litellm"]).sampling.end_ids == LIMITS.end_ids


def test_tools_of_the_openai_frontend_are_refused_by_name():
    with pytest.raises(InvalidRequest, match="guided_decoding_guide_type 'json_schema'"):
        parse_inputs(guided_decoding_guide_type="json_schema", guided_decoding_guide="{}")


# ---- the salt of what is left behind ---------------------------------------------------------


def test_a_salt_is_62_bits_of_its_text_and_none_is_0():
    salts = [one(cache_salt=text).cache_salt for text in ("tenant 1", "tenant 2", "tenant 1", "")]
    assert salts[0] == salts[2] != salts[1]
    assert all(0 < salt < 1 << 62 for salt in salts[:3])
    assert salts[3] == one().cache_salt == 0


def test_a_long_salt_is_refused():
    with pytest.raises(InvalidRequest, match="cache_salt has 5000 bytes: allowed are 4096"):
        one(cache_salt="x" * 5000)
