"""Draft steps that end early: per sequence, once what was drafted is too unlikely to go on with."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from specdec.errors import DecoderFailed
from specdec.types import Extend
from support.decoding import GREEDY
from support.token_decoder import PROMPT, SAMPLED, check, drawn, make


def drafted(prompt, sampling, num_steps, least=-math.inf):
    """By hand: ids and log-probabilities, up to the first token that makes the draft too
    unlikely."""
    tokens, logprobs = list(prompt), []
    while len(logprobs) <= num_steps:
        token, logprob = drawn(tokens, sampling, len(prompt))
        tokens.append(token)
        logprobs.append(logprob)
        if sum(logprobs) < least:
            break
    return tokens[len(prompt) :], logprobs


def answer(extended):
    return list(extended.token_ids), list(extended.logprobs)


def call(sequence_id, prompt, num_steps, least=-math.inf):
    return Extend(sequence_id, 0, prompt, 1, num_steps, least_logprob=least)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_drafted", range(1, 7))
def test_the_token_that_is_too_much_is_the_last(sampling, num_drafted):
    """At the threshold it goes on, below it the draft ends: tokens, passes and the cache."""
    whole = drafted(PROMPT, sampling, 5)
    path = sum(whole[1][:num_drafted])
    for least, size in (
        (path, min(num_drafted + 1, 6)),
        (math.nextafter(path, 1.0), num_drafted),
    ):
        decoder, runtime = make()
        decoder.open(1, PROMPT, sampling)
        (found,) = decoder.extend([call(1, PROMPT, 5, least)]).sequences
        assert answer(found) == (whole[0][:size], whole[1][:size])
        assert len(runtime.batches) == size
        assert decoder._sequences[1].slot.length == len(PROMPT) + size - 1
        check(decoder, runtime)


def test_without_logprobs_and_threshold_nothing_stops():
    decoder, _ = make()
    decoder.open(1, PROMPT, replace(GREEDY, logprobs=False))
    (found,) = decoder.extend([call(1, PROMPT, 5)]).sequences
    assert list(found.token_ids) == drafted(PROMPT, GREEDY, 5)[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_stopped_sequence_leaves_the_passes_to_the_others(seed):
    rng = random.Random(seed)
    decoder, runtime = make(num_slots=8)
    prompts = {i: [i, *rng.choices(range(3, 33), k=rng.randrange(1, 9))] for i in range(8)}
    samplings = {i: rng.choice([GREEDY, SAMPLED]) for i in prompts}
    for i, prompt in prompts.items():
        decoder.open(i, prompt, samplings[i])
    calls = [
        call(i, prompts[i], rng.randrange(8), rng.choice([-math.inf, -rng.random() * 15]))
        for i in rng.sample(range(8), 5)
    ]
    result = decoder.extend(calls)
    for each, found in zip(calls, result.sequences, strict=True):
        prompt, i = prompts[each.sequence_id], each.sequence_id
        expected = drafted(prompt, samplings[i], each.num_draft_steps, each.least_logprob)
        assert answer(found) == expected
        assert decoder._sequences[i].slot.length == len(prompt) + len(expected[0]) - 1
    sizes = [len(found.token_ids) for found in result.sequences]
    going = [sum(size > step for size in sizes) for step in range(1, max(sizes))]
    assert [len(batch.output_rows) for batch in runtime.batches[-len(going) :]] == [
        max(n, 2) for n in going
    ]
    check(decoder, runtime)


def test_the_loop_ends_with_the_last_of_them():
    decoder, runtime = make()
    for i in range(3):
        decoder.open(i, [*PROMPT, i], GREEDY)
    decoder.extend([call(i, [*PROMPT, i], 200, 0.0) for i in range(3)])
    assert len(runtime.batches) == 1


def test_without_a_threshold_nothing_changes():
    """To the bit, and every pass is the same."""
    found = []
    for least in ({}, {"least_logprob": -math.inf}, {"least_logprob": -1e9}):
        decoder, runtime = make()
        for i, sampling in enumerate((GREEDY, SAMPLED)):
            decoder.open(i, PROMPT, sampling)
        calls = [Extend(i, 0, PROMPT, 1, 6 - i, **least) for i in range(2)]
        found.append((decoder.extend(calls).sequences, runtime.batches))
    (sequences, batches), *others = found
    for other_sequences, other_batches in others:
        assert other_sequences == sequences
        for batch, other in zip(batches, other_batches, strict=True):
            for name, array in batch.inputs().items():
                assert np.array_equal(array, other.inputs()[name])


def test_only_the_last_given_output_begins_the_draft():
    """Verified rows before it may be as unlikely as they are."""
    decoder, _ = make()
    decoder.open(1, PROMPT, GREEDY)
    (given,) = decoder.extend([Extend(1, 0, PROMPT, len(PROMPT))]).sequences
    assert sum(given.logprobs) < given.logprobs[-1] - 1.0
    one_more = Extend(1, 0, PROMPT, len(PROMPT), 9, least_logprob=given.logprobs[-1])
    (found,) = decoder.extend([one_more]).sequences
    assert len(found.token_ids) == len(PROMPT) + 1
    assert found.token_ids[: len(PROMPT)] == given.token_ids


def test_a_chunk_without_outputs_may_have_a_threshold():
    decoder, runtime = make()
    decoder.open(1, PROMPT, GREEDY)
    (found,) = decoder.extend([Extend(1, 0, PROMPT, 0, least_logprob=-1.0)]).sequences
    assert found.token_ids == ()
    assert len(runtime.batches) == 1


def test_what_follows_a_stop_is_the_same_text():
    """Draft after draft from where the last one stopped, or from a rewind into it."""
    text, _ = drafted(PROMPT, SAMPLED, 30)
    decoder, runtime = make()
    rng = random.Random(0)
    decoder.open(1, PROMPT, SAMPLED)
    tokens, num_cached = list(PROMPT), 0
    while len(tokens) < len(PROMPT) + 20:
        least = -rng.random() * 8
        share = Extend(1, num_cached, tokens[num_cached:], 1, 5, least_logprob=least)
        (found,) = decoder.extend([share]).sequences
        begin, size = len(tokens) - len(PROMPT), len(found.token_ids)
        assert list(found.token_ids) == text[begin : begin + size]
        kept = rng.randrange(1, size + 1)
        num_cached = len(tokens) + kept - 1
        tokens += found.token_ids[:kept]
        check(decoder, runtime)


@pytest.mark.parametrize("least", [1e-9, 2.0, math.inf, math.nan])
def test_a_threshold_that_is_none_is_refused(least):
    decoder, runtime = make()
    decoder.open(1, PROMPT, GREEDY)
    with pytest.raises(
        DecoderFailed, match=f"sequence 1: least_logprob {least}: allowed are -inf to 0"
    ):
        decoder.extend([call(1, PROMPT, 3, least)])
    assert runtime.batches == []
