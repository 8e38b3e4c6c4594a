import threading

import pytest

from specdec.client.bench import wave as under_test
from specdec.client.bench.load import Driver, Settings
from specdec.client.bench.plan import Plan
from specdec.client.bench.records import Prompt, Results, Variant
from specdec.client.bench.recovery import summarize_waves
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import RequestCancelled, ServerFailed
from support.bench import FakeClient, Recorder

PROMPTS = [Prompt(f"chat/{i}", "chat", "word " * i) for i in range(1, 7)]
STEP = 0.0005


class Crowded(FakeClient):
    """Slower the more there are; runs at most `max_running`, the others wait."""

    def __init__(self, max_running=100):
        super().__init__()
        self._places = threading.Semaphore(max_running)
        self.company: list[int] = []  # at the end of each answer, itself included

    def _answer(self, text, options):
        with self._places:
            for chunk in super()._answer(text, options):
                self._step_seconds = STEP * self.in_flight
                if chunk.finish_reason is not None:
                    self.company.append(self.in_flight)
                yield chunk


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(under_test, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(under_test, "NUM_TOKENS", 400)


def measure(client, *, num_waves=2, **more):
    results, progress = Results(), Recorder()
    plan = Plan(
        PROMPTS, (PLAIN, Variant("default", {})), num_waves=num_waves, waves_effort=6.0, **more
    )
    before = threading.active_count()
    try:
        under_test.measure_waves(Driver(client, Settings()), plan, results, progress)
    finally:
        assert client.in_flight == 0
        assert threading.active_count() == before
    return results, progress


def test_one_request_is_there_all_the_time_and_31_come_and_go():
    client = Crowded()
    results, progress = measure(client)
    assert client.most_in_flight == 32
    assert set(client.company) == {1}, "the load is gone before the lone request ends"
    assert progress.effort == pytest.approx(6.0)
    for wave in results.waves:
        assert wave.calm.num_tokens == wave.lone.num_tokens == 400
        assert 0 < wave.rise_seconds < wave.fall_seconds < wave.lone.total_seconds
        assert len(wave.load) == 31
        assert all(8 <= len(e.token_ids) < 384 for e in wave.load)
    found = summarize_waves(results)
    assert found.num_lone == found.num_lone_equal == 4
    assert found.num_load == found.num_load_equal == 62


def test_texts_of_the_load_are_compared_with_as_much_of_them_alone():
    results, _ = measure(Crowded(), num_waves=1)
    lone, *load = results.wave_plain
    assert (lone.prompt, lone.num_tokens) == ("wave/lone", 400)
    assert [r.prompt for r in load] == [f"chat/{i}" for i in range(1, 5)], "the shortest"
    for r in load:
        found = [len(e.token_ids) for e in results.waves[0].load if e.prompt == r.prompt]
        assert r.num_tokens == max(found)
        assert r.variant == "K=0"


def test_a_server_that_runs_fewer_keeps_the_others_waiting_and_the_wave_goes_on():
    client = Crowded(max_running=4)
    results, _ = measure(client, num_waves=1, max_running=4)
    came = [len(e.token_ids) for e in results.waves[0].load]
    assert sum(n >= 8 for n in came) == 3
    assert came.count(0) == 28
    assert summarize_waves(results).num_load == 3


def test_what_the_load_is_refused_for_is_raised():
    client = Crowded()
    client.failures["word"] = ServerFailed("the target broke")
    with pytest.raises(ServerFailed, match="the target broke"):
        measure(client)


def test_a_wave_that_does_not_go_on_is_given_up(monkeypatch):
    monkeypatch.setattr(under_test, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(under_test, "_LATEST_FALL", 1000)
    with pytest.raises(RequestCancelled, match=r"did not go on"):
        measure(Crowded(max_running=2), max_running=20)


def test_ctrl_c_leaves_nothing_running(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(under_test, "_is_held", stop)
    with pytest.raises(KeyboardInterrupt):
        measure(Crowded())
