"""Inputs that cannot be honoured are refused by name, unless they ask for nothing."""

import numpy as np
import pytest

from specdec.errors import InvalidRequest
from specdec.speculation.contract import INPUTS
from specdec.speculation.input_reader import InputReader
from specdec.speculation.refusals import check_parameters, refuse_unsupported
from support.requests import column, tensors

ASKING = {
    "decoder_text_input": "hello",
    "image_url_input": "http://example.com/x.png",
    "guided_decoding_guide_type": "json_schema",
    "guided_decoding_guide": "{}",
    "beam_width": 2,
    "num_return_sequences": 3,
    "length_penalty": 0.5,
    "use_draft_logits": True,
    "return_context_logits": True,
    "return_generation_logits": True,
    "prompt_vocab_size": 8,
    "prompt_table_extra_id": 1,
    "lora_task_id": 7,
    "image_input": np.ones((1, 1, 3, 2, 2), np.float16),
    "image_bytes_input": np.ones((1, 1, 2, 2, 3), np.uint8),
    "video_bytes_input": np.ones((1, 1, 2, 2, 3), np.uint8),
    "prompt_embedding_table": np.ones((1, 2, 4), np.float16),
    "lora_weights": np.ones((1, 2, 4), np.float16),
    "lora_config": np.ones((1, 2, 3), np.int32),
}
NO_OPS = {
    "decoder_text_input": [""],
    "image_url_input": [""],
    "guided_decoding_guide_type": [""],
    "guided_decoding_guide": [""],
    "beam_width": [1],
    "num_return_sequences": [1],
    "length_penalty": [0.0, 1.0],
    "use_draft_logits": [False],
    "return_context_logits": [False],
    "return_generation_logits": [False],
    "prompt_vocab_size": [0],
    "prompt_table_extra_id": [0],
    "lora_task_id": [0],
    "image_input": [np.ones((1, 0, 3, 2, 2), np.float16)],
    "lora_weights": [np.ones((1, 0, 0), np.float16)],
}


@pytest.mark.parametrize("name", ASKING)
def test_what_cannot_be_done_is_refused_by_name(name):
    with pytest.raises(InvalidRequest, match=f"^{name} .*is not supported") as caught:
        refuse_unsupported(InputReader(tensors(**{name: ASKING[name]})))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NO_OPS.items() for value in values]
)
def test_values_that_ask_for_nothing_are_accepted(name, value):
    refuse_unsupported(InputReader(tensors(**{name: value})))


def test_one_prompt_of_a_batch_is_enough_to_refuse():
    inputs = tensors(text_input=column(["a", "b"]), beam_width=column([1, 4], np.int32))
    with pytest.raises(InvalidRequest, match="beam_width 4 is not supported: allowed is 1"):
        refuse_unsupported(InputReader(inputs))


def test_a_long_guide_is_not_repeated_in_full():
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(InputReader(tensors(guided_decoding_guide="x" * 4000)))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"accumulate_tokens": True, "id": "abc", "priority": 1, "timeout": 1000},
        {"sequence_id": 1, "sequence_start": True, "sequence_end": True},
        {"triton_enable_empty_final_response": True},
        {"user": "someone", "trace": 0.5},
    ],
)
def test_extras_that_fleets_send_are_let_pass(parameters):
    assert check_parameters(parameters) is False


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tempreature", "temperature"),
        ("Top_P", "top_p"),
        ("max_token", "max_tokens"),
        ("stop_word", "stop_words"),
        ("num_draft_token", "num_draft_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("stop", "stop_words"),
        ("n", "num_return_sequences"),
        ("logprobs", "return_log_probs"),
        ("runtime_top_k", "top_k"),
        ("sampling_parameters", "temperature, top_k"),
    ],
)
def test_a_misspelt_or_foreign_input_is_refused_with_the_right_name(name, meant):
    with pytest.raises(InvalidRequest, match=f"unknown parameter '{name}': the input is {meant}"):
        check_parameters({name: 1})


def test_every_input_sent_as_a_parameter_is_refused():
    # Over gRPC a parameter may have an input's name; it would be read by nobody.
    for field in INPUTS:
        with pytest.raises(InvalidRequest, match=f"parameter {field.name} is an input"):
            check_parameters({field.name: 1})


def test_ignore_eos_is_read():
    assert check_parameters({"ignore_eos": True}) is True
    assert check_parameters({"ignore_eos": False}) is False
    with pytest.raises(InvalidRequest, match="ignore_eos is 'yes': allowed are true and false"):
        check_parameters({"ignore_eos": "yes"})
