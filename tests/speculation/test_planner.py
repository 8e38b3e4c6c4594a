"""Draft lengths for a model that must be paid before it is asked."""

import random

import pytest

from specdec.speculation.costs import CostModel
from specdec.speculation.outlook import Outlook
from specdec.speculation.planner import REVISIT_TOKENS, Candidate, Planner, Step, Weighed
from specdec.types import PassCost, Proposal

CAP = 6


class Bench:
    """A planner on a target whose passes take 10 ms up to 64 rows."""

    def __init__(self, draft_ms=1.0, row_ms=0.0):
        self.target = CostModel.fit([PassCost(1, 1, 10.0), PassCost(1, 64, 10.0)])
        points = [PassCost(1, rows, draft_ms + row_ms * rows) for rows in (1, 2, 64, 128)]
        self.outlook = Outlook()
        self.planner = Planner(CostModel.fit(points), self.outlook)

    def teach(self, sequence_id, alpha, num_looks=60):
        rng = random.Random(sequence_id)
        for _ in range(num_looks):
            held = 0
            while held < CAP and rng.random() < alpha:
                held += 1
            self.outlook.observe(sequence_id, Proposal((1,) * CAP), [*[1] * held, 0][:CAP])

    def plan(self, *members):
        num_offers = sum(m.limit for m in members)
        seconds = self.target.predict_from(len(members), len(members), num_offers)
        plain = self.target.predict(len(members), len(members))
        return self.planner.plan(members, Step(len(members), len(members) / plain, plain, seconds))


def member(sequence_id=0, limit=CAP, **more):
    return Candidate(sequence_id, "model", limit, **more)


@pytest.mark.parametrize(
    ("alpha", "draft_ms", "low", "high"),
    [(0.95, 0.5, 6, 6), (0.6, 1.0, 2, 4), (0.6, 4.0, 1, 1), (0.6, 9.0, 0, 0), (0.02, 1.0, 0, 0)],
)
def test_length_follows_odds_and_price(alpha, draft_ms, low, high):
    bench = Bench(draft_ms)
    bench.planner.curiosity.credit = 0.0
    bench.teach(0, alpha)
    lengths, odds = bench.plan(member())
    assert low <= lengths[0] <= high
    assert odds[0] == pytest.approx(alpha, abs=0.15)


def test_of_proposals_with_omens_the_likeliest_chain_is_learned():
    """A model that says how sure it is, always of another token: right half the time."""
    bench = Bench(0.5)
    rng = random.Random(0)
    for _ in range(200):
        tree = Proposal((1, 2, 3), (rng.choice((1, 8)),) * 3, (-1, -1, 0))
        bench.planner.observe(0, tree, [rng.choice((1, 5)), 3])
    _, odds = bench.plan(member())
    assert odds[0] == pytest.approx(0.5, abs=0.15)
    for _ in range(200):
        bench.planner.observe(0, tree, [5, 3])
    bench.planner.curiosity.credit = 0.0
    lengths, odds = bench.plan(member())
    assert odds[0] < 0.1
    assert lengths == [0]


def test_limits_are_kept():
    bench = Bench(0.1)
    for sequence_id in range(3):
        bench.teach(sequence_id, 0.95)
    lengths, _ = bench.plan(member(0, 1), member(1, 3), member(2, 6))
    assert lengths == [1, 3, 6]


def test_a_small_change_does_not_change_the_length():
    bench = Bench()
    bench.teach(0, 0.6)
    (length,), _ = bench.plan(member())
    step = Step(1, 0.1, 10.0, bench.target.predict_from(1, 1, CAP))
    worth = bench.planner.weigh([member()], step).worth
    other = max((k for k in range(CAP + 1) if k != length), key=worth.__getitem__)
    assert worth[length] - worth[other] < 0.05
    bench.planner._last = {0: other}
    kept = bench.plan(member())[0] == [other]
    assert kept == (worth[length] - worth[other] < 0.01)


def test_one_that_was_left_out_is_asked_again_along_with_the_others():
    bench = Bench(0.1)
    bench.teach(0, 0.95)
    bench.teach(1, 0.0, num_looks=300)
    step = Step(2, 5.0, 10.0, bench.target.predict_from(2, 2, 2 * CAP) * 30)
    members = [member(0), member(1, num_undrafted=REVISIT_TOKENS - 1)]
    lengths = [3, 0]
    bench.planner._revisit(members, lengths, step)
    assert lengths == [3, 0]
    members[1] = member(1, num_undrafted=REVISIT_TOKENS)
    bench.planner._revisit(members, lengths, step)
    assert lengths == [3, 1]


def test_nobody_is_revisited_at_a_price():
    bench = Bench(0.1, row_ms=0.1)
    step = Step(2, 0.2, 10.0, bench.target.predict_from(2, 2, 2 * CAP))
    lengths = [3, 0]
    bench.planner._revisit([member(0), member(1, num_undrafted=40)], lengths, step)
    assert lengths == [3, 0]


def test_who_is_far_behind_waits_until_it_pays():
    bench = Bench(0.5, row_ms=0.2)
    for sequence_id in range(2):
        bench.teach(sequence_id, 0.8)
    (first, near), _ = bench.plan(member(0), member(1, num_undrafted=20))
    assert min(first, near) >= 1
    (first, far), _ = bench.plan(member(0), member(1, num_undrafted=5000))
    assert first >= 1
    assert far == 0


@pytest.mark.parametrize(("credit", "lengths"), [(0.1, [0, 0]), (0.22, [0, 1]), (0.3, [1, 1])])
def test_the_nearest_are_asked_out_of_curiosity(credit, lengths):
    """One call costs 2.1 ms for the nearer one, 2.55 ms for both; a plain step takes 10 ms."""
    bench = Bench(2.0, row_ms=0.05)
    for sequence_id in range(2):
        bench.teach(sequence_id, 0.0, num_looks=100)
    bench.planner.curiosity.credit = credit
    bench.planner.curiosity.num_idle = 99
    members = member(0, num_undrafted=9), member(1, num_undrafted=2)
    assert bench.plan(*members)[0] == lengths
    assert bench.plan(*members)[0] == [0, 0]  # and not at once again


@pytest.mark.parametrize(("batch", "least"), [(1, 0.0032), (4, 0.05), (16, 0.8), (64, 3.2)])
@pytest.mark.parametrize("free", [0.0, 0.5])
def test_a_crowd_asks_its_model_only_for_a_step_that_promises_something(batch, least, free):
    """What would be cut for promising too little, the free draft tokens counted, is not asked
    for."""

    class Sure(Planner):
        gain = 0.0

        def weigh(self, members, step, optimism=0.0):
            worth = [0.0, (1.0 - free) * self.gain]
            return Weighed(worth, [0.5] * batch, lambda best: [best] * batch, free * self.gain)

    def length(gain):
        planner = Sure(CostModel.fit([]), Outlook())
        planner.gain, planner.curiosity.credit = gain, -1.0
        step = Step(batch, 40.0, 0.05, None)
        return planner.plan([member(i) for i in range(batch)], step)[0]

    assert length(0.97 * least) == [0] * batch
    assert length(1.03 * least) == [1] * batch
