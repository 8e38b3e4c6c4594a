"""Sampling inputs: defaults, conventions and ranges."""

import pytest

from specdec.errors import InvalidRequest
from support.requests import parse_inputs
from support.text import tiny_tokenizer


def sampling(**inputs):
    return parse_inputs(**inputs).prompts[0].sampling


def shape(**inputs):
    found = sampling(**inputs)
    return (found.temperature, found.top_k, round(found.top_p, 6), round(found.min_p, 6))


GREEDY = (0.0, 0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, GREEDY),
        ({"temperature": 0.0}, GREEDY),
        ({"temperature": 0.0, "top_k": 50, "top_p": 0.9}, GREEDY),
        ({"top_k": 1}, GREEDY),
        ({"top_k": 1, "temperature": 1.0, "top_p": 0.0}, GREEDY),  # LangChain's defaults
        ({"top_p": 0.0}, GREEDY),
        ({"top_p": 0.0, "temperature": 0.5}, GREEDY),
        ({"temperature": 0.5}, (0.5, 0, 1.0, 0.0)),
        ({"top_k": 40}, (1.0, 40, 1.0, 0.0)),
        ({"top_k": 0}, (1.0, 0, 1.0, 0.0)),
        ({"top_k": -1, "temperature": 2.0}, (2.0, 0, 1.0, 0.0)),
        ({"top_p": 0.9}, (1.0, 0, 0.9, 0.0)),
        ({"top_p": 1.0}, (1.0, 0, 1.0, 0.0)),
        ({"min_p": 0.1}, (1.0, 0, 1.0, 0.1)),
        ({"temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.2}, (0.25, 7, 0.5, 0.2)),
    ],
)
def test_greedy_unless_asked_otherwise(inputs, expected):
    assert shape(**inputs) == expected


def test_logprobs_are_computed_where_they_are_returned():
    assert sampling(return_log_probs=True).logprobs
    assert not sampling(return_log_probs=False).logprobs
    assert not sampling().logprobs


def test_penalties_are_off_unless_given():
    found = sampling()
    assert (found.repetition_penalty, found.presence_penalty, found.frequency_penalty) == (1, 0, 0)
    found = sampling(repetition_penalty=1.5, presence_penalty=-0.5, frequency_penalty=2.0)
    assert found.repetition_penalty == 1.5
    assert found.presence_penalty == -0.5
    assert found.frequency_penalty == 2.0


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1: allowed is 0 to 100"),
        ({"temperature": float("nan")}, "temperature is nan: allowed is 0 to 100"),
        ({"temperature": 1e-6}, r"temperature is 1e-06: allowed is 0 \(greedy\) or 0.001 to 100"),
        ({"top_k": -2}, "top_k is -2: allowed is -1 to"),
        ({"top_p": 1.5}, "top_p is 1.5: allowed is 0 to 1"),
        ({"min_p": -0.5}, "min_p is -0.5: allowed is 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0: allowed is 0.01 to 100"),
        ({"presence_penalty": float("inf")}, "presence_penalty is inf"),
        ({"frequency_penalty": 1e9}, "frequency_penalty is 1e[+]09: allowed is -100 to 100"),
        ({"min_tokens": -1}, "min_tokens is -1: allowed is 0 to"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9: allowed is max_tokens, 8"),
        ({"min_tokens": 1, "min_length": 2}, "min_tokens is 1 and min_length is 2"),
        ({"seed": 1, "random_seed": 2}, "seed is 1 and random_seed is 2: they mean the same"),
        (
            {"embedding_bias_words": ["a", "b"], "embedding_bias_weights": [1.0]},
            "embedding_bias_words has 2 items and embedding_bias_weights 1: they go in pairs",
        ),
        (
            {"embedding_bias_words": ["a"], "embedding_bias_weights": [1e9]},
            "embedding_bias_weights holds 1e[+]09 for 'a': allowed is -10000 to 10000",
        ),
    ],
)
def test_out_of_range_says_what_is_allowed(inputs, message):
    with pytest.raises(InvalidRequest, match=message):
        sampling(**inputs)


def test_a_seed_is_kept_and_a_missing_one_is_random():
    assert sampling(seed=0).seed == 0
    assert sampling(random_seed=2**64 - 1).seed == 2**64 - 1
    assert sampling(seed=5, random_seed=5).seed == 5
    found = {sampling().seed for _ in range(4)}
    assert len(found) == 4
    assert all(0 <= seed < 2**64 for seed in found)


def test_min_tokens_has_an_older_spelling():
    assert sampling(min_length=8).min_tokens == sampling(min_tokens=8).min_tokens == 8
    assert sampling().min_tokens == 0


def test_bad_words_are_banned_with_and_without_a_space():
    tokenizer = tiny_tokenizer()
    assert sampling(bad_words=["fox"]).bad_words == (
        tokenizer.encode_plain("fox"),
        tokenizer.encode_plain(" fox"),
    )
    assert sampling(bad_words=[" fox"]).bad_words == (tokenizer.encode_plain(" fox"),)
    assert sampling(bad_words=[""]).bad_words == ()
    assert sampling(bad_words="").bad_words == ()


def test_bias_is_added_to_each_token_of_a_word():
    tokenizer = tiny_tokenizer()
    found = sampling(embedding_bias_words=["aa", "ab", ""], embedding_bias_weights=[1.0, -0.5, 9.0])
    a, b = tokenizer.encode_plain("a")[0], tokenizer.encode_plain("b")[0]
    assert tokenizer.encode_plain("aa") == (a, a), "else the test means nothing"
    assert tokenizer.encode_plain("ab") == (a, b), "else the test means nothing"
    assert dict(found.logit_bias) == {a: 0.5, b: -0.5}
