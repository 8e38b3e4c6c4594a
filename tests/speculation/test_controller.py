"""The controller against a simulated machine: never much worse than the best fixed length."""

import time
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest

from specdec.speculation.controller import Controller
from specdec.speculation.costs import CostModel
from specdec.speculation.planner import Candidate, DraftModel
from specdec.types import PassCost, Proposal
from support.world import CAP, MACHINES, World, cpu, fitted, gpu, make_world

ALPHAS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0]
FEWER = [0.0, 0.2, 0.5, 0.7, 0.9, 1.0]
WARM_UP = 50
# Batch -> odds of its texts, steps after the warm-up.
CASES = {1: (ALPHAS, 150), 4: (FEWER, 150), 16: (FEWER, 100), 64: ([0.0, 0.5, 0.8, 1.0], 50)}
# A lone text tells one bit per token: at odds near the break-even of a draft model (0.05 to 0.2
# here) one in twenty misleads for all of 50 steps, so that regret is a mean over texts.
NUM_TEXTS = 3


def regret(world, alphas, later=150):
    """Goodput after the warm-up against (the best fixed length, K = 0), and of the whole run
    against K = 0."""
    start, end = world.goodput(alphas, WARM_UP), world.goodput(alphas, later)
    plain = world.fixed_goodput(alphas, 0)
    whole = (WARM_UP * start + later * end) / (WARM_UP + later)
    return end / world.best_fixed(alphas), end / plain, whole / plain


def check(found, alpha, least=0.95):
    best, plain, whole = (fmean(values) for values in zip(*found, strict=True))
    assert best >= least, (alpha, found)
    assert plain >= 0.98, (alpha, found)
    assert whole >= 0.97, (alpha, found)


@pytest.mark.parametrize("batch", CASES)
@pytest.mark.parametrize("drafter", ["free", "model"])
@pytest.mark.parametrize("machine", MACHINES)
def test_regret_against_the_best_fixed_length(machine, drafter, batch):
    alphas, later = CASES[batch]
    for alpha in alphas:
        is_hard = (batch, drafter) == (1, "model") and 0.0 < alpha <= 0.2
        worlds = [
            World(MACHINES[machine], drafter, max(2, batch), seed=seed)
            for seed in range(NUM_TEXTS if is_hard else 1)
        ]
        check([regret(world, [alpha] * batch, later) for world in worlds], alpha)


@pytest.mark.parametrize("batch", [1, 4, 16, 32])
@pytest.mark.parametrize("machine", MACHINES)
def test_regret_of_trees(machine, batch):
    """With the drafter's own time in the account, as measured on two cores."""
    for alpha in (0.0, 0.3, 0.6, 0.9, 1.05):
        world = make_world(MACHINES[machine], "tree", max(2, batch), asking=0.06)
        check([regret(world, [alpha] * batch, 120)], alpha)


@pytest.mark.parametrize("free", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("machine", MACHINES)
def test_regret_of_passes_beside_what_is_free(machine, batch, free):
    """Cheap passes pay at small odds: that a lone text has none is known after 150 steps."""
    for alpha in (0.0, 0.4, 0.7, 0.95):
        found = []
        for seed in range(NUM_TEXTS if batch == 1 else 1):
            world = make_world(
                MACHINES[machine], "passes", 16, free=free, draft_share=0.03, seed=seed
            )
            world.goodput([alpha] * batch, 100 if batch == 1 else 1)
            found.append(regret(world, [alpha] * batch, 120))
        check(found, alpha)


def test_a_model_that_is_no_better_than_what_is_free_is_hardly_asked():
    world = make_world(cpu, "passes", 16, free=0.7, draft_share=0.1)
    world.goodput([0.7], 100)
    before = world.num_draft_calls
    world.goodput([0.7], 200)
    assert world.num_draft_calls - before <= 30


WRONG = {
    "twice": lambda n, rows: 2.0 * cpu(n, rows),
    "half": lambda n, rows: 0.5 * cpu(n, rows),
    "flat": lambda n, rows: 30.0,
    "too steep": lambda n, rows: 10.0 + 5.0 * rows,
    "one at a bad moment": lambda n, rows: cpu(n, rows) * (1.0 if n > 1 else 1.6),
    "many at a bad moment": lambda n, rows: cpu(n, rows) * (1.6 if n > 1 else 1.0),
}


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("drafter", ["free", "tree"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_table_is_forgiven(wrong, drafter, batch):
    """Within 50 steps, on a machine whose passes take uneven times."""
    for alpha in (0.0, 0.4, 0.8):
        worlds = [
            make_world(cpu, drafter, max(2, batch), table=WRONG[wrong], noise=0.05, seed=seed)
            for seed in range(3 if alpha == 0.4 else 1)  # it hardly pays: a matter of luck
        ]
        check([regret(world, [alpha] * batch, 150) for world in worlds], alpha, 0.93)


@pytest.mark.parametrize("drafter", ["free", "model"])
@pytest.mark.parametrize("machine", MACHINES)
def test_regret_of_a_crowd(machine, drafter):
    for alpha in (0.1, 0.8):
        world = World(MACHINES[machine], drafter, 256)
        check([regret(world, [alpha] * 256, later=20)], alpha)


@pytest.mark.parametrize("drafter", ["free", "model"])
def test_regret_where_passes_take_uneven_times(drafter):
    for alpha in (0.1, 0.5, 0.9):
        worlds = [World(MACHINES["cpu"], drafter, noise=0.15, seed=seed) for seed in range(2)]
        check([regret(world, [alpha] * 4) for world in worlds], alpha)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("drafter", ["free", "model"])
def test_a_batch_of_unlike_texts_drafts_for_the_likely_ones(machine, drafter):
    world = World(MACHINES[machine], drafter)
    alphas = [0.9, 0.05, 0.9, 0.05]
    world.goodput(alphas, WARM_UP)
    assert world.goodput(alphas, 150) >= 0.98 * world.best_fixed(alphas)


def test_no_draft_call_when_the_draft_is_always_wrong():
    world = World(MACHINES["cpu"], "model")
    world.goodput([0.0], WARM_UP)
    before = world.num_draft_calls
    world.goodput([0.0], 400)
    assert 1 <= world.num_draft_calls - before <= 400 // 10  # it asks now and then, not often


def test_no_draft_call_where_even_right_tokens_do_not_pay():
    """A row costs as much as a step gives: the machine is full."""
    world = World(lambda n, rows: 1.0 * rows, "model")
    world.goodput([1.0] * 8, 20)
    before = world.num_draft_calls
    world.goodput([1.0] * 8, 200)
    assert world.num_draft_calls == before


@pytest.mark.parametrize("drafter", ["free", "model"])
def test_it_comes_back_when_the_text_turns(drafter):
    world = World(MACHINES["cpu"], drafter)
    world.goodput([0.0], 200)
    world.goodput([0.9], 100)
    assert world.goodput([0.9], 100) >= 0.95 * world.best_fixed([0.9])


@pytest.mark.parametrize("drafter", ["free", "model"])
def test_it_gives_up_when_the_text_turns(drafter):
    world = World(MACHINES["cpu"], drafter)
    world.goodput([0.9] * 4, 200)
    world.goodput([0.0] * 4, WARM_UP)
    assert world.goodput([0.0] * 4, 100) >= 0.98 * world.fixed_goodput([0.0] * 4, 0)


@pytest.mark.parametrize("drafter", ["free", "model", "tree"])
def test_a_load_square_wave(drafter):
    world = make_world(cpu, drafter)
    alone, many = [0.7], [0.7] * 32
    for _ in range(3):
        world.goodput(alone, 40)
        assert world.goodput(alone, 40) >= 0.95 * world.best_fixed(alone)
        world.goodput(many, 20)
        assert world.goodput(many, 40) >= 0.95 * world.best_fixed(many)
    world.goodput(alone, 2)
    assert min(world.lengths[-2:]) >= 2  # at once, not after another warm-up


@pytest.mark.parametrize("drafter", ["free", "tree"])
def test_the_gain_is_back_two_seconds_after_the_load_falls(drafter):
    """Even where the load was more than the machine can draft for."""
    world = make_world(cpu, drafter, asking=0.1)
    world.goodput([0.7], 60)
    for _ in range(3):
        world.goodput([0.5] * 32, 60)
        fell = world.now
        while world.now < fell + 2000.0:
            world.step([0.7])
        assert world.goodput([0.7], 60) >= 0.97 * world.best_fixed([0.7])
        assert world.goodput([0.7], 60) >= 1.2 * world.fixed_goodput([0.7], 0)


def test_a_lone_request_never_pays_for_the_load_before_it():
    world = World(MACHINES["cpu"], "model")
    world.goodput([0.9] * 32, 100)
    assert world.goodput([0.9], 20) >= 0.95 * world.best_fixed([0.9])


@pytest.mark.parametrize("alpha", [0.15, 0.4, 0.8])
@pytest.mark.parametrize(
    ("drafter", "batch"), [("model", 1), ("free", 4), ("tree", 1), ("tree", 8)]
)
def test_no_flapping(drafter, batch, alpha):
    """A tree follows what there is to offer; its mean over ten steps is steady."""
    world = make_world(cpu, drafter, seed=3)
    world.goodput([alpha] * batch, 200)
    size = 10 if drafter == "tree" else 1
    means = [fmean(world.lengths[-100:][i : i + size]) for i in range(0, 100, size)]
    changes = sum(abs(a - b) >= 1.0 for a, b in pairwise(means))
    assert changes <= 0.2 * len(means), means


def test_where_nothing_pays_drafters_are_asked_every_fourth_step():
    world = make_world(cpu, "tree", asking=0.05)
    world.goodput([0.2] * 16, 40)
    before = world.num_asked
    world.goodput([0.2] * 16, 100)
    assert world.num_asked - before <= 26


def test_where_nothing_can_pay_drafters_are_hardly_asked_at_all():
    """A further row costs more than a step gives: the machine is full."""
    world = make_world(lambda n, rows: 1.5 * rows - 0.5 * n, "tree", 8)
    world.goodput([1.0] * 8, 40)
    before = world.num_asked
    world.goodput([1.0] * 8, 200)
    assert world.num_asked - before <= 200 // 16


def two_cores(num_sequences, num_rows):
    """Processor milliseconds of a 135M model in fp32 on one of two cores, measured."""
    return 28.0 + 4.0 * num_sequences + 2.35 * (num_rows - num_sequences)


TWO_CORES_IDLE = 0.34  # for each place that is empty beside a longer sequence


@pytest.mark.parametrize(
    "alphas", [[0.0] * 16, [0.5] * 16, [0.95] * 2 + [0.2] * 14, [1.05] * 16, [0.9] * 4 + [0.1] * 12]
)
def test_a_lone_likely_text_does_not_lengthen_everybodys_pass(alphas):
    """Empty places count, and the controller finds out how much."""
    found = []
    for seed in range(3):
        world = make_world(
            two_cores, "tree", 16, idle=TWO_CORES_IDLE, asking=0.06, noise=0.05, seed=seed
        )
        world.goodput(alphas, WARM_UP)
        found.append(world.goodput(alphas, 100))
    assert fmean(found) >= 0.98 * world.fixed_goodput(alphas, 0)
    assert fmean(found) >= 0.95 * world.best_fixed(alphas)


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 32])
def test_every_concurrency_gains_or_loses_nothing(batch):
    """Texts as an average chat answer offers them; costs and drafter as measured."""
    world = make_world(
        two_cores, "tree", 16, idle=TWO_CORES_IDLE, asking=0.06, noise=0.05, table=cpu
    )
    alphas = [0.5 + 0.4 * (i % 4) / 3 for i in range(batch)]
    world.goodput(alphas, WARM_UP)
    found = world.goodput(alphas, 150)
    assert found >= 0.98 * world.fixed_goodput(alphas, 0)
    assert found >= 0.95 * world.best_fixed(alphas)
    if batch == 1:
        assert found >= 1.2 * world.fixed_goodput(alphas, 0)


def test_asking_that_takes_long_is_rarer():
    world = make_world(gpu, "tree", asking=0.1)
    world.goodput([0.0] * 32, 100)
    before = world.num_asked
    world.goodput([0.0] * 32, 100)
    assert world.num_asked - before <= 4
    assert world.goodput([0.0] * 32, 100) >= 0.98 * world.fixed_goodput([0.0] * 32, 0)


@pytest.mark.parametrize(("alpha", "is_drafted"), [(0.95, True), (0.0, False)])
def test_a_new_sequence_starts_from_the_servers_history(alpha, is_drafted):
    world = World(MACHINES["cpu"], "model")
    for _ in range(4):
        world.goodput([alpha] * 4, 30)
        for sequence_id in range(4):
            world.controller.end(sequence_id)
    new = Candidate(99, "model", CAP, num_undrafted=50)
    limit = world.controller.limits([new])[0]
    assert (limit >= 4) if is_drafted else (limit == 0)


def test_a_newcomer_with_a_long_prompt_does_not_end_the_others_drafts():
    world = World(MACHINES["cpu"], "model")
    world.goodput([0.8] * 3, 60)
    others = [Candidate(i, "model", CAP) for i in range(3)]
    newcomer = Candidate(9, "model", CAP, num_undrafted=20_000)
    *limits, late = world.controller.limits([*others, newcomer])
    assert min(limits) >= 1
    assert late == 0


def _flat(world):
    """Ignores load: rows are free."""
    world.controller.prices.target = CostModel.fit([PassCost(1, 1, 24.0), PassCost(1, 999, 24.0)])
    world.controller.observe_pass = lambda *_, **__: None


def _stubborn(world):
    """Ignores what is accepted."""
    for outlook in world.controller.outlooks.values():
        outlook.observe = lambda *_: None


def _greedy(world):
    world.controller.trim = lambda _, proposals, **__: list(proposals)
    world.controller.limits = lambda candidates: [c.limit for c in candidates]


def _timid(world):
    world.controller.limits = lambda candidates: [0 for _ in candidates]


@pytest.mark.parametrize(
    ("spoil", "drafter", "alpha"),
    [
        (_flat, "free", 0.3),
        (_stubborn, "free", 0.1),
        (_stubborn, "model", 0.9),
        (_greedy, "free", 0.3),
        (_timid, "model", 0.9),
    ],
)
def test_the_bounds_catch_a_controller_that_is_spoilt(spoil, drafter, alpha):
    world = World(MACHINES["cpu"], drafter)
    spoil(world)
    with pytest.raises(AssertionError):
        check([regret(world, [alpha] * 16, later=30)], alpha)


def decision_seconds(batch):
    """The least that one took."""
    world = World(MACHINES["gpu"], "model", batch)
    world.goodput([0.9] * batch, 10)
    candidates = [Candidate(i, "model", CAP) for i in range(batch)]
    times = []
    for _ in range(20):
        began = time.perf_counter()
        limits = world.controller.limits(candidates)
        proposals = [Proposal((1,) * limit) for limit in limits]
        world.controller.trim(candidates, proposals)
        for candidate, proposal in zip(candidates, proposals, strict=True):
            world.controller.observe_text(candidate, proposal, (1, 1, 0))
        times.append(time.perf_counter() - began)
    return min(times)


def test_a_decision_grows_no_faster_than_its_batch():
    """Sixteen times the batch; a sequence's share must not grow, on any machine."""
    assert decision_seconds(256) < 16 * decision_seconds(16)


def test_a_fixed_length_is_left_alone():
    controller = Controller(fitted(MACHINES["cpu"]), {}, ["free"])
    candidates = [Candidate(i, "free", CAP, is_fixed=True) for i in range(64)]
    offered = [Proposal((1,) * CAP)] * 64
    assert controller.limits(candidates) == [CAP] * 64
    assert controller.trim(candidates, offered) == offered


def test_a_fixed_length_leaves_no_room_for_the_others():
    """On a machine with room for 16 rows the exact requests take it all."""
    costs = CostModel.fit([PassCost(1, 1, 1.0), PassCost(1, 16, 1.0), PassCost(1, 32, 9.0)])
    controller = Controller(costs, {}, ["free"])
    fixed = [Candidate(i, "free", CAP, is_fixed=True) for i in range(2)]
    free = [Candidate(2, "free", CAP)]
    offered = [Proposal((1,) * CAP)] * 3
    assert [len(p.token_ids) for p in controller.trim(fixed + free, offered)][:2] == [CAP, CAP]
    alone = Controller(costs, {}, ["free"])
    assert len(alone.trim(free, offered[2:])[0].token_ids) == CAP
    assert len(controller.trim(fixed + free, offered)[2].token_ids) == 0


def test_prompt_rows_use_up_the_cheap_part_of_the_pass():
    costs = CostModel.fit([PassCost(1, 1, 1.0), PassCost(1, 16, 1.0), PassCost(1, 32, 9.0)])
    one, offered = [Candidate(0, "free", CAP)], [Proposal((1,) * CAP)]
    controller = Controller(costs, {}, ["free"])
    assert len(controller.trim(one, offered)[0].token_ids) == CAP
    assert len(controller.trim(one, offered, other_rows=64)[0].token_ids) == 0


def test_reasons_are_told():
    controller = Controller(fitted(MACHINES["cpu"]), {}, ["free"])
    one = Candidate(0, "free", 32)
    controller.trim([one], [Proposal()])
    controller.trim([one], [Proposal((1,))])
    for _ in range(60):
        controller.observe_text(one, Proposal((1,) * CAP), [0])
    controller.trim([one], [Proposal((1,) * 16)])
    for _ in range(400):
        controller.observe_text(one, Proposal((1,) * CAP), [1, 1, 0])
    crowd = [Candidate(i, "free", CAP) for i in range(64)]
    controller.trim(crowd, [Proposal((1,) * CAP)] * 64)
    reasons, expected = controller.take()
    assert reasons["none"] == 1
    assert reasons["cap"] >= 1
    assert reasons["acceptance"] >= 1
    assert expected > 0
    assert controller.take()[0] == {}


def steep(num_sequences, num_rows):
    """A row costs a lone request 0.4 tokens."""
    return 10.0 + 6.0 * num_rows


@pytest.mark.parametrize(
    ("machine", "alpha", "batch", "reason"),
    [
        (steep, 0.6, 1, "cost"),
        (steep, 0.05, 1, "acceptance"),
        (steep, 0.05, 32, "acceptance"),
        (steep, 0.6, 32, "load"),
        (cpu, 0.6, 32, "load"),
        (cpu, 0.05, 32, "load"),  # alone the row would be free
    ],
)
def test_load_is_the_reason_where_a_lone_request_would_draft(machine, alpha, batch, reason):
    world = make_world(machine, "free", 32)
    world.goodput([alpha] * batch, 100)
    world.controller.take()
    world.goodput([alpha] * batch, 10)
    found = world.controller.take()[0]
    assert found.most_common(1)[0][0] == reason


def test_reasons_are_told_while_drafters_are_not_asked():
    world = make_world(cpu, "tree", asking=0.05)
    world.goodput([0.2] * 16, 40)
    world.controller.take()
    world.goodput([0.2] * 16, 8)
    assert world.controller.take()[0].total() == 8 * 16


def test_a_model_that_was_not_asked_had_more_than_nothing_to_propose():
    world = World(MACHINES["cpu"], "model")
    world.goodput([0.0], 100)
    world.controller.take()
    world.goodput([0.0], 10)
    reasons, _ = world.controller.take()
    assert reasons["none"] == 0
    assert reasons["acceptance"] >= 8


def test_a_limit_of_zero_is_nobodys_decision():
    controller = Controller(CostModel.fit(()), {}, ["none"])
    assert controller.trim([Candidate(0, "none", 0)], [Proposal()]) == [Proposal()]
    assert controller.take()[0] == {}


def test_expected_tokens_are_about_what_comes():
    world = World(MACHINES["gpu"], "free")
    world.goodput([0.7] * 8, WARM_UP)
    world.controller.take()
    steps = [world.step([0.7] * 8)[0] for _ in range(50)]
    assert world.controller.take()[1] == pytest.approx(sum(steps), rel=0.1)


def test_odds_of_a_mixed_batch_come_from_each_ones_own_drafter():
    controller = Controller(fitted(MACHINES["cpu"]), {}, ["good", "bad"])
    good, bad = Candidate(0, "good", CAP), Candidate(1, "bad", CAP)
    for _ in range(100):
        controller.observe_text(good, Proposal((1,) * CAP), (1,) * CAP)
        controller.observe_text(bad, Proposal((1,) * CAP), (0,))
    kept = controller.trim([bad, good] * 8, [Proposal((1,) * CAP)] * 16)
    lengths = np.array([len(p.token_ids) for p in kept])
    assert lengths[::2].max() == 0
    assert lengths[1::2].min() >= 4


def test_a_drafter_of_trees_is_asked_for_all_it_has_in_the_passes_that_pay():
    """A chain costs a pass each, so it is asked for as many tokens as passes pay."""
    models = {
        "chain": DraftModel(fitted(cpu, 0.2)),
        "tree": DraftModel(fitted(cpu, 0.2), grows_trees=True),
    }
    control = Controller(fitted(cpu), models, list(models))
    limits = control.limits([Candidate(1, "chain", CAP), Candidate(2, "tree", CAP)])
    (passes,) = control.judge("tree").passes([2], [()])
    assert 0 < limits[0] < limits[1] == CAP
    assert 0 < passes < CAP


def test_a_chain_stops_where_one_more_pass_costs_more_than_it_promises():
    """What the draft pass takes longer for that sequence; requests of a fixed length do not."""

    def stops(share, *candidates):
        models = {
            "chain": DraftModel(fitted(cpu, share)),
            "tree": DraftModel(fitted(cpu, share), grows_trees=True),
        }
        control = Controller(fitted(cpu), models, ["free", *models])
        control.limits(candidates)
        assert not control.judge("tree").stops
        assert not control.judge("free").stops
        return control.judge("chain").stops

    alone, tree = Candidate(1, "chain", CAP), Candidate(2, "tree", CAP)
    assert stops(0.2, alone, tree).keys() == {1}
    assert stops(0.2, alone)[1] == pytest.approx(0.2)
    assert stops(0.1, alone)[1] == pytest.approx(0.1)
    assert not stops(0.2, alone._replace(is_fixed=True), tree)
    many = stops(0.2, *(alone._replace(sequence_id=i) for i in range(4)))
    assert len(many) == 4
    assert max(many.values()) < 0.1  # the others' pass is made anyway
