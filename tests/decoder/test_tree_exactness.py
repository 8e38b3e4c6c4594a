"""Draft trees on a real exported model: the trunk is a chain to the last bit, at every precision.

Branch rows see their ancestors at other cache places, so they add up in another order: they are
close to a chain's, and what was drawn at them is never committed.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec.config import DecoderConfig
from specdec.decoder import batch
from specdec.decoder.decoder import CachedDecoder, load_decoder
from specdec.types import Extend, SamplingParams
from support.decoding import GREEDY
from support.trees import path, trees, trunk

SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.3, seed=123
)
SAMPLINGS = st.sampled_from([GREEDY, SAMPLED])
CLOSE = 1e-4  # logits, of a random model whose largest are about 7
FEW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # they hold no state that matters
)


def text(seed: int, size: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 300) for _ in range(size)]


PROMPT = text(0, 37)


@pytest.fixture(scope="module")
def decoders(tiny_artifacts) -> dict[str, tuple[CachedDecoder, CachedDecoder]]:
    """Of each precision one that sees trees and one that never does."""
    config = DecoderConfig(max_sequences=8, num_threads=2)
    return {
        precision: (load_decoder(config, directory), load_decoder(config, directory))
        for precision, directory in tiny_artifacts.items()
    }


@pytest.fixture(params=["fp32", "int8", "w8a8", "int4"])
def pair(request, decoders):
    return decoders[request.param]


def start(decoder, sampling=GREEDY, *, prompt=PROMPT, sequence_id=1, upto=-1):
    """Open a sequence with all but the end of its prompt in the cache, computed afresh."""
    decoder.reset()
    for slot in decoder._cache.slots:
        slot.length = 0
    return resume(decoder, sampling, prompt=prompt, sequence_id=sequence_id, upto=upto)


def resume(decoder, sampling, *, prompt, sequence_id, upto=-1):
    cached = decoder.open(sequence_id, prompt, sampling)
    upto %= len(prompt)
    if cached < upto:
        decoder.extend([Extend(sequence_id, cached, prompt[cached:upto], 0)])
    return upto


def tree_call(drafts, parents, *, begin, sequence_id=1, prompt=PROMPT) -> Extend:
    size = len(parents)
    return Extend(sequence_id, begin, prompt[begin:] + drafts[:size], 1 + size, parents=parents)


def chain_call(drafts, kept, *, begin, sequence_id=1, prompt=PROMPT) -> Extend:
    tokens = prompt[begin:] + [drafts[i] for i in kept]
    return Extend(sequence_id, begin, tokens, 1 + len(kept))


def rows(extended) -> list[tuple[int, float]]:
    return list(zip(extended.token_ids, extended.logprobs, strict=True))


@FEW
@given(trees(), st.integers(0, 999), SAMPLINGS, st.integers(1, 20))
def test_trunk_rows_are_a_chain_s_to_the_bit(pair, parents, seed, sampling, num_pending):
    """Whatever hangs on it; and what follows is what follows a decoder that saw no branches."""
    seer, plain = pair
    drafts, kept = text(seed, len(parents)), trunk(parents)
    for decoder in pair:
        begin = start(decoder, sampling, upto=-num_pending)
    found = seer.extend([tree_call(drafts, parents, begin=begin)]).sequences[0]
    chain = plain.extend([chain_call(drafts, kept, begin=begin)]).sequences[0]
    assert rows(found)[: 1 + len(kept)] == rows(chain)
    end = len(PROMPT) + len(kept)
    after = Extend(1, end, text(seed + 1, 3), 3, 3)
    following = []
    for decoder in pair:
        assert decoder._sequences[1].slot.length == end
        following.append(decoder.extend([after]).sequences)
    assert following[0] == following[1]


@FEW
@given(st.data())
def test_neighbours_do_not_see_trees_nor_trees_them(pair, data):
    """Ragged batches of trees, chains and prefill chunks, in any slots, over several calls."""
    seer, plain = pair
    count = data.draw(st.integers(2, 8))
    seed = data.draw(st.integers(0, 999))
    prompts = [text(seed + i, 3 + 7 * i % 30) for i in range(count)]
    samplings = [data.draw(SAMPLINGS) for _ in prompts]
    for decoder in pair:
        start(decoder)
        decoder.close([(1, 0)])
        for i, prompt in enumerate(prompts):
            resume(decoder, samplings[i], prompt=prompt, sequence_id=i)
    texts = [list(prompt) for prompt in prompts]
    for step in range(3):
        calls, chains, kept = [], [], []
        for i in range(count):
            kind = data.draw(st.sampled_from(["tree", "chain", "chunk"]))
            parents = data.draw(trees()) if kind == "tree" else ()
            drafts = text(seed + 50 * step + i, len(parents))
            begin = len(texts[i]) - 1
            if kind == "chunk":
                chunk = texts[i][-1:] + text(seed + 9 * step + i, 30)
                calls.append(Extend(i, begin, chunk, 0))
                chains.append(calls[-1])
                texts[i] += chunk[1:]
            else:
                place = {"begin": begin, "sequence_id": i, "prompt": texts[i]}
                calls.append(tree_call(drafts, parents, **place))
                chains.append(chain_call(drafts, trunk(parents), **place))
            kept.append(chains[-1].num_outputs)
        found = seer.extend(calls).sequences
        expected = plain.extend(chains).sequences
        for i in range(count):
            assert rows(found[i])[: kept[i]] == rows(expected[i])
            if kept[i]:  # commit some of the trunk, and what was drawn behind it
                at = data.draw(st.integers(0, kept[i] - 1))
                texts[i] += [*chains[i].token_ids[1 : 1 + at], found[i].token_ids[at]]
    seer._cache.check_integrity()


def path_logits(decoder, call: Extend) -> np.ndarray:
    """Raw logits [num_outputs, V] of one call."""
    captured = []
    forward = decoder._runtime.forward

    def note(built):
        logits = forward(built)
        captured.append(logits[: call.num_outputs].copy())
        return logits

    decoder._runtime.forward = note
    try:
        decoder.extend([call])
    finally:
        decoder._runtime.forward = forward
    (found,) = captured
    return found


def differences(pair, parents, seed) -> list[float]:
    """How far each row's logits are from those of a chain along its path; root first."""
    seer, plain = pair
    drafts = text(seed, len(parents))
    begins = [start(decoder) for decoder in pair]
    found = path_logits(seer, tree_call(drafts, parents, begin=begins[0]))
    return [
        float(
            np.abs(
                found[1 + i]
                - path_logits(plain, chain_call(drafts, path(parents, i), begin=begins[1]))[-1]
            ).max()
        )
        for i in range(-1, len(parents))
    ]


@FEW
@given(trees(), st.integers(0, 999))
def test_branch_rows_are_close_to_a_chain_along_their_path(decoders, parents, seed):
    found = differences(decoders["fp32"], parents, seed)
    assert max(found[: 1 + len(trunk(parents))]) == 0
    assert max(found) < CLOSE


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_branch_rows_are_nearly_always_close_in_integers(decoders, precision):
    """Activations are rounded to 8 bits: one that falls to the other side moves all logits."""
    rng = random.Random(0)
    found: list[float] = []
    for seed in range(40):
        parents = tuple(rng.randrange(-1, i) for i in range(rng.randint(1, 12)))
        rows = differences(decoders[precision], parents, seed)
        assert max(rows[: 1 + len(trunk(parents))]) == 0
        found += rows[1 + len(trunk(parents)) :]
    assert np.quantile(found, 0.9) < CLOSE
    assert max(found) < 0.5


def position_by_index(share, mask, positions):
    before = positions.copy()
    place_branches(share, mask, positions)
    positions[:] = before


def siblings_are_seen(share, mask, positions):
    place_branches(share, mask, positions)
    for row in range(share.end - share.start, len(share.token_ids)):
        mask[row, share.end : share.start + row] = True


place_branches = batch._place_branches


@pytest.mark.parametrize("mutant", [position_by_index, siblings_are_seen])
def test_a_branch_placed_wrongly_would_show(decoders, monkeypatch, mutant):
    monkeypatch.setattr(batch, "_place_branches", mutant)
    found = differences(decoders["fp32"], (-1, 0, -1, 2, 0, 0), 5)
    assert found[:3] == [0, 0, 0]  # the trunk is untouched
    assert max(found[3:]) > 100 * CLOSE


def test_what_branches_leave_behind_would_show_if_it_counted(decoders):
    """The reason for the shorter slot: their keys and values are not those of the places."""
    seer, plain = decoders["fp32"]
    drafts = text(3, 4)
    begins = [start(decoder) for decoder in (seer, plain)]
    seer.extend([tree_call(drafts, (-1, 0, 0, 0), begin=begins[0])])
    slot = seer._sequences[1].slot
    end = slot.length
    slot.tokens[end : end + 2], slot.length = drafts[2:], end + 2
    plain.extend([chain_call(drafts, range(4), begin=begins[1])])
    following = [d.extend([Extend(1, end + 2, [9], 1)]).sequences for d in (seer, plain)]
    assert following[0] != following[1]
