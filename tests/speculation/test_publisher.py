"""Snapshots to metrics, with Triton's families played by support.fake_pb_utils."""

from types import SimpleNamespace

from specdec.speculation import metrics
from specdec.speculation.publisher import MetricsPublisher
from support import fake_pb_utils as pb


def test_snapshots_reach_the_metrics_they_name(monkeypatch):
    monkeypatch.setattr(pb.MetricFamily, "all", {})
    taken = metrics.Snapshot(
        counters={"generation_tokens_total": 3, "step_seconds_total": 0.5},
        per_position={0: 2, 15: 1},
        gauges={"num_requests_running": 4},
        observations={"time_to_first_token_seconds": [0.1, float("nan"), -1.0]},
    )
    source = SimpleNamespace(take=lambda: taken)
    publisher = MetricsPublisher(pb.MetricFamily, source, "speculative", 16)
    publisher.stop()  # publishes once more
    found = {names[0]: metric for names, metric in pb.MetricFamily.all.items() if len(names) == 2}
    assert found["specdec:generation_tokens_total"].value % 3 == 0
    assert found["specdec:generation_tokens_total"].value > 0
    assert found["specdec:num_requests_running"].value == 4
    # What Triton's API would reject is left out: its errors can take the server down.
    assert set(found["specdec:time_to_first_token_seconds"].values) == {0.1}
    last = pb.MetricFamily.all[f"specdec:{metrics.PER_POSITION}", "speculative", "15"]
    assert last.value > 0
    names = {name.removeprefix("specdec:") for name, *_ in pb.MetricFamily.all}
    assert names >= {*metrics.COUNTERS, *metrics.GAUGES, *metrics.HISTOGRAMS}
