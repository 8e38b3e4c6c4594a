"""Passes of a model that grows trees, beside what its drafter has for nothing."""

import random

import pytest

from specdec.speculation.costs import CostModel
from specdec.speculation.planner import Candidate, DraftModel, Planner, Step
from specdec.speculation.tree_planner import MAX_PASSES, TreePlanner, omen_of, planners
from specdec.types import PassCost, Proposal

CAP = 8
ROW_MS = 0.5


class Bench:
    """A planner on a target whose pass takes 10 ms, and half a millisecond more for each row."""

    def __init__(self, draft_ms=0.3):
        points = [PassCost(1, rows, 10.0 + ROW_MS * rows) for rows in (1, 2, 64, 128)]
        self.target = CostModel.fit(points)
        drafts = [PassCost(1, rows, draft_ms) for rows in (1, 64)]
        self.planner = TreePlanner(CostModel.fit(drafts))
        self.planner.curiosity.credit = 0.0

    def plan(self, *members):
        size = len(members)
        seconds = self.target.predict_from(size, size, sum(m.limit for m in members))
        plain = self.target.predict(size, size)
        return self.planner.plan(members, Step(size, size / plain, plain, seconds))[0]

    def teach(self, free, alpha, *, num_looks=200, sequence_id=0):
        """Trunks that were grown where so much was free hold with `alpha` a token."""
        rng = random.Random(7)
        member = candidate(free=free, sequence_id=sequence_id)
        for _ in range(num_looks):
            held = 0
            while held < CAP and rng.random() < alpha:
                held += 1
            self.planner._asked[sequence_id] = omen_of(member), CAP
            chain = Proposal((1,) * CAP, (3,) * CAP, tuple(range(-1, CAP - 1)))
            self.planner.observe(sequence_id, chain, [*[1] * held, 0][:CAP])


def candidate(sequence_id=0, limit=CAP, free=(), **more):
    return Candidate(sequence_id, "tree", limit, free=tuple(free), **more)


@pytest.mark.parametrize(
    ("alpha", "draft_ms", "low", "high"),
    [(0.95, 0.1, 6, 8), (0.6, 0.3, 3, 6), (0.6, 4.0, 1, 2), (0.6, 9.0, 0, 0), (0.02, 0.3, 0, 0)],
)
def test_passes_follow_odds_and_price(alpha, draft_ms, low, high):
    bench = Bench(draft_ms)
    bench.teach((), alpha)
    (passes,) = bench.plan(candidate())
    assert low <= passes <= high


def test_what_is_free_and_sure_needs_no_model():
    """A copy as good as the head's tree: nothing is to be gained."""
    bench, sure = Bench(), [0.9**n for n in range(1, CAP + 1)]
    bench.teach(sure, 0.9)
    bench.teach((), 0.6)
    assert bench.plan(candidate(free=sure)) == [0]
    assert bench.plan(candidate())[0] > 0


def test_a_poor_copy_does_not_keep_the_model_from_being_asked():
    bench = Bench()
    bench.teach((0.2, 0.04), 0.7)
    assert bench.plan(candidate(free=(0.2, 0.04)))[0] >= 2


def test_what_trunks_are_worth_is_kept_by_what_was_free():
    bench = Bench(1.0)
    bench.teach((0.2,), 0.05)
    bench.teach((), 0.8, sequence_id=1)
    assert bench.plan(candidate(2, free=(0.2,))) == [0]
    assert bench.plan(candidate(3))[0] > 0


def test_a_pass_more_is_not_judged_by_what_stands_behind_the_last():
    """One pass at a time, and nothing right behind it: a second pass is still worth a try."""
    bench = Bench(0.3)
    for _ in range(100):
        bench.planner._asked[0] = 0, 1
        bench.planner.observe(0, Proposal((1, 2, 3), (3,) * 3, (-1, 0, 1)), [1, 9, 9])
    assert bench.plan(candidate())[0] > 1


def test_a_model_that_finds_nothing_is_not_asked():
    """Else only its surer words would count, and it would seem worth its passes in any text."""
    bench = Bench(0.3)
    assert bench.plan(candidate())[0] > 0
    for _ in range(100):
        bench.planner._asked[0] = 0, 3
        bench.planner.observe(0, Proposal(), [5])
    assert bench.plan(candidate()) == [0]


def test_a_trunk_that_ends_before_its_last_pass_has_failed_there():
    bench = Bench(0.3)
    for _ in range(200):
        bench.planner._asked[0] = 0, 3
        bench.planner.observe(0, Proposal((1,), (3,), (-1,)), [1, 9])
    assert 1 <= bench.plan(candidate())[0] <= 2


def test_a_trunk_that_ends_with_the_text_has_not_failed():
    bench, other = Bench(0.3), Bench(0.3)
    for each, outputs in ((bench, [1]), (other, [1, 9])):
        for _ in range(200):
            each.planner._asked[0] = 0, 3
            each.planner.observe(0, Proposal((1,), (3,), (-1,)), outputs)
    assert bench.plan(candidate())[0] > other.plan(candidate())[0]


def test_no_answer_is_not_held_against_it():
    bench = Bench(0.3)
    before = bench.plan(candidate())
    for _ in range(100):
        bench.planner._asked[0] = 0, 3
        bench.planner.unanswered(0)
        bench.planner.observe(0, Proposal(), [5])
    assert bench.plan(candidate()) == before != [0]


def test_a_call_costs_its_way_however_many_passes_it_makes():
    bench = Bench(0.1)
    bench.teach((), 0.8)
    assert bench.plan(candidate())[0] >= 5
    for _ in range(200):
        bench.planner.observe_call([3], num_rows=1, seconds=0.3, hop=2.0)
    assert bench.plan(candidate())[0] >= 4  # passes are as cheap as they were
    for _ in range(200):
        bench.planner.observe_call([3], num_rows=1, seconds=0.3, hop=60.0)
    assert bench.plan(candidate()) == [0]


def test_in_a_batch_only_those_are_asked_whom_it_pays():
    bench, sure = Bench(), [0.95**n for n in range(1, CAP + 1)]
    bench.teach((), 0.7)
    found = bench.plan(candidate(0), candidate(1, free=sure), candidate(2))
    assert found[1] == 0
    assert found[0] == found[2] > 0


def test_who_is_far_behind_waits():
    bench = Bench(0.5)
    points = [PassCost(1, rows, 0.5 + 0.1 * rows) for rows in (1, 2, 64, 4096)]
    bench.planner._cost = CostModel.fit(points)
    bench.teach((), 0.6)
    near, far = bench.plan(candidate(0), candidate(1, num_undrafted=20_000))
    assert near > 0
    assert far == 0


def test_limits_and_the_most_passes_are_kept():
    bench = Bench(0.0)
    bench.teach((), 0.99)
    assert bench.plan(candidate(limit=1)) == [1]
    assert bench.plan(candidate(limit=64)) == [MAX_PASSES]


def test_only_those_who_were_asked_teach():
    bench = Bench(9.0)
    bench.plan(candidate())
    before = bench.planner._outlook.levels()
    bench.planner.observe(0, Proposal((1, 2), (1, 1), (-1, 0)), [1, 2])
    assert bench.planner._outlook.levels() == before


def test_curiosity_asks_one_now_and_then():
    bench = Bench(1.0)
    bench.teach((), 0.01, num_looks=40)
    bench.planner.curiosity.credit, bench.planner.curiosity.num_idle = 1.0, 99
    assert 1 <= bench.plan(candidate())[0] <= 2
    assert bench.plan(candidate()) == [0]


def test_each_kind_of_model_has_its_planner():
    cost = CostModel.fit(())
    found = planners({"chain": DraftModel(cost), "tree": DraftModel(cost, grows_trees=True)})
    assert type(found["chain"]) is Planner
    assert type(found["tree"]) is TreePlanner
