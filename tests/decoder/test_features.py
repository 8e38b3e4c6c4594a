"""Features are of the tokens that were fed, whatever pass each was in, and change nothing else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.artifact import Artifact
from specdec.config import DecoderConfig
from specdec.decoder.decoder import load_decoder
from specdec.errors import DecoderFailed
from specdec.types import Extend
from support.decoding import GREEDY
from support.runtimes import features_after
from support.tiny import export_tiny
from support.token_decoder import PROMPT, check, make, texts_of
from support.trees import trees, trunk

LARGEST = 65504  # of float16


def by_hand(call: Extend, before=()) -> list[list[float]]:
    stem = [*before, *call.token_ids]
    texts = [stem[: call.start + i] for i in range(1, len(call.token_ids) + 1)]
    if call.parents:
        texts[-len(call.parents) :] = texts_of(call, before)[1:]
    return [[LARGEST, *features_after(text)[1:].tolist()] for text in texts]


@given(trees(), st.integers(0, 5), st.sampled_from([None, 8]))
def test_every_row_of_a_tree_and_of_the_prompt_before_it(parents, num_cached, max_rows):
    decoder, runtime = make()
    runtime.max_rows = max_rows
    decoder.open(1, PROMPT, GREEDY)
    if num_cached:
        chunk = Extend(1, 0, PROMPT[:num_cached], 0, wants_features=True)
        (found,) = decoder.extend([chunk]).sequences
        assert found.features.tolist() == by_hand(chunk)
    call = Extend(
        1, num_cached, [*PROMPT[num_cached:], *range(3, 3 + len(parents))], 1 + len(parents),
        parents=parents, wants_features=True,
    )  # fmt: skip
    (found,) = decoder.extend([call]).sequences
    assert found.features.dtype == np.float16
    assert found.features.tolist() == by_hand(call, PROMPT[:num_cached])
    check(decoder, runtime)


def test_only_who_wants_some_gets_some_and_only_their_passes_have_them():
    decoder, runtime = make()
    for i in range(3):
        decoder.open(i, [*PROMPT, i], GREEDY)
    calls = [Extend(i, 0, [*PROMPT, i], 1, wants_features=i == 1) for i in range(3)]
    found = decoder.extend(calls).sequences
    assert [f.features is None for f in found] == [True, False, True]
    assert found[1].features.tolist() == by_hand(calls[1])
    assert (len(runtime.batches), runtime.num_with_features) == (1, 1)
    plain = [Extend(i, 7, [found[i].token_ids[0]], 1) for i in range(3)]
    assert all(f.features is None for f in decoder.extend(plain).sequences)
    assert (len(runtime.batches), runtime.num_with_features) == (2, 1)


def test_draft_steps_have_none():
    decoder, runtime = make()
    decoder.open(1, PROMPT, GREEDY)
    call = Extend(1, 0, PROMPT, 1, 3, wants_features=True)
    (found,) = decoder.extend([call]).sequences
    assert len(found.token_ids) == 4
    assert found.features.tolist() == by_hand(call)
    assert runtime.num_with_features == 1


def test_a_model_without_refuses_before_anything_changes():
    decoder, runtime = make(feature_size=0)
    decoder.open(1, PROMPT, GREEDY)
    with pytest.raises(DecoderFailed, match="sequence 1 wants features, this model gives out none"):
        decoder.extend([Extend(1, 0, PROMPT, 1, wants_features=True)])
    assert runtime.batches == []


# On real graphs: bits.

TEXT = np.random.default_rng(0).integers(3, 300, 60).tolist()


def load(directory):
    return load_decoder(DecoderConfig(max_sequences=8, num_threads=2), directory)


def fed(decoder, cuts, *, beside=0, sequence_id=1) -> np.ndarray:
    """Features of TEXT up to the last cut, one call for each two neighbouring cuts; `beside`
    others take part in every call."""
    decoder.open(sequence_id, TEXT, GREEDY)
    others = range(100, 100 + beside)
    for i in others:
        decoder.open(i, [*TEXT[i % 7 :], i], GREEDY)
    rows = []
    for a, b in pairwise(cuts):
        calls = [Extend(i, 0, TEXT[: 3 + i % 5], 1, wants_features=i % 2 == 0) for i in others]
        calls.insert(beside // 2, Extend(sequence_id, a, TEXT[a:b], 1, wants_features=True))
        rows.append(decoder.extend(calls).sequences[beside // 2].features)
    return np.concatenate(rows)


@pytest.fixture
def plain(artifact_dir):
    """A used decoder, and the features of plain decoding alone in a fresh one."""
    reference = fed(load(artifact_dir), range(61))
    assert reference.shape == (60, Artifact.read(artifact_dir).feature_size)
    return load(artifact_dir), reference


def test_bits_do_not_depend_on_chunks_batches_or_rewinds(plain):
    decoder, reference = plain
    for cuts in ([0, 60], [0, 7, 8, 31, 60], [0, 1, 59, 60]):
        for beside in (0, 1, 6):
            decoder.reset()
            for slot in decoder._cache.slots:
                slot.length = 0
            assert np.array_equal(fed(decoder, cuts, beside=beside), reference), (cuts, beside)
    decoder.extend([Extend(1, 20, [5, 6, 7], 3)])  # wrong drafts
    (again,) = decoder.extend([Extend(1, 20, TEXT[20:30], 1, wants_features=True)]).sequences
    assert np.array_equal(again.features, reference[20:30])


def test_bits_of_a_trunk_do_not_depend_on_its_branches(plain):
    decoder, reference = plain
    for number, parents in enumerate([(-1,), (-1, 0, 1, -1), (-1, 0, 0, 1, 3, 1, 2), (-1,) * 9]):
        size = len(trunk(parents))
        drafts = [*TEXT[40 : 40 + size], *(3 + i for i in range(len(parents) - size))]
        decoder.reset()
        cached = decoder.open(1, TEXT[:40], GREEDY)
        call = Extend(
            1, min(cached, 38 - number), TEXT[min(cached, 38 - number) : 40] + drafts,
            1 + len(parents), parents=parents, wants_features=True,
        )  # fmt: skip
        (found,) = decoder.extend([call]).sequences
        kept = 40 - call.start + size
        assert len(found.features) == len(call.token_ids)
        assert np.array_equal(found.features[:kept], reference[call.start : 40 + size])


def test_tokens_are_the_same_with_features_and_without(artifact_dir):
    with_features, without = load(artifact_dir), load(artifact_dir)
    for decoder in (with_features, without):
        decoder.open(1, TEXT, GREEDY)
    for cut in (0, 9, 12, 20):
        call = Extend(1, cut, TEXT[cut : cut + 9], 9)
        (found,) = with_features.extend([call._replace(wants_features=True)]).sequences
        assert found._replace(features=None) == without.extend([call]).sequences[0]


def test_an_artifact_without_says_how_to_get_them(tmp_path):
    decoder = load(export_tiny(tmp_path, features="none"))
    assert decoder.describe().feature_size == 0
    decoder.open(1, TEXT, GREEDY)
    with pytest.raises(DecoderFailed, match="export it with --features"):
        decoder.extend([Extend(1, 0, TEXT, 1, wants_features=True)])
    assert len(decoder.extend([Extend(1, 0, TEXT, 1)]).sequences[0].token_ids) == 1
