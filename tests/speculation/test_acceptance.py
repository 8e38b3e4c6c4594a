"""The walk through a proposal, against a search one can read, and the layout it needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.speculation.acceptance import accept, lay_out
from specdec.types import Proposal

TOKENS = st.integers(0, 3)


@st.composite
def trees(draw, max_size=12):
    """Any tree without equal siblings."""
    token_ids, parents, taken = [], [], set()
    for node in range(draw(st.integers(0, max_size))):
        parent = draw(st.integers(-1, node - 1))
        free = [t for t in range(4) if (parent, t) not in taken]
        if parent >= len(token_ids) or not free:
            continue
        token_ids.append(draw(st.sampled_from(free)))
        parents.append(parent)
        taken.add((parent, token_ids[-1]))
    return Proposal(tuple(token_ids), tuple(range(len(token_ids))), tuple(parents))


def paths(proposal):
    """Every node's tokens from the root to itself."""
    found = []
    for token_id, parent in zip(proposal.token_ids, proposal.links, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token_id))
    return found


def trunk_length(proposal):
    size = 0
    while size < len(proposal.token_ids) and proposal.links[size] == size - 1:
        size += 1
    return size


@pytest.mark.parametrize(
    ("draft_ids", "sampled_ids", "num_accepted"),
    [
        ([], [5], 0),
        ([7], [7, 1], 1),
        ([7], [8, 1], 0),
        ([7, 3, 9], [7, 3, 4, 1], 2),
        ([7, 3, 9], [7, 3, 9, 1], 3),
        ([7, 3, 9], [1, 3, 9, 1], 0),  # a later match behind a mismatch counts for nothing
    ],
)
def test_longest_matching_prefix(draft_ids, sampled_ids, num_accepted):
    assert accept(Proposal(tuple(draft_ids)), sampled_ids) == (num_accepted, ())


@given(st.lists(TOKENS, max_size=8), st.data())
def test_emitted_tokens_are_always_the_targets_own(draft_ids, data):
    size = len(draft_ids) + 1
    sampled_ids = data.draw(st.lists(TOKENS, min_size=size, max_size=size))
    end, carry = accept(Proposal(tuple(draft_ids)), sampled_ids)
    assert not carry
    assert draft_ids[:end] == sampled_ids[:end]
    assert end == len(draft_ids) or draft_ids[end] != sampled_ids[end]


#   root - 1 - 2 - 3      trunk: nodes 0, 1, 2
#        \   \ 5 - 6      nodes 4, 5
#         4               node 3
TREE = Proposal((1, 2, 3, 4, 5, 6), (), (-1, 0, 1, -1, 0, 4))


@pytest.mark.parametrize(
    ("drawn", "num_accepted", "carry"),
    [  # drawn after the root, then after each node
        ((1, 2, 3, 9, 0, 0, 0), 3, ()),
        ((1, 2, 8, 0, 0, 0, 0), 2, ()),
        ((8, 2, 3, 0, 7, 7, 7), 0, ()),  # no branch holds
        ((4, 0, 0, 0, 7, 0, 0), 0, (7,)),  # a branch of one: 4 is emitted, 7 drawn behind it
        ((1, 5, 0, 0, 0, 9, 0), 1, (9,)),
        ((1, 5, 0, 0, 0, 6, 9), 1, (6, 9)),  # two levels of a branch
        ((4, 2, 3, 0, 1, 0, 0), 0, (1,)),  # 1 is a trunk token elsewhere: not behind 4
    ],
)
def test_a_branch_is_left_for_the_next_step(drawn, num_accepted, carry):
    assert lay_out(TREE) == TREE
    assert accept(TREE, drawn) == (num_accepted, carry)


@given(trees(), st.data())
def test_the_walk_finds_the_longest_path_of_the_targets_draws(tree, data):
    """`text` is what the target writes; it draws accordingly wherever a path holds."""
    tree = lay_out(tree)
    text = data.draw(st.lists(TOKENS, min_size=20, max_size=20))
    draws = [text[0]]
    for path in paths(tree):
        holds = list(path) == text[: len(path)]
        draws.append(text[len(path)] if holds else data.draw(TOKENS))
    accepted = accept(tree, draws)
    longest = max((len(p) for p in paths(tree) if list(p) == text[: len(p)]), default=0)
    emitted = draws[: accepted.num_accepted + 1]
    assert [*emitted, *accepted.carry] == text[: longest + 1]
    assert accepted.num_accepted <= trunk_length(tree)
    assert list(tree.token_ids[: accepted.num_accepted]) == emitted[:-1]


@given(trees())
def test_layout_keeps_the_tree_and_puts_its_trunk_first(tree):
    laid = lay_out(tree)
    assert sorted(paths(laid)) == sorted(paths(tree))
    assert all(parent < node for node, parent in enumerate(laid.links))
    size = trunk_length(laid)
    assert size - 1 not in laid.links[size:]  # the trunk ends at a leaf
    # Always the likeliest child, which is the first: every other child of a trunk node is later.
    before = {path: i for i, path in enumerate(paths(tree))}
    for path in paths(laid)[:size]:
        siblings = [p for p in before if p[:-1] == path[:-1]]
        assert before[path] == min(before[p] for p in siblings)
    if laid.omens:
        omens = dict(zip(paths(tree), tree.omens, strict=True))
        assert [omens[p] for p in paths(laid)] == list(laid.omens)


@given(trees(), st.lists(TOKENS, max_size=3))
def test_behind_a_chain_every_path_begins_with_it(tree, chain):
    behind = tree.behind(tuple(chain))
    expected = [tuple(chain[: i + 1]) for i in range(len(chain))]
    assert paths(behind) == [*expected, *((*chain, *p) for p in paths(tree))]
    assert len(behind.omens) in (0, len(behind.token_ids))


@given(trees(), st.integers(0, 12))
def test_a_beginning_is_a_proposal_and_depths_count_ancestors(tree, size):
    assert paths(tree.first(size)) == paths(tree)[:size]
    assert tree.depths == [len(path) - 1 for path in paths(tree)]
