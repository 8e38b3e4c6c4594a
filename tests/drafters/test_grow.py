"""The tree against all paths there are, written down one by one."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.drafters import _grow
from specdec.drafters._grow import MAX_DEPTH, Branch, grow
from specdec.types import Proposal

DEPTH = 4  # of the paths written down
ROOT = Branch(0, 0, 0)
RATES = st.sampled_from((1.0, 0.5, 0.5, 0.25, 0.1))  # equal ones: ties
TABLES = st.fixed_dictionaries(
    {token: st.lists(st.integers(0, 4), unique=True, max_size=3) for token in range(5)}
)
ODDS = st.fixed_dictionaries({(omen, depth): RATES for omen in range(3) for depth in range(DEPTH)})


@pytest.fixture(scope="module", autouse=True)
def shallow():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_grow, "MAX_DEPTH", DEPTH)
        yield


def follow_in(table):
    """Continuations by the last token, whose omens are their ranks."""

    def follow(branch: Branch) -> Iterable[Branch]:
        last = branch.token_id
        for omen, token_id in enumerate(table.get(last, ())):
            yield Branch(last, token_id, omen)

    return follow


def grow_in(table, odds, max_tokens=8, least=0.0):
    follow = follow_in(table)
    return grow(ROOT, follow, lambda o, d: odds[o, d], max_tokens=max_tokens, least=least).proposal


def all_paths(table, odds):
    """Every path up to DEPTH tokens: its tokens -> the product of its odds."""
    found, longest = {}, {(): 1.0}
    for depth in range(DEPTH):
        longer = {}
        for path, path_odds in longest.items():
            for omen, token_id in enumerate(table[path[-1] if path else 0]):
                longer[(*path, token_id)] = path_odds * odds[omen, depth]
        found |= longer
        longest = longer
    return found


def paths(proposal: Proposal):
    found = []
    for token_id, parent in zip(proposal.token_ids, proposal.links, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token_id))
    return found


@given(TABLES, ODDS, st.integers(1, 20), st.sampled_from((0.0, 0.1, 0.3)))
def test_the_best_connected_tree_of_its_size(table, odds, max_tokens, least):
    worth = {path: value for path, value in all_paths(table, odds).items() if value >= least}
    tree = paths(grow_in(table, odds, max_tokens, least))
    assert len(set(tree)) == len(tree)
    assert [worth[path] for path in tree] == sorted(worth.values(), reverse=True)[:max_tokens]
    assert all(len(path) == 1 or path[:-1] in tree[:node] for node, path in enumerate(tree))


@given(TABLES, ODDS, st.integers(1, 20))
def test_ties_go_to_the_branch_that_was_found_first(table, odds, max_tokens):
    """That is the one whose parent came first, and of siblings the better rank."""
    worth, expected = all_paths(table, odds), []
    while len(expected) < max_tokens:
        found = [
            (*parent, token_id)
            for parent in [(), *expected]
            if len(parent) < DEPTH
            for token_id in table[parent[-1] if parent else 0]
            if (*parent, token_id) not in expected
        ]
        if not found:
            break
        expected.append(max(found, key=worth.__getitem__))  # the first of equals
    assert paths(grow_in(table, odds, max_tokens)) == expected


@given(TABLES, ODDS)
def test_omens_are_those_of_the_branches(table, odds):
    proposal = grow_in(table, odds)
    for path, omen in zip(paths(proposal), proposal.omens, strict=True):
        assert table[path[-2] if len(path) > 1 else 0][omen] == path[-1]


@given(TABLES, ODDS, st.integers(1, 20), st.integers(0, 20))
def test_a_smaller_budget_gives_its_beginning(table, odds, max_tokens, fewer):
    whole = grow_in(table, odds, max_tokens)
    assert grow_in(table, odds, min(fewer, max_tokens)) == whole.first(fewer)


def test_path_odds_fall():
    table = {0: [1, 2], 1: [2, 3], 2: [1], 3: [0]}
    odds = {(omen, depth): (0.8, 0.3)[omen] for omen in range(2) for depth in range(DEPTH)}
    worth = all_paths(table | {4: []}, odds)
    values = [worth[path] for path in paths(grow_in(table, odds, 20))]
    assert len(values) > 8
    assert all(a >= b for a, b in pairwise(values))


def test_a_branch_at_the_least_odds_is_taken_and_one_below_is_not():
    odds = {(omen, depth): 0.5 for omen in range(3) for depth in range(DEPTH)}
    assert paths(grow_in({0: [1], 1: [2], 2: [3]}, odds, least=0.25)) == [(1,), (1, 2)]
    assert paths(grow_in({0: [1], 1: [2], 2: [3]}, odds, least=0.26)) == [(1,)]
    assert grow_in({0: [1]}, odds, least=0.51) == Proposal()


def test_nothing_follows():
    assert grow_in({}, {}) == Proposal()


def test_it_is_not_deeper_than_a_verdict_can_use(monkeypatch):
    monkeypatch.setattr(_grow, "MAX_DEPTH", MAX_DEPTH)
    tree = grow(ROOT, follow_in({0: [0]}), lambda o, d: 1.0, max_tokens=64, least=0.0)
    proposal = tree.proposal
    assert proposal.parents == tuple(range(-1, MAX_DEPTH - 1))


def test_depths_are_those_the_odds_are_asked_for():
    asked = []

    def odds(omen, depth):
        asked.append((omen, depth))
        return 0.9

    grow(ROOT, follow_in({0: [1], 1: [2], 2: [3]}), odds, max_tokens=3, least=0.0)
    assert asked == [(0, 0), (0, 1), (0, 2)]


def test_nothing_is_asked_of_the_last_token():
    asked = []

    def follow(branch):
        asked.append(branch.token_id)
        return [Branch(branch.token_id, branch.token_id + 1, 0)]

    grow(ROOT, follow, lambda o, d: 1.0, max_tokens=3, least=0.0)
    assert asked == [0, 1, 2]
