"""Verification draws only where the draws lead: there as ever, elsewhere not at all."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import DecoderFailed
from specdec.types import NOT_DRAWN, Extend
from support.decoding import GREEDY
from support.token_decoder import (
    LIMIT,
    PROMPT,
    SAMPLED,
    check,
    drawn,
    likeliest_of,
    make,
    texts_of,
)  # fmt: skip
from support.trees import trees

NUM_CANDIDATES = 3
PENALIZED = replace(GREEDY, repetition_penalty=1.4)
SAMPLINGS = [GREEDY, PENALIZED, SAMPLED]


def drafts_for(parents, sampling, rng, odds):
    """Tokens of a tree, each with these odds what is drawn after its parent."""
    token_ids, texts = [], {-1: list(PROMPT)}
    for node, parent in enumerate(parents):
        right, _ = drawn(texts[parent], sampling, len(PROMPT))
        token_ids.append(right if rng.random() < odds else rng.randrange(3, LIMIT))
        texts[node] = [*texts[parent], token_ids[-1]]
    return token_ids


def expected(call, parents, sampling):
    """(token, log-probability, candidates) of each output row, by definition."""
    drafts = call.token_ids[len(PROMPT) :]
    found = []
    for row, text in enumerate(texts_of(call._replace(parents=parents))):
        if row and found[parents[row - 1] + 1][0] != drafts[row - 1]:
            found.append((NOT_DRAWN, 0.0, (NOT_DRAWN,) * NUM_CANDIDATES))
        else:
            ids = likeliest_of(text, NUM_CANDIDATES)
            found.append((*drawn(text, sampling, len(PROMPT)), ids))
    return found


def rows_of(found):
    return list(zip(found.token_ids, found.logprobs, found.candidate_ids, strict=True))


@given(trees(), st.integers(0, 999), st.sampled_from(SAMPLINGS), st.sampled_from([0.2, 0.7, 1.0]))
def test_what_the_draws_lead_to_is_drawn_and_nothing_else(parents, seed, sampling, odds):
    decoder, runtime = make()
    decoder.open(1, PROMPT, sampling)
    drafts = drafts_for(parents, sampling, random.Random(seed), odds)
    call = Extend(
        1, 0, PROMPT + drafts, 1 + len(drafts), parents=parents, num_candidates=NUM_CANDIDATES,
        follows_draws=True,
    )  # fmt: skip
    assert rows_of(decoder.extend([call]).sequences[0]) == expected(call, parents, sampling)
    check(decoder, runtime)


@given(st.integers(0, 8), st.integers(0, 999), st.sampled_from(SAMPLINGS))
def test_a_chain_is_drawn_up_to_its_first_mismatch(size, seed, sampling):
    decoder, _ = make()
    decoder.open(1, PROMPT, sampling)
    parents = range(-1, size - 1)
    drafts = drafts_for(parents, sampling, random.Random(seed), 0.7)
    call = Extend(
        1, 0, PROMPT + drafts, 1 + size, num_candidates=NUM_CANDIDATES, follows_draws=True
    )
    found = decoder.extend([call]).sequences[0]
    assert rows_of(found) == expected(call, parents, sampling)
    left_out = [token_id == NOT_DRAWN for token_id in found.token_ids]
    assert left_out == sorted(left_out)


def test_sequences_of_one_pass_follow_their_own_draws():
    decoder, _ = make()
    calls = []
    for sequence_id, odds in ((1, 1.0), (2, 0.0), (3, 0.6)):
        decoder.open(sequence_id, PROMPT, GREEDY)
        drafts = drafts_for(range(-1, 3), GREEDY, random.Random(sequence_id), odds)
        calls.append(
            Extend(
                sequence_id, 0, PROMPT + drafts, 5, num_candidates=NUM_CANDIDATES,
                follows_draws=sequence_id != 3,
            )
        )  # fmt: skip
    first, second, third = decoder.extend(calls).sequences
    assert NOT_DRAWN not in first.token_ids
    assert second.token_ids[1:] == (NOT_DRAWN,) * 4
    assert NOT_DRAWN not in third.token_ids  # it asked for all


def test_draft_steps_cannot_go_on_from_nothing():
    decoder, _ = make()
    decoder.open(1, PROMPT, GREEDY)
    with pytest.raises(DecoderFailed, match="draft steps cannot follow a token that may not be"):
        decoder.extend([Extend(1, 0, PROMPT, 2, 1, follows_draws=True)])
