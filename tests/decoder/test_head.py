"""A served head: trees as by brute force, one path at a time, alone or in a batch."""

from __future__ import annotations

import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from specdec.artifact import GRAPH, Artifact
from specdec.config import DecoderConfig
from specdec.decoder.head import HeadDecoder, load_head
from specdec.errors import DecoderFailed, InvalidArtifact
from specdec.types import HeadCall, HeadDraft, SamplingParams
from support.heads import LAYERS, STATIC_IDS, export_tiny_head, random_head
from support.tiny import export_tiny

SIZE = 64 * len(LAYERS)
PROMPT = [5, 6, 7, 100, 101, 5]
TREE = {"max_tokens": 8, "max_depth": 3, "width": 2}


def export_head(root: Path, precision: str) -> Path:
    target = export_tiny(root)
    head, _ = random_head(root / "model")
    return export_tiny_head(root, target, head, precision)


@pytest.fixture(scope="session")
def head_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_head(tmp_path_factory.mktemp("head"), "fp32")


@pytest.fixture(scope="session")
def int8_head_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_head(tmp_path_factory.mktemp("int8"), "int8")


def make(head_dir: Path, **config: Any) -> HeadDecoder:
    fields = {"max_sequences": 4, "max_sequence_length": 256, "num_threads": 1, **config}
    return load_head(DecoderConfig(**fields), Artifact.read(head_dir), head_dir)


def features(num_rows: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (30 * generator.standard_normal((num_rows, SIZE))).astype(np.float16)


def rows(num_rows: int, seed: int = 0) -> tuple[list[int], np.ndarray]:
    ids = np.random.default_rng(seed + 100).integers(3, 320, num_rows).tolist()
    return ids, features(num_rows, seed)


def call(sequence_id: int = 1, *, start: int = 0, num_rows: int = 5, seed: int = 0, **tree: Any):
    """The first rows of a text that is the seed's, from `start` on."""
    ids, of_rows = rows(num_rows, seed)
    return HeadCall(sequence_id, start, ids[start:], of_rows[start:], **tree)


def draft(decoder: HeadDecoder, *calls: HeadCall) -> list[HeadDraft]:
    found = decoder.draft(calls).drafts
    for one, result in zip(calls, found, strict=True):
        check(one, result)
        slot = decoder._sequences[one.sequence_id].slot
        assert slot.length == one.start + len(one.token_ids)
    decoder._cache.check_integrity()
    return found


def values(found: HeadDraft) -> list[float]:
    """Of the path to each token."""
    sums: list[float] = []
    for parent, logprob in zip(found.parents, found.logprobs, strict=True):
        sums.append(logprob + (sums[parent] if parent >= 0 else 0.0))
    return sums


def depths(found: HeadDraft) -> list[int]:
    result: list[int] = []
    for parent in found.parents:
        result.append(result[parent] + 1 if parent >= 0 else 0)
    return result


def check(one: HeadCall, found: HeadDraft) -> None:
    size = len(found.token_ids)
    assert size == len(found.parents) == len(found.logprobs) <= one.max_tokens
    assert all(-1 <= parent < i for i, parent in enumerate(found.parents))
    assert len(set(zip(found.parents, found.token_ids, strict=True))) == size
    worth = values(found)
    assert all(a >= b - 1e-6 for a, b in itertools.pairwise(worth))
    assert all(math.exp(v) >= one.least - 1e-9 for v in worth)
    assert max(depths(found), default=0) < one.max_depth
    for parent in set(found.parents):
        assert found.parents.count(parent) <= one.width


def opened(head_dir: Path, *sequence_ids: int, **config: Any) -> HeadDecoder:
    decoder = make(head_dir, **config)
    for sequence_id in sequence_ids or (1,):
        assert decoder.open(sequence_id, PROMPT, SamplingParams()) == 0
    return decoder


def path_logprobs(decoder: HeadDecoder, before: HeadCall, path: tuple[int, ...]) -> dict:
    """Of every id after a path, which is fed as a carry: one row per pass, no tree."""
    one = before._replace(carry=path, max_tokens=64, width=64, max_depth=1, least=0.0)
    (found,) = draft(decoder, one)
    return dict(zip(found.token_ids, found.logprobs, strict=True))


def brute_force(decoder: HeadDecoder, one: HeadCall) -> list[tuple[float, tuple[int, ...]]]:
    """The worthiest paths of all trees of `one.width` branches: (log-probability, path)."""
    found: list[tuple[float, tuple[int, ...]]] = []
    level: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(one.max_depth):
        grown = []
        for value, path in level:
            known = path_logprobs(decoder, one, (*one.carry, *path))
            best = sorted(known.items(), key=lambda item: -item[1])[: one.width]
            grown += [(value + logprob, (*path, token_id)) for token_id, logprob in best]
        found += grown
        level = grown
    found.sort(key=lambda item: -item[0])
    return [item for item in found if item[0] >= math.log(max(one.least, 1e-99))][: one.max_tokens]


def paths(found: HeadDraft) -> list[tuple[int, ...]]:
    result: list[tuple[int, ...]] = []
    for token_id, parent in zip(found.token_ids, found.parents, strict=True):
        result.append((*(result[parent] if parent >= 0 else ()), token_id))
    return result


@pytest.mark.parametrize("carry", [(), (9, 40)], ids=["", "behind a carry"])
@pytest.mark.parametrize("least", [0.0, 0.02])
def test_a_tree_is_the_best_of_all_paths(head_dir: Path, carry: tuple[int, ...], least: float):
    decoder = opened(head_dir)
    one = call(carry=carry, max_tokens=12, max_depth=3, width=4, least=least)
    wide = one._replace(width=12)  # enough for every token that is among the best
    (found,) = draft(decoder, wide)
    best = brute_force(decoder, wide)
    assert paths(found) == [path for _, path in best]
    np.testing.assert_allclose(values(found), [value for value, _ in best], atol=1e-4)


def test_every_token_is_as_likely_as_on_its_path_alone(head_dir: Path):
    """Masks, positions and hidden states of a tree against one path at a time."""
    decoder = opened(head_dir)
    one = call(max_tokens=40, max_depth=6, width=3)
    (found,) = draft(decoder, one)
    assert max(depths(found)) >= 2
    for path, logprob in zip(paths(found), found.logprobs, strict=True):
        alone = path_logprobs(decoder, one, path[:-1])
        assert math.isclose(alone[path[-1]], logprob, abs_tol=1e-4)


def test_width_one_is_a_chain_of_the_likeliest(head_dir: Path):
    decoder = opened(head_dir)
    (found,) = draft(decoder, call(max_tokens=6, max_depth=6, width=1))
    assert found.parents == tuple(range(-1, 5))
    for i, token_id in enumerate(found.token_ids):
        known = path_logprobs(decoder, call(), found.token_ids[:i])
        assert max(known, key=known.__getitem__) == token_id


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 64])
@pytest.mark.parametrize("max_depth", [1, 2, 5])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_budgets_are_kept(head_dir: Path, max_tokens: int, max_depth: int, width: int):
    decoder = opened(head_dir)
    (found,) = draft(decoder, call(max_tokens=max_tokens, max_depth=max_depth, width=width))
    assert len(found.token_ids) >= min(max_tokens, width)


def test_only_static_ids_and_those_of_the_text(head_dir: Path):
    decoder = opened(head_dir)
    ids, _ = rows(5)
    known = path_logprobs(decoder, call(), ())
    allowed = {*STATIC_IDS, *PROMPT, *ids}
    assert set(known) <= allowed
    (found,) = draft(decoder, call(max_tokens=64, width=64))
    own = set(found.token_ids) - set(STATIC_IDS)
    assert own <= {*PROMPT, *ids}


def test_the_cache_after_a_call_is_that_of_committed_rows(head_dir: Path):
    """Trees between calls, wrong ones and long ones, change nothing of what comes later."""
    tree = {"max_tokens": 20, "max_depth": 5, "width": 4}
    plain, busy = opened(head_dir), opened(head_dir)
    draft(plain, call(num_rows=9))
    (wanted,) = draft(plain, call(start=9, num_rows=12, **tree))
    for end in (1, 4, 5, 9):
        start = busy._sequences[1].slot.length
        draft(busy, call(start=start, num_rows=end, carry=(7, 8), **tree))
    (found,) = draft(busy, call(start=9, num_rows=12, **tree))
    assert (found.token_ids, found.parents) == (wanted.token_ids, wanted.parents)
    np.testing.assert_allclose(found.logprobs, wanted.logprobs, atol=1e-4)


def test_int8_takes_passes_without_outputs_and_without_features(int8_head_dir: Path):
    """Catching up scores nothing, and growing reads no features: its operator sees no rows."""
    decoder = opened(int8_head_dir)
    assert draft(decoder, call(num_rows=9)) == [HeadDraft()]
    tree = {"carry": (7, 8), "max_tokens": 12, "max_depth": 4, "width": 3}
    (found,) = draft(decoder, call(start=9, num_rows=12, **tree))
    assert max(depths(found)) >= 1
    once = opened(int8_head_dir)
    (whole,) = draft(once, call(num_rows=12, **tree))
    assert set(found.token_ids[:3]) & set(whole.token_ids[:3])  # scales are those of a pass's rows


def test_rewinds(head_dir: Path):
    decoder, other = opened(head_dir), opened(head_dir)
    draft(decoder, call(num_rows=9, seed=3))
    (found,) = draft(decoder, call(start=0, num_rows=6, max_tokens=5))
    (wanted,) = draft(other, call(start=0, num_rows=6, max_tokens=5))
    assert found.token_ids == wanted.token_ids


def test_ragged_batches_equal_single_runs(head_dir: Path):
    """One catches up over many rows, one has a carry, one only follows, one draws a chain."""
    calls = [
        call(1, num_rows=90, seed=1, max_tokens=8, max_depth=4, width=3),
        call(2, num_rows=2, seed=2, carry=(9, 8, 7), max_tokens=9, max_depth=5, width=4),
        call(3, num_rows=7, seed=3),
        call(4, num_rows=1, seed=4, max_tokens=5, max_depth=5, width=1),
    ]
    together = draft(opened(head_dir, 1, 2, 3, 4), *calls)
    for one, found in zip(calls, together, strict=True):
        (alone,) = draft(opened(head_dir, one.sequence_id), one)
        assert (found.token_ids, found.parents) == (alone.token_ids, alone.parents)
        np.testing.assert_allclose(found.logprobs, alone.logprobs, atol=1e-4)


def test_a_batch_shares_its_passes(head_dir: Path):
    decoder, sizes = opened(head_dir, 1, 2, 3), []
    evaluate = decoder._runtime.evaluate

    def counted(batch):
        sizes.append(len(batch.base.input_ids))
        return evaluate(batch)

    decoder._runtime.evaluate = counted  # type: ignore[method-assign]
    draft(decoder, *(call(i, seed=i, max_tokens=4, max_depth=4, width=1) for i in (1, 2, 3)))
    assert sizes == [15, 3, 3, 3]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (call(2), "not open"),
        (call(start=3), "the cache holds 0 rows"),
        (call()._replace(features=features(4)), r"features \(4, 192\)"),
        (call()._replace(token_ids=[]), "features"),
        (call()._replace(token_ids=[1, 2, 3, 4, 320]), "token id 320"),
        (call(carry=(-1,)), "token id -1"),
        (call(max_tokens=65), "0 to 64"),
        (call(max_tokens=1, width=0), "width 0"),
        (call(max_tokens=64, max_depth=40, width=8), "allowed are 256"),
        (call(num_rows=300), "would hold 300"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(head_dir: Path, wrong, message: str):
    decoder = opened(head_dir)
    with pytest.raises(DecoderFailed, match=message):
        decoder.draft([wrong])
    draft(decoder, call())


def text_of(one: HeadCall) -> list[int]:
    return [PROMPT[0], *one.token_ids]


def same(found: HeadDraft, wanted: HeadDraft) -> bool:
    return found[:2] == wanted[:2] and np.allclose(found.logprobs, wanted.logprobs, atol=1e-4)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("num_shared", [1, 4, 7])
def test_a_text_begins_with_the_rows_that_another_left(
    head_dir: Path, num_shared: int, is_open: bool
):
    """Drafts are those of a head that was shown all of them."""
    decoder, whole = make(head_dir), call(2, num_rows=8, **TREE)
    text = text_of(whole)
    decoder.open(1, text, SamplingParams())
    draft(decoder, whole._replace(sequence_id=1))
    (wanted,) = draft(decoder, whole._replace(sequence_id=1))
    if not is_open:
        decoder.close([(1, num_shared)])
    others = text[: num_shared + 1] if is_open else text
    prompt = [*others, *[9] * (len(text) - len(others))]
    assert decoder.open(2, prompt, SamplingParams(), 0, num_shared) == num_shared
    (found,) = draft(decoder, call(2, start=num_shared, num_rows=8, **TREE))
    assert same(found, wanted)


def test_rows_serve_the_same_beginning_and_salt_alone(head_dir: Path):
    decoder, one = make(head_dir), call(num_rows=8)
    text = text_of(one)
    decoder.open(1, text, SamplingParams(), 7)
    draft(decoder, one)
    decoder.close([(1, 8)])
    for prompt, salt, held in (
        (text, 8, 0),
        ([PROMPT[0] + 1, *text[1:]], 7, 0),
        ([*text[:5], 9, 9, 9], 7, 4),
        (text, 7, 7),  # the last row is for a draft to follow
        (text[:1], 7, 0),
    ):
        assert decoder.open(2, prompt, SamplingParams(), salt) == held, (prompt, salt)
        decoder.close([(2, held)])


@pytest.mark.parametrize("is_open", [False, True])
def test_rows_behind_a_gap_serve_nobody(head_dir: Path, is_open: bool):
    """They are not what these tokens at the beginning of a text would give."""
    decoder, one = make(head_dir), call(num_rows=8)
    text = text_of(one)
    decoder.open(1, text, SamplingParams())
    draft(decoder, call(num_rows=3))
    decoder.close([(1, 3)])
    assert decoder.open(2, text, SamplingParams(), 0, 5) == 3
    draft(decoder, call(2, start=3, num_rows=8))
    if not is_open:
        decoder.close([(2, 8)])
    assert decoder.open(3, text, SamplingParams()) == 3


def test_a_reset_leaves_rows_to_begin_with(head_dir: Path):
    decoder, one = make(head_dir), call(num_rows=8)
    decoder.open(1, text_of(one), SamplingParams())
    draft(decoder, one)
    decoder.reset()
    assert decoder.open(1, text_of(one), SamplingParams()) == 7


@pytest.mark.parametrize("first", [-1, 6])
def test_a_text_cannot_begin_outside_itself(head_dir: Path, first: int):
    with pytest.raises(DecoderFailed, match=f"position {first} of 6"):
        make(head_dir).open(1, PROMPT, SamplingParams(), 0, first)


def test_slots_are_freed(head_dir: Path):
    decoder = opened(head_dir, 1, 2, 3, 4)
    with pytest.raises(DecoderFailed, match="slots are in use"):
        decoder.open(5, PROMPT, SamplingParams())
    decoder.close([(2, 0), (99, 0)])
    decoder.open(5, PROMPT, SamplingParams())
    decoder.reset()
    assert decoder._cache.lengths == [0] * 4
    for sequence_id in range(1, 5):
        decoder.open(sequence_id, PROMPT, SamplingParams())


def test_describe_measures_what_a_pass_costs(head_dir: Path):
    info = make(head_dir).describe()
    assert info.feature_size == SIZE
    assert {(1, 1), (4, 4)} <= {(cost.num_sequences, cost.num_rows) for cost in info.costs}


@pytest.mark.parametrize("failing", [0, 1, 3])
def test_a_pass_that_fails_leaves_what_is_certain(head_dir: Path, failing: int):
    tree = {"max_tokens": 8, "max_depth": 4, "width": 2}
    decoder = opened(head_dir)
    draft(decoder, call(num_rows=4))
    evaluate, passes = decoder._runtime.evaluate, itertools.count()

    def failed(batch):
        if next(passes) == failing:
            raise DecoderFailed("a pass was told to fail")
        return evaluate(batch)

    decoder._runtime.evaluate = failed  # type: ignore[method-assign]
    with pytest.raises(DecoderFailed, match="told to fail"):
        decoder.draft([call(start=4, num_rows=6, **tree)])
    assert decoder._sequences[1].slot.length == (4 if failing == 0 else 6)
    decoder._runtime.evaluate = evaluate  # type: ignore[method-assign]
    (found,) = draft(decoder, call(start=4, num_rows=6, **tree))
    (wanted,) = draft(opened(head_dir), call(num_rows=6, **tree))
    assert found.token_ids == wanted.token_ids


def test_log_probabilities_that_are_no_numbers_are_refused(head_dir: Path):
    decoder = opened(head_dir)
    evaluate = decoder._runtime.evaluate

    def broken(batch):
        found = evaluate(batch)
        return found._replace(best_logprobs=np.full_like(found.best_logprobs, np.nan))

    decoder._runtime.evaluate = broken  # type: ignore[method-assign]
    with pytest.raises(DecoderFailed, match="not finite"):
        draft(decoder, call(max_tokens=4))


def test_a_graph_of_an_earlier_version_names_the_remedy(head_dir: Path, tmp_path: Path):
    old = shutil.copytree(head_dir, tmp_path / "old")
    model = onnx.load(old / GRAPH, load_external_data=False)
    model.graph.input[-1].name = "something_else"
    for node in model.graph.node:
        node.input[:] = ["something_else" if name == "width" else name for name in node.input]
    (old / GRAPH).write_bytes(model.SerializeToString())
    with pytest.raises(InvalidArtifact, match="an earlier version wrote it, export it again"):
        make(old)


@pytest.mark.parametrize("max_tokens", [0, 4], ids=["catching up", "drafting"])
def test_states_that_are_not_finite_are_refused(head_dir: Path, max_tokens: int):
    decoder = opened(head_dir)
    broken = call(max_tokens=max_tokens)._replace(features=np.full((5, SIZE), np.nan, np.float16))
    with pytest.raises(DecoderFailed, match="not finite"):
        decoder.draft([broken])
    draft(decoder, call())
