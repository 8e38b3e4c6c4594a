"""What a controller publishes, and what is made of it at the other end."""

import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

from specdec.speculation import metrics
from specdec.speculation.controller import Controller
from specdec.speculation.costs import CostModel
from specdec.speculation.forecast import DEFAULT_RATES, Knowledge
from specdec.speculation.metrics import Metrics
from specdec.speculation.planner import Candidate, DraftModel
from specdec.speculation.state import FAMILIES, State, read
from specdec.types import Proposal
from support.engine import Harness
from support.world import CAP, MACHINES, World, cpu


@pytest.fixture(scope="module")
def world():
    world = World(MACHINES["cpu"], "model", 16)
    world.goodput([0.8] * 4, 60)
    return world


def test_everything_is_there(world):
    states = read(world.controller, 16)
    assert {state.family for state in states} == set(FAMILIES)
    sizes = {dict(s.labels)["sequences"] for s in states if s.family == "step_overhead_seconds"}
    assert sizes == {"1", "2", "4", "8", "16"}
    cost = states[State.of("verify_cost_seconds", sequences=4, rows=12)]
    assert cost == pytest.approx(cpu(4, 12), rel=0.1)
    draft = states[State.of("draft_cost_seconds", sequences=1, rows=1, drafter="model")]
    assert draft == pytest.approx(0.1 * cpu(1, 1), rel=0.1)
    rate = states[State.of("spec_decode_acceptance", drafter="model", omen=0, position=0)]
    assert rate == pytest.approx(0.8, abs=0.15)
    assert states[State.of("spec_decode_predicted_gain", sequences=4)] > 1.2
    assert all(value >= 0 for value in states.values())


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_it_comes_back_as_the_same_costs(world, batch):
    known = Knowledge.of(read(world.controller, 16))
    for each in (1, 3, 9):
        rows = batch * each
        expected = world.controller.prices.target.predict(batch, rows)
        assert known.target.predict(batch, rows) == pytest.approx(expected, rel=0.08)
        expected = world.controller.models["model"].cost.predict(batch, rows)
        assert known.drafts["model"].predict(batch, rows) == pytest.approx(expected, rel=0.08)


def test_what_a_model_will_propose_is_told_of_all_its_omens_together():
    """How sure it was of a token is known only once it was asked."""
    model = DraftModel(CostModel.fit(()))
    controller = Controller(CostModel.fit(()), {"model": model}, ["model"], {"model": {1: 0.5}})
    candidate = Candidate(0, "model", CAP)
    for number in range(200):  # sure every other time, and right then
        omen = 2 - number % 2
        proposal = Proposal((1, 1), (omen, omen))
        controller.observe_text(candidate, proposal, (1, 1) if omen == 2 else (0, 0))
    states = read(controller, 4)
    rate = partial(State.of, "spec_decode_acceptance", drafter="model", position=0)
    assert states[rate(omen=2)] > 0.9
    assert states[rate(omen=1)] < 0.1
    assert states[rate(omen=0)] == pytest.approx(0.5, abs=0.15)
    assert Knowledge.of(states).mean_rates("model")[0] == states[rate(omen=0)]


@pytest.mark.parametrize("drafter", ["free", "model"])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_a_forecast_is_as_good_as_the_best_fixed_length(drafter, alpha, batch):
    world = World(MACHINES["cpu"], drafter, 16)
    known = Knowledge.of(read(world.controller, 16))
    found = known.forecast(drafter, [alpha] * CAP, batch, cap=CAP)
    alphas = [alpha] * batch
    best = world.best_fixed(alphas) / world.fixed_goodput(alphas, 0)
    assert found.gain == pytest.approx(best, rel=0.06)
    assert found.plain_seconds == pytest.approx(cpu(batch, batch), rel=0.05)
    assert (found.draft_length > 0) == (found.gain > 1.005)


def test_a_forecast_says_why():
    free = Knowledge.of(read(World(MACHINES["cpu"], "free", 16).controller, 16))

    def why(rates, batch, cap=CAP):
        return free.forecast("free", rates, batch, cap=cap).reason

    assert why([0.99], 1, cap=4) == "cap"
    assert why([0.99, 0.05], 1) == "acceptance"
    assert why([0.85], 1) == "cost"
    assert why([0.5], 64) == "load"
    assert free.forecast("free", DEFAULT_RATES, 1, cap=16).draft_length >= 3


def test_positions_come_in_any_order_and_may_be_missing():
    costs = {State.of("verify_cost_seconds", sequences=1, rows=rows): 1.0 for rows in (1, 2, 9)}
    rates = {
        State.of("spec_decode_acceptance", drafter="ngram", omen=2, position=position): rate
        for position, rate in ((10, 0.3), (0, 0.9), (3, 0.5))
    }
    known = Knowledge.of({**costs, **rates})
    found = known.rates["ngram"][2]
    assert (found[0], found[3], found[10]) == (0.9, 0.5, 0.3)
    assert len(found) == 11


def test_without_costs_nothing_can_be_said():
    with pytest.raises(ValueError, match="verify_cost_seconds"):
        Knowledge.of({})


def test_the_state_is_read_now_and_then(monkeypatch):
    now, reads = [100.0], []
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found, state = Metrics(), State.of("verify_cost_seconds", sequences=1, rows=1)

    def look():
        found.state(lambda: reads.append(1) or {state: 2.0})

    look()
    look()
    assert len(reads) == 1
    assert found.take().states == {state: 2.0}
    assert found.take().states == {}
    now[0] += metrics.STATE_SECONDS
    look()
    assert len(reads) == 2
    found.state(lambda: reads.append(1) or {state: 3.0}, is_last=True)
    assert found.take().states == {state: 3.0}


def test_an_idle_server_publishes_its_costs_before_the_first_step_and_after_the_last():
    harness = Harness()
    cost = State.of("verify_cost_seconds", sequences=1, rows=1)
    assert harness.metrics.take().states[cost] > 0
    sink = harness.submit([1, 2, 3], 4)
    engine = threading.Thread(target=harness.engine.run)
    engine.start()
    while not sink.num_endings:
        time.sleep(0.001)
    deadline = time.monotonic() + 10
    while cost not in (states := harness.metrics.take().states) and time.monotonic() < deadline:
        time.sleep(0.001)
    harness.engine.stop()
    engine.join()
    assert states[cost] > 0
