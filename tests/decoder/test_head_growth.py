"""A growing tree against all paths of a table one can enumerate."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.decoder.head_growth import ROOT, Growth
from specdec.types import HeadCall

Path = tuple[int, ...]


def call(max_tokens: int, max_depth: int, width: int, least: float = 0.0) -> HeadCall:
    nothing = np.zeros((1, 1), np.float16)
    return HeadCall(
        1,
        0,
        [0],
        nothing,
        max_tokens=max_tokens,
        max_depth=max_depth,
        width=width,
        least=least,
    )


class Table:
    """A model of few tokens: probabilities after every path, ties among them."""

    def __init__(self, num_tokens: int, seed: int) -> None:
        self.num_tokens, self._seed = num_tokens, seed

    def after(self, path: Path) -> list[float]:
        rng = random.Random(f"{self._seed} {path}")
        weights = [rng.choice((1, 2, 4, 16)) for _ in range(self.num_tokens)]
        return [w / sum(weights) for w in weights]

    def best(self, path: Path, count: int) -> tuple[list[int], list[float]]:
        odds = self.after(path)
        ids = sorted(range(self.num_tokens), key=lambda i: (-odds[i], i))[:count]
        return ids, [math.log(odds[i]) for i in ids]


def grow(table: Table, one: HeadCall) -> tuple[Growth, list[int]]:
    """The tree, and how many tokens each pass went on from."""
    growth, sizes = Growth(one), []
    growth.add(ROOT, *table.best((), one.width))
    paths = {ROOT: ()}
    while numbers := growth.next():
        sizes.append(len(numbers))
        for number in numbers:
            paths[number] = (*paths[growth.parent(number)], growth.token_id(number))
            growth.add(number, *table.best(paths[number], one.width))
    return growth, sizes


def worth(table: Table, path: Path) -> float:
    return sum(math.log(table.after(path[:i])[token]) for i, token in enumerate(path))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4), st.integers(0, 1000), st.integers(1, 12), st.integers(1, 4),
    st.sampled_from([0.0, 0.05, 0.3]),
)  # fmt: skip
def test_a_wide_beam_finds_the_best_of_all_paths(num_tokens, seed, max_tokens, max_depth, least):
    table = Table(num_tokens, seed)
    growth, _ = grow(table, call(max_tokens, max_depth, 64, least))
    draft = growth.draft()
    all_paths = [
        path
        for depth in range(1, max_depth + 1)
        for path in itertools.product(range(num_tokens), repeat=depth)
    ]
    values = sorted((worth(table, path) for path in all_paths), reverse=True)
    best = [v for v in values if v >= (math.log(least) - 1e-9 if least else -math.inf)]
    found: list[Path] = []
    for token_id, parent in zip(draft.token_ids, draft.parents, strict=True):
        assert parent < len(found)
        found.append((*(found[parent] if parent >= 0 else ()), token_id))
    assert len(set(found)) == len(found)
    np.testing.assert_allclose([worth(table, p) for p in found], best[:max_tokens], atol=1e-9)


@given(st.integers(0, 1000), st.integers(1, 20), st.integers(1, 6), st.integers(1, 4))
def test_a_beam_keeps_its_width_and_its_passes(seed, max_tokens, max_depth, width):
    growth, sizes = grow(Table(5, seed), call(max_tokens, max_depth, width))
    assert len(sizes) <= max_depth - 1
    assert all(1 <= size <= width for size in sizes)
    draft = growth.draft()
    assert len(draft.token_ids) <= max_tokens
    assert all(-1 <= parent < i for i, parent in enumerate(draft.parents))


def test_equals_go_to_the_shallower_and_then_to_the_first():
    growth = Growth(call(3, 3, 2))
    growth.add(ROOT, [7, 8], [math.log(0.5), math.log(0.5)])
    assert growth.next() == [0, 1]
    growth.add(0, [9], [0.0])
    growth.add(1, [9], [0.0])
    assert growth.draft().token_ids == (7, 8, 9)
    assert growth.draft().parents == (-1, -1, 0)


def test_rounding_makes_no_child_worthier_than_its_parent():
    growth = Growth(call(4, 3, 2))
    growth.add(ROOT, [7], [1e-7])
    growth.next()
    growth.add(0, [8], [1e-7])
    assert growth.draft().parents == (-1, 0)


def test_no_pass_for_tokens_that_cannot_be_proposed():
    growth = Growth(call(2, 9, 4))
    growth.add(ROOT, [1, 2, 3], [math.log(0.4), math.log(0.35), math.log(0.25)])
    assert growth.next() == [0, 1]  # the third is no longer among the two worthiest
    growth.add(0, [1], [math.log(0.1)])
    growth.add(1, [1], [math.log(0.1)])
    assert growth.next() == []
