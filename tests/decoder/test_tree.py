"""Draft trees: the pure functions, and the arrays of a pass, against the definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.decoder import tree
from specdec.decoder.batch import Share, build, cut, plan
from specdec.errors import DecoderFailed
from support.trees import path, trees, trunk


def share_of(parents, *, num_before=1, start=5, slot=0) -> Share:
    """A share as the decoder makes it: token ids tell their row, the root is the last before."""
    root = start + num_before - 1
    token_ids = list(range(100, 100 + num_before + len(parents)))
    return Share(slot, start, token_ids, 1 + len(parents), tree.branch_parents(parents, root))


def arrays(*shares, length=256, max_position=4096):
    return build(shares, [0] * 8, length=length, min_rows=2, max_position=max_position)


def test_the_example_of_the_module():
    parents = (-1, 0, 1, 0, 3, 1)
    assert tree.num_trunk_tokens(parents) == 3
    assert tree.max_depth(parents) == 3
    assert tree.branch_parents(parents, 7) == [8, 11, 9]
    share = share_of(parents, num_before=2, start=6)
    assert share.end == 11
    batch = arrays(share)
    assert batch.position_ids.tolist() == [[6, 7, 8, 9, 10, 9, 10, 10]]
    seen = [np.flatnonzero(row).tolist() for row in batch.attention_mask[0, 0]]
    start = list(range(8))
    assert seen[2:] == [
        [*start, 8],
        [*start, 8, 9],
        [*start, 8, 9, 10],
        [*start, 8, 11],
        [*start, 8, 11, 12],
        [*start, 8, 9, 13],
    ]


@given(trees())
def test_trunk_and_depth_are_those_of_the_paths(parents):
    assert tree.num_trunk_tokens(parents) == len(trunk(parents))
    assert tree.max_depth(parents) == max(len(path(parents, i)) for i in range(len(parents)))


def test_without_parents_there_is_a_chain():
    assert tree.num_trunk_tokens(()) == tree.max_depth(()) == 0
    assert tree.branch_parents((), 4) == []


def check_rows(share, parents, batch, *, root):
    """Mask, positions and histories of a share's output rows are those of their paths."""
    b = share.slot - batch.first
    tokens = np.arange(300, 300 + share.end, dtype=np.int32)
    before = share.end - len(trunk(parents))
    assert before == root + 1
    histories = tree.histories(share, tokens)
    assert len(histories) == share.num_outputs
    row = root - share.start
    for i, history in enumerate(histories, start=-1):
        ancestors = path(parents, i)
        places = [*range(root + 1), *(root + 1 + j for j in ancestors)]
        sees = np.flatnonzero(batch.attention_mask[b, 0, row + 1 + i])
        assert sees.tolist() == places
        assert batch.position_ids[b, row + 1 + i] == len(places) - 1
        branch = [j for j in ancestors if root + 1 + j >= share.end]
        kept = [300 + p for p in places if p < share.end]
        assert history.tolist() == kept + [share.token_ids[row + 1 + j] for j in branch]


@given(trees(), st.integers(1, 20), st.integers(0, 30), st.integers(0, 5))
def test_rows_see_their_ancestors_at_the_position_of_their_depth(parents, before, start, others):
    """Beside chains, prefill chunks and other trees in the pass."""
    share = share_of(parents, num_before=before, start=start, slot=2)
    beside = [Share(4, 9, [7] * (3 * others + 1), others), share_of(parents, slot=6)]
    batch = arrays(*beside[: others % 3], share)
    check_rows(share, parents, batch, root=start + before - 1)


@given(trees(), st.integers(1, 9), st.integers(0, 9))
def test_everything_but_branches_is_as_in_a_chain(parents, before, start):
    share = share_of(parents, num_before=before, start=start)
    found, chain = arrays(share), arrays(share._replace(parents=()))
    stem = share.end - start
    for name, array in found.inputs().items():
        if name not in ("position_ids", "attention_mask"):
            assert np.array_equal(array, chain.inputs()[name])
    assert np.array_equal(found.position_ids[:, :stem], chain.position_ids[:, :stem])
    assert np.array_equal(found.attention_mask[:, :, :stem], chain.attention_mask[:, :, :stem])
    if len(trunk(parents)) == len(parents):
        assert share.parents == []


@given(trees(24), st.integers(1, 40), st.integers(24, 40))
def test_a_cut_leaves_the_branches_together(parents, before, max_rows):
    share = share_of(parents, num_before=before, start=3)
    parts = [p for (p,) in cut([share], max_rows)]
    assert [t for p in parts for t in p.token_ids] == share.token_ids
    assert sum(p.num_outputs for p in parts) == share.num_outputs
    assert max(len(p.token_ids) for p in parts) <= max_rows
    assert all(not p.parents for p in parts[:-1])
    assert parts[-1].parents == share.parents
    for part, following in pairwise(parts):
        assert part.end == following.start
    last = parts[-1]
    assert last.end == share.end
    whole, batch = arrays(share), arrays(last)
    skip = last.start - share.start
    size = len(last.token_ids)
    assert np.array_equal(
        whole.attention_mask[:, :, skip : skip + size], batch.attention_mask[:, :, :size]
    )
    assert np.array_equal(whole.position_ids[:, skip : skip + size], batch.position_ids[:, :size])
    tokens = np.arange(share.end, dtype=np.int32)
    found = [h.tolist() for p in parts for h in tree.histories(p, tokens)]
    assert found == [h.tolist() for h in tree.histories(share, tokens)]


@given(st.lists(trees(), min_size=1, max_size=8), st.sampled_from([None, 16, 64]))
def test_a_plan_keeps_trees_whole(forest, max_rows):
    shares = [share_of(p, slot=i) for i, p in enumerate(forest)]
    passes = plan(shares, length=256, max_rows=max_rows)
    assert sorted((s for p in passes for s in p), key=lambda s: s.slot) == shares


@pytest.mark.parametrize(
    ("parents", "num_outputs", "message"),
    [
        ([-1, 0], 2, "2 parents with 2 outputs: a tree has one output more"),
        ([-1, 0], 4, "2 parents with 4 outputs"),
        ([0], 2, r"token 0 of a tree follows 0: allowed are -1 to -1"),
        ([-1, 0, 2], 4, r"token 2 of a tree follows 2: allowed are -1 to 1"),
        ([-1, -2], 3, r"token 1 of a tree follows -2: allowed are -1 to 0"),
        ([-1] * 65, 66, "a tree of 65 tokens: allowed are 1 to 64"),
    ],
)
def test_what_is_no_tree(parents, num_outputs, message):
    with pytest.raises(DecoderFailed, match=message):
        tree.check(parents, num_outputs=num_outputs, max_rows=None)


def test_a_tree_must_fit_a_pass():
    tree.check([-1] * 64, num_outputs=65, max_rows=64)
    with pytest.raises(DecoderFailed, match="a tree of 17 tokens: allowed are 1 to 16"):
        tree.check([-1] * 17, num_outputs=18, max_rows=16)
