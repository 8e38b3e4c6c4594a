"""Draft trees for tests, and what one does not have to think about to believe."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st


def path(parents: Sequence[int], index: int) -> list[int]:
    """The tokens of the tree from its root to `index`, both ends included but the root."""
    found = []
    while index >= 0:
        found.append(index)
        index = parents[index]
    return found[::-1]


def trunk(parents: Sequence[int]) -> list[int]:
    """The tokens whose path is every token up to them."""
    return [i for i in range(len(parents)) if path(parents, i) == list(range(i + 1))]


@st.composite
def trees(draw, max_tokens: int = 12) -> tuple[int, ...]:
    """Parents of at least one token; half of them begin with a trunk of some length."""
    size = draw(st.integers(1, max_tokens))
    num_chained = draw(st.sampled_from([0, draw(st.integers(0, size))]))
    return tuple(i - 1 if i < num_chained else draw(st.integers(-1, i - 1)) for i in range(size))
