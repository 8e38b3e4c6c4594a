"""The best rows of a batch, against trying everything."""

import itertools

import numpy as np
import pytest

from specdec.speculation.rows import Offers, most, on_trunk, worth_of
from specdec.types import Proposal

RNG = np.random.default_rng(0)


def example(num_sequences=3, num_positions=3):
    """Odds, limits, and seconds that are flat and then rise."""
    survival = np.cumprod(RNG.uniform(0.1, 0.99, (num_sequences, num_positions)), axis=1)
    limits = RNG.integers(0, num_positions + 1, num_sequences)
    rows = np.arange(num_sequences * num_positions + 1)
    seconds = 10.0 + np.maximum(0, rows - RNG.integers(0, 5)) * RNG.uniform(0.5, 3.0)
    return survival, limits, seconds


def worth(survival, lengths, seconds, price):
    tokens = sum(survival[i, :length].sum() for i, length in enumerate(lengths))
    return tokens - price * (seconds[sum(lengths)] - seconds[0])


def best_of_all(survival, limits, seconds, price, longest=99):
    ranges = (range(min(limit, longest) + 1) for limit in limits)
    return max(worth(survival, lengths, seconds, price) for lengths in itertools.product(*ranges))


@pytest.mark.parametrize("price", [0.0, 0.1, 0.3, 1.0, 10.0])
def test_choose_is_the_best_of_all(price):
    for _ in range(30):
        survival, limits, seconds = example()
        offers = Offers(survival, limits)
        lengths = offers.lengths(offers.choose(seconds, price))
        assert (lengths <= limits).all()
        found = worth(survival, lengths.tolist(), seconds, price)
        assert found == pytest.approx(best_of_all(survival, limits, seconds, price))


@pytest.mark.parametrize("price", [0.0, 0.1, 0.3, 1.0])
def test_plans_are_the_best_of_each_length(price):
    for _ in range(30):
        survival, limits, seconds = example()
        plans = Offers(survival, limits).plans(seconds, price)
        for longest in (1, 2, 3):
            lengths = plans.lengths(longest).tolist()
            assert max(lengths) <= longest
            best = best_of_all(survival, limits, seconds, price, longest)
            assert plans.worth[longest - 1] == pytest.approx(best)
            assert worth(survival, lengths, seconds, price) == pytest.approx(best)
            sizes = [sum(n > position for n in lengths) for position in range(3)]
            assert plans.sizes[longest - 1].tolist() == sizes


def test_equal_odds_give_every_proposal_a_beginning():
    survival = np.full((2, 4), 0.5)
    offers = Offers(survival, np.array([4, 4]))
    assert offers.lengths(5).tolist() == [4, 1]


def test_no_offers():
    offers = Offers(np.zeros((2, 0)), np.zeros(2, np.int64))
    assert offers.choose(np.ones(1), 1.0) == 0
    assert offers.lengths(0).tolist() == [0, 0]
    offers = Offers(np.full((2, 3), 0.9), np.zeros(2, np.int64))
    plans = offers.plans(np.ones(1), 1.0)
    assert plans.worth.tolist() == [0.0] * 3
    assert plans.lengths(3).tolist() == [0, 0]


@pytest.mark.parametrize("idle", [0.0, 0.2, 5.0])
def test_empty_places_are_in_the_account(idle):
    """Against trying everything."""
    for _ in range(20):
        survival, limits, seconds = example()
        offers = Offers(survival, limits)

        def gain(lengths, survival=survival, seconds=seconds):
            empty = len(lengths) * max(lengths) - sum(lengths)
            return worth(survival, lengths, seconds, 0.1) - 0.1 * idle * empty

        ranges = [range(limit + 1) for limit in limits]
        best = max(gain(lengths) for lengths in itertools.product(*ranges))
        longest, gains = offers.within(seconds, 0.1, idle)
        lengths = offers.lengths(most(gains), longest).tolist()
        assert gain(lengths) == pytest.approx(best)


def test_the_trunk_is_what_the_likeliest_child_leads_to():
    chain = Proposal((1, 2, 3))
    #   root - 0 - 2
    #        + 1 - 3
    tree = Proposal((5, 6, 7, 8), (), (-1, -1, 0, 1))
    found = on_trunk([chain, tree], 4)
    assert found.tolist() == [[True] * 4, [True, False, True, False]]


def test_a_branch_pays_for_its_second_row():
    survival = np.array([[0.5, 0.4, 0.3]])
    trunk = np.array([[True, False, True]])
    assert worth_of(survival, trunk, 0.5).tolist() == [pytest.approx([0.5, 0.2, 0.2])]
    assert worth_of(survival, trunk, 9.0).tolist() == [pytest.approx([0.5, 0.0, 0.0])]
    assert worth_of(survival, np.ones_like(trunk), 0.5) is survival


@pytest.mark.parametrize(
    ("proposal", "trunk"),
    [
        (Proposal(), []),
        (Proposal((4, 5, 6)), [0, 1, 2]),
        (Proposal((4, 5, 6, 7, 8), (), (-1, 0, 0, 2, 1)), [0, 1, 4]),
        (Proposal((4, 5, 6), (), (-1, -1, 1)), [0]),
    ],
)
def test_the_trunk_is_the_likeliest_child_of_the_likeliest(proposal, trunk):
    assert proposal.trunk == trunk
    size = len(proposal.token_ids)
    assert on_trunk([proposal], size)[0].tolist() == [node in trunk for node in range(size)]
