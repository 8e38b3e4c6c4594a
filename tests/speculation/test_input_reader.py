"""Types, shapes and ranges: every refusal says what was found and what is allowed."""

import numpy as np
import pytest

from specdec.errors import InvalidRequest
from specdec.speculation.contract import MAX_BATCH_SIZE
from specdec.speculation.input_reader import InputReader, same, shown
from support.requests import column, tensors


def reader(**inputs):
    return InputReader(tensors(**inputs))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"text_input": None}, "text_input is missing: it is required"),
        ({"max_tokens": None}, "max_tokens is missing: it is required"),
        ({"max_tokens": np.zeros((1, 0), np.int32)}, "max_tokens is missing"),
        ({"tempreature": np.zeros((1, 1))}, "unknown input 'tempreature'"),
        (
            {"max_tokens": np.ones((1, 1), np.uint32)},
            "max_tokens is of type uint32: allowed is INT32",
        ),
        ({"temperature": np.ones((1, 1))}, "temperature is of type float64: allowed is FP32"),
        ({"stream": np.ones((1, 1), np.int32)}, "stream is of type int32: allowed is BOOL"),
        (
            {"text_input": np.ones((1, 1), np.uint8)},
            "text_input is of type uint8: allowed is STRING",
        ),
        (
            {"max_tokens": np.ones((1,), np.int32)},
            r"max_tokens has shape \[1\]: allowed is \[N, 1\]",
        ),
        (
            {"max_tokens": np.ones((1, 2), np.int32)},
            r"max_tokens has shape \[1, 2\]: allowed is \[N, 1\]",
        ),
        (
            {"lora_config": np.ones((1, 4, 2), np.int32)},
            r"lora_config has shape \[1, 4, 2\]: allowed is \[N, any, 3\]",
        ),
        ({"top_k": column([1, 2], np.int32)}, "top_k has 2 rows: allowed are 1 or 1"),
        (
            {"text_input": column(["a"] * (MAX_BATCH_SIZE + 1))},
            f"text_input holds {MAX_BATCH_SIZE + 1} prompts: allowed are {MAX_BATCH_SIZE}",
        ),
    ],
)
def test_a_wrong_name_type_or_shape_is_refused(inputs, message):
    with pytest.raises(InvalidRequest, match=message):
        reader(**inputs)


def test_an_array_without_elements_is_absent():
    found = reader(stop_words=np.zeros((1, 0), np.object_), top_k=np.zeros((0, 1), np.int32))
    assert "stop_words" not in found
    assert found.texts("stop_words", 0) == ()
    assert found.integer("top_k", 0, low=0) is None


def test_none_is_absent():
    assert "top_k" not in InputReader({**tensors(), "top_k": None})


def test_one_row_holds_for_all_prompts():
    found = reader(text_input=column(["a", "b"]), top_k=5, max_tokens=column([3, 4], np.int32))
    assert found.num_prompts == 2
    assert [found.integer("top_k", row, low=0) for row in (0, 1)] == [5, 5]
    assert [found.integer("max_tokens", row, low=0) for row in (0, 1)] == [3, 4]


@pytest.mark.parametrize(("value", "allowed"), [(-1, "0 to 9"), (10, "0 to 9")])
def test_a_whole_number_out_of_range(value, allowed):
    with pytest.raises(InvalidRequest, match=f"top_k is {value}: allowed is {allowed}"):
        reader(top_k=value).integer("top_k", 0, low=0, high=9)


def test_a_whole_number_without_upper_end():
    with pytest.raises(InvalidRequest, match="top_k is -5: allowed is 0 or more"):
        reader(top_k=-5).integer("top_k", 0, low=0)


def test_the_largest_seed_is_read_exactly():
    assert reader(seed=2**64 - 1).integer("seed", 0, low=0) == 2**64 - 1


@pytest.mark.parametrize("value", [-0.5, 1.5, float("nan"), float("inf"), -float("inf")])
def test_a_number_out_of_range_or_not_finite(value):
    with pytest.raises(InvalidRequest, match=r"top_p is .*: allowed is 0 to 1"):
        reader(top_p=value).number("top_p", 0, low=0, high=1)


def test_numbers_are_finite():
    assert reader(embedding_bias_weights=[1.0, -2.0]).numbers("embedding_bias_weights", 0) == (
        1.0,
        -2.0,
    )
    with pytest.raises(InvalidRequest, match="embedding_bias_weights holds nan"):
        reader(embedding_bias_weights=[1.0, float("nan")]).numbers("embedding_bias_weights", 0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"ab\xffcd", "text_input is not UTF-8: byte 0xff at position 2"),
        (b"\xe2\x82", "text_input is not UTF-8: byte 0xe2 at position 0"),
        ("\ud83d", "text_input has half of a surrogate pair"),
        (b"x" * 11, "text_input has 11 bytes: allowed are 10"),
        (7, "text_input holds 7: expected text"),
        (None, "text_input holds None: expected text"),
    ],
)
def test_text_is_utf8_and_not_too_long(value, message):
    array = np.empty((1, 1), np.object_)
    array[0, 0] = value
    with pytest.raises(InvalidRequest, match=message):
        reader(text_input=array).text("text_input", 0, max_bytes=10)


def test_text_may_come_as_str_or_as_fixed_width_arrays():
    for array in (np.array([["é"]]), np.array([["é".encode()]]), np.array([["é"]], np.object_)):
        assert reader(text_input=array).text("text_input", 0) == "é"


def test_a_list_of_texts_has_a_limit():
    assert reader(stop_words=["a", "", "b"]).texts("stop_words", 0) == ("a", "", "b")
    with pytest.raises(InvalidRequest, match="stop_words holds 200 items: allowed are 128"):
        reader(stop_words=["x"] * 200).texts("stop_words", 0)
    with pytest.raises(InvalidRequest, match="stop_words has 5000 bytes: allowed are 4096"):
        reader(stop_words=["x" * 5000]).texts("stop_words", 0)


def test_a_flag_holds_for_the_whole_request():
    two = column(["a", "b"])
    assert reader().flag("stream", default=True)
    assert reader(text_input=two, stream=column([True, True], np.bool_)).flag("stream")
    assert not reader(stream=False).flag("stream", default=True)
    with pytest.raises(InvalidRequest, match="stream differs between prompts"):
        reader(text_input=two, stream=column([True, False], np.bool_)).flag("stream")


def test_two_spellings_must_agree():
    assert same("a", None, "b", None) is None
    assert same("a", 0, "b", None) == same("a", None, "b", 0) == same("a", 0, "b", 0) == 0
    with pytest.raises(InvalidRequest, match="a is 1 and b is 2: they mean the same"):
        same("a", 1, "b", 2)


def test_errors_repeat_only_a_little_of_the_clients_text():
    assert len(shown("x" * 10_000)) < 100
    assert shown("a\nb") == r"'a\nb'"
