"""The controller against a simulated machine: never much worse than the best fixed length."""

from itertools import pairwise

import pytest

from specdec.speculation.controller import Candidate, Controller
from specdec.speculation.costs import CostModel
from specdec.types import Proposal
from support.world import CAP, MACHINES, World, fitted

ALPHAS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0]
WARM_UP = 50


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 64, 256])
@pytest.mark.parametrize("drafter", ["free", "model"])
@pytest.mark.parametrize("machine", MACHINES)
def test_regret_against_the_best_fixed_length(machine, drafter, batch):
    for alpha in ALPHAS:
        world = World(MACHINES[machine], drafter)
        alphas = [alpha] * batch
        start = world.goodput(alphas, WARM_UP)
        later = world.goodput(alphas, 150)
        fixed = [world.fixed_goodput(alphas, k) for k in range(CAP + 1)]
        assert later >= 0.95 * max(fixed), (alpha, later / max(fixed), world.lengths[-20:])
        assert later >= 0.98 * fixed[0], (alpha, later / fixed[0])
        whole = (WARM_UP * start + 150 * later) / (WARM_UP + 150)
        assert whole >= 0.97 * fixed[0], (alpha, whole / fixed[0])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("drafter", ["free", "model"])
def test_a_batch_of_unlike_texts_drafts_for_the_likely_ones(machine, drafter):
    world = World(MACHINES[machine], drafter)
    alphas = [0.9, 0.05, 0.9, 0.05]
    world.goodput(alphas, WARM_UP)
    fixed = max(world.fixed_goodput(alphas, k) for k in range(CAP + 1))
    assert world.goodput(alphas, 150) >= 0.98 * fixed


def test_no_draft_call_when_the_draft_is_always_wrong():
    world = World(MACHINES["cpu"], "model")
    world.goodput([0.0], WARM_UP)
    before = world.num_draft_calls
    world.goodput([0.0], 400)
    assert 1 <= world.num_draft_calls - before <= 400 // 10  # it asks now and then, not often


def test_it_comes_back_when_the_text_turns():
    world = World(MACHINES["cpu"], "model")
    world.goodput([0.0], 200)
    world.goodput([0.9], 150)
    fixed = max(world.fixed_goodput([0.9], k) for k in range(CAP + 1))
    assert world.goodput([0.9], 100) >= 0.95 * fixed


@pytest.mark.parametrize("drafter", ["free", "model"])
def test_a_load_square_wave(drafter):
    world = World(MACHINES["cpu"], drafter)
    alone, many = [0.7], [0.7] * 32
    best = {
        len(alphas): max(world.fixed_goodput(alphas, k) for k in range(CAP + 1))
        for alphas in (alone, many)
    }
    for _ in range(3):
        world.goodput(alone, 40)
        assert world.goodput(alone, 40) >= 0.95 * best[1]
        world.goodput(many, 20)
        assert world.goodput(many, 60) >= 0.95 * best[32]


@pytest.mark.parametrize("alpha", [0.15, 0.4, 0.8])
def test_no_flapping(alpha):
    world = World(MACHINES["cpu"], "model", seed=3)
    world.goodput([alpha], 200)
    tail = [round(length) for length in world.lengths[-100:]]
    changes = sum(a != b for a, b in pairwise(tail))
    assert changes <= 20, tail


def test_a_fixed_length_is_left_alone():
    controller = Controller(fitted(MACHINES["cpu"]), {}, ["free"])
    candidates = [Candidate(i, "free", CAP, is_fixed=True) for i in range(64)]
    offered = [Proposal((1,) * CAP)] * 64
    assert controller.limits(candidates) == [CAP] * 64
    assert controller.trim(candidates, offered) == offered


def test_reasons_are_told():
    controller = Controller(fitted(MACHINES["cpu"]), {}, ["free"])
    one = Candidate(0, "free", CAP)
    controller.trim([one], [Proposal()])
    controller.trim([one], [Proposal((1,))])
    for _ in range(60):
        controller.observe_text(one, Proposal((1,) * CAP), [0])
    controller.trim([one], [Proposal((1,) * CAP)])
    for _ in range(400):
        controller.observe_text(one, Proposal((1,) * CAP), [1] * CAP)
    crowd = [Candidate(i, "free", CAP) for i in range(64)]
    controller.trim(crowd, [Proposal((1,) * CAP)] * 64)
    reasons, expected = controller.take()
    assert reasons["none"] == 1
    assert reasons["cap"] >= 1
    assert reasons["acceptance"] >= 1
    assert expected > 0
    assert controller.take()[0] == {}


def test_a_limit_of_zero_is_nobodys_decision():
    controller = Controller(CostModel.fit(()), {}, ["none"])
    assert controller.trim([Candidate(0, "none", 0)], [Proposal()]) == [Proposal()]
    assert controller.take()[0] == {}
