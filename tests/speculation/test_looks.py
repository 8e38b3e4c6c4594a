"""What is seen of a proposal, against its paths written down one by one."""

from hypothesis import given
from hypothesis import strategies as st

from specdec.speculation.looks import Look, compare
from specdec.types import Proposal

TOKENS = st.integers(0, 2)


@st.composite
def proposals(draw):
    """Chains and trees without equal siblings, with omens or none."""
    token_ids, parents = [], []
    for node in range(draw(st.integers(0, 10))):
        parent = draw(st.integers(-1, node - 1))
        taken = [t for t, p in zip(token_ids, parents, strict=True) if p == parent]
        free = [t for t in range(3) if t not in taken]
        if parent < len(token_ids) and free:
            token_ids.append(draw(st.sampled_from(free)))
            parents.append(parent)
    omens = tuple(range(5, 5 + len(token_ids))) if draw(st.booleans()) else ()
    if draw(st.booleans()):
        return Proposal(tuple(token_ids), omens)
    return Proposal(tuple(token_ids), omens, tuple(parents))


@given(proposals(), st.lists(TOKENS, max_size=6))
def test_every_token_whose_parents_all_hold_and_whose_place_is_written(proposal, output_ids):
    expected = []
    for node, token_id in enumerate(proposal.token_ids):
        path, above = [], node
        while above >= 0:
            path.insert(0, proposal.token_ids[above])
            above = proposal.links[above]
        depth = len(path) - 1
        if depth < len(output_ids) and path[:-1] == output_ids[:depth]:
            omen = proposal.omens[node] if proposal.omens else 0
            expected.append(Look(omen, depth, token_id == output_ids[depth]))
    assert compare(proposal, output_ids) == expected


def test_siblings_are_looked_at_together():
    tree = Proposal((1, 2, 3, 4), (5, 6, 7, 8), (-1, -1, 0, 1))
    assert compare(tree, (2, 9)) == [Look(5, 0, False), Look(6, 0, True), Look(8, 1, False)]


def test_a_text_that_ends_says_nothing_of_what_follows():
    assert compare(Proposal((1, 2, 3)), (1,)) == [Look(0, 0, True)]
    assert compare(Proposal((1, 2, 3)), ()) == []
