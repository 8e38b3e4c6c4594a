"""Draft trees and candidates, over a runtime one can compute by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.decoder import batch, tree
from specdec.decoder.batch import _place_branches as place_branches
from specdec.decoder.tree import histories
from specdec.errors import DecoderFailed
from specdec.types import Extend
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
from support.trees import trees, trunk


def tree_call(parents, *, seed=0, num_cached=0, sequence_id=1, num_candidates=0) -> Extend:
    """The rest of PROMPT with a tree of random tokens behind."""
    rng = random.Random(seed)
    drafts = [rng.randrange(3, LIMIT) for _ in parents]
    return Extend(
        sequence_id, num_cached, PROMPT[num_cached:] + drafts, 1 + len(parents),
        parents=parents, num_candidates=num_candidates,
    )  # fmt: skip


def wrong_rows(parents, sampling=SAMPLED, **call) -> list[int]:
    """Rows of a tree call that are not what the model and the sampler give for their paths."""
    decoder, runtime = make()
    decoder.open(1, PROMPT, sampling)
    made = tree_call(parents, **call)
    found = decoder.extend([made]).sequences[0]
    check(decoder, runtime)
    pairs = list(zip(found.token_ids, found.logprobs, strict=True))
    texts = texts_of(made)
    assert len(pairs) == len(texts)
    return [i for i, t in enumerate(texts) if pairs[i] != drawn(t, sampling, len(PROMPT))]


@given(trees(), st.integers(0, 99), st.sampled_from([GREEDY, SAMPLED]))
def test_a_row_of_a_tree_is_the_model_and_the_sampler_on_its_path(parents, seed, sampling):
    """Penalties, min_tokens and noise see the ancestors and nothing else."""
    assert wrong_rows(parents, sampling, seed=seed) == []


@given(trees(), st.data())
def test_after_a_tree_call_the_cache_holds_its_trunk(parents, data):
    """The next call may build on any token of it, and on nothing else."""
    decoder, runtime = make()
    decoder.open(1, PROMPT, SAMPLED)
    call = tree_call(parents)
    first = decoder.extend([call]).sequences[0]
    kept = PROMPT + list(call.token_ids[len(PROMPT) :])[: len(trunk(parents))]
    slot = decoder._sequences[1].slot
    assert slot.tokens[: slot.length].tolist() == kept
    with pytest.raises(DecoderFailed, match=f"the cache holds {len(kept)} rows"):
        decoder.extend([Extend(1, len(kept) + 1, [3], 1)])
    start = data.draw(st.integers(len(PROMPT), len(kept)))
    text = [*kept[:start], first.token_ids[start - len(PROMPT)]]
    following = data.draw(trees())
    again = Extend(
        1, start, [text[-1], *range(4, 4 + len(following))], 1 + len(following), parents=following
    )
    found = decoder.extend([again]).sequences[0]
    expect = [drawn(t, SAMPLED, len(PROMPT)) for t in texts_of(again, text[:-1])]
    assert list(zip(*found[:2], strict=True)) == expect
    check(decoder, runtime)


@pytest.mark.parametrize("max_rows", [8, 12, None])
def test_a_tree_behind_a_long_prompt_is_cut_before_its_branches(max_rows):
    decoder, runtime = make()
    runtime.max_rows = max_rows
    parents = (-1, 0, 1, 0, 1, -1, 5, 2)
    decoder.open(1, PROMPT * 3, SAMPLED)
    call = Extend(1, 0, [*PROMPT * 3, *range(3, 11)], 9, parents=parents)
    found = decoder.extend([call]).sequences[0]
    expect = [drawn(t, SAMPLED, 3 * len(PROMPT)) for t in texts_of(call)]
    assert list(zip(*found[:2], strict=True)) == expect
    assert {len(b.input_ids) <= (max_rows or 26) for b in runtime.batches} == {True}
    check(decoder, runtime)


@pytest.mark.parametrize("max_rows", [128, 130, 143, 144])
@pytest.mark.parametrize("min_rows", [1, 2, 16])
def test_padding_finds_room_in_the_widest_pass(max_rows, min_rows):
    decoder, runtime = make(min_rows=min_rows)
    runtime.max_rows = max_rows
    prompt = PROMPT * 30
    decoder.open(1, prompt, GREEDY)
    call = Extend(1, 0, prompt, 1)
    found = decoder.extend([call]).sequences[0]
    assert list(zip(*found[:2], strict=True)) == [drawn(prompt, GREEDY, len(prompt))]
    assert max(len(b.input_ids) for b in runtime.batches) <= max_rows


@pytest.mark.parametrize("min_rows", [1, 16])
def test_a_tree_may_reach_the_end_of_its_slot_and_its_branches_beyond(min_rows):
    """The path counts, not the rows."""
    decoder, runtime = make(max_length=256, min_rows=min_rows)
    prompt = [3 + i % 30 for i in range(250)]
    decoder.open(1, prompt, GREEDY)
    parents = (-1, 0, 1, 2, 3, 4) + 58 * (4,)
    call = Extend(1, 0, [*prompt, *(3 + i % 30 for i in range(64))], 65, parents=parents)
    found = decoder.extend([call]).sequences[0]
    expect = [drawn(t, GREEDY, 250) for t in texts_of(call)]
    assert list(zip(*found[:2], strict=True)) == expect
    assert decoder._sequences[1].slot.length == 256
    check(decoder, runtime)
    with pytest.raises(DecoderFailed, match="would hold 257 tokens: allowed are 256"):
        decoder.extend([Extend(1, 250, [3] * 8, 8, parents=(-1, -1, 0, 2, 3, 4, 5))])


def siblings_are_seen(share, mask, positions):
    place_branches(share, mask, positions)
    for row in range(share.end - share.start, len(share.token_ids)):
        mask[row, share.end : share.start + row] = True


def ancestors_are_lost(share, mask, positions):
    place_branches(share, mask, positions)
    for row in range(share.end - share.start, len(share.token_ids)):
        mask[row, share.end : share.start + row] = False


def branches_stay_a_chain(share, mask, positions):
    pass


def history_by_index(share, tokens):
    found = [tokens[: share.end - i] for i in reversed(range(share.num_outputs))]
    size = share.num_outputs - len(share.parents)
    text = np.concatenate([tokens[: share.start], np.array(share.token_ids, np.int32)])
    return found[-size:] + [text[: share.end + i + 1] for i in range(len(share.parents))]


def history_without_the_branch(share, tokens):
    full = histories(share, tokens)
    return [h if i == 0 else np.append(h[:-1], h[-2:-1]) for i, h in enumerate(full)]


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        (batch, "_place_branches", siblings_are_seen),
        (batch, "_place_branches", ancestors_are_lost),
        (batch, "_place_branches", branches_stay_a_chain),
        (tree, "histories", history_by_index),
        (tree, "histories", history_without_the_branch),
    ],
)
def test_a_tree_seen_wrongly_would_show(monkeypatch, module, name, mutant):
    parents = (-1, 0, -1, 2, 3, 0, 2)
    assert wrong_rows(parents) == []
    monkeypatch.setattr(module, name, mutant)
    assert wrong_rows(parents) != []


# --- candidates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("count", [1, 5, LIMIT])
def test_candidates_are_the_raw_logits_largest(sampling, count):
    decoder, _ = make()
    decoder.open(1, PROMPT, sampling)
    decoder.open(2, [8, 9], sampling)
    decoder.open(3, [8, 7], sampling)
    call = tree_call((-1, 0, 0, -1), num_candidates=count)
    chain = Extend(2, 0, [8, 9, 10], 2, 2, num_candidates=3)  # none of the draft steps
    found = decoder.extend([call, Extend(3, 0, [8, 7], 1), chain]).sequences
    assert found[0].candidate_ids == tuple(likeliest_of(t, count) for t in texts_of(call))
    assert found[1].candidate_ids == ()
    assert found[2].candidate_ids == (likeliest_of([8, 9], 3), likeliest_of([8, 9, 10], 3))
