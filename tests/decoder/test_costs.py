"""Measured once, remembered beside the artifact, and never a reason not to load."""

import dataclasses
import json
import statistics

import pytest

from specdec.artifact import GRAPH, Artifact
from specdec.config import DecoderConfig
from specdec.decoder import costs as costs_module
from specdec.decoder.costs import FILE, ROWS_ALONE, load_or_measure, measure, shapes
from specdec.decoder.decoder import load_decoder
from specdec.decoder.runtimes import load_runtime
from specdec.types import SamplingParams
from support.tiny import export_tiny


@pytest.fixture
def idle(monkeypatch):
    """The machine that runs the tests may be busy."""
    monkeypatch.setattr(costs_module, "_waited", lambda: 0.0)


class CountingRuntime:
    """Counts passes of the runtime it wraps; notes their sequences and rows."""

    def __init__(self, runtime):
        self._runtime = runtime
        self.num_passes = 0
        self.shapes = []

    def __getattr__(self, name):
        return getattr(self._runtime, name)

    def forward(self, built):
        self.num_passes += 1
        self.shapes.append((built.last - built.first, len(built.output_rows)))
        return self._runtime.forward(built)


def test_measured_once_per_artifact_and_machine(tmp_path, idle):
    directory = export_tiny(tmp_path)
    artifact = Artifact.read(directory)
    runtime = CountingRuntime(load_runtime(artifact, directory, num_slots=8, num_threads=1))

    def ask(artifact=artifact, num_threads=1):
        return load_or_measure(runtime, artifact, directory, min_rows=2, num_threads=num_threads)

    costs = ask()
    assert [c.num_rows for c in costs if c.num_sequences == 1] == list(ROWS_ALONE)
    assert [(c.num_sequences, c.num_rows) for c in costs] == shapes(8)
    assert all(c.seconds > 0 for c in costs)
    measured = runtime.num_passes
    assert ask() == costs
    assert runtime.num_passes == measured
    ask(num_threads=2)
    ask(dataclasses.replace(artifact, weights_sha256="other"))
    assert runtime.num_passes == 3 * measured
    graph = directory / GRAPH
    graph.write_bytes(graph.read_bytes() + b"\0")  # the same weights in another graph
    ask()
    assert runtime.num_passes == 4 * measured


def test_a_damaged_or_unwritable_file_only_costs_time(tmp_path):
    directory = export_tiny(tmp_path)
    artifact = Artifact.read(directory)
    runtime = load_runtime(artifact, directory, num_slots=2, num_threads=1)
    for content in ("not json", "[1]"):
        (directory / FILE).write_text(content)
        assert load_or_measure(runtime, artifact, directory, min_rows=2, num_threads=1)
    missing = tmp_path / "nowhere"
    assert load_or_measure(runtime, artifact, missing, min_rows=2, num_threads=1)


def test_rounds_over_all_shapes(tmp_path):
    """What disturbs for a moment hits one pass of a shape and not all of them."""
    directory = export_tiny(tmp_path)
    artifact = Artifact.read(directory)
    runtime = CountingRuntime(load_runtime(artifact, directory, num_slots=4, num_threads=1))
    times = measure(runtime, artifact, 1)
    one_round = shapes(4)
    assert list(times) == one_round
    assert runtime.shapes[: len(one_round)] == one_round
    assert runtime.shapes[len(one_round) : 2 * len(one_round)] == one_round
    assert {len(found) for found in times.values()} <= {2, 3}


def test_what_was_measured_on_a_busy_machine_is_used_and_not_saved(tmp_path, monkeypatch):
    directory = export_tiny(tmp_path)
    artifact = Artifact.read(directory)
    runtime = load_runtime(artifact, directory, num_slots=2, num_threads=1)
    times = {(1, 1): [0.9, 0.4, 0.6], (1, 2): [0.5, 0.8]}
    monkeypatch.setattr(costs_module, "measure", lambda *_: times)
    for waits, is_saved in (([3.0, 4.0], False), ([4.0, 4.0], True)):
        monkeypatch.setattr(costs_module, "_waited", lambda waits=waits: waits.pop(0))
        costs = load_or_measure(runtime, artifact, directory, min_rows=2, num_threads=1)
        assert costs == ((1, 1, 0.4), (1, 2, 0.5))
        assert (directory / FILE).exists() == is_saved


def test_a_thread_that_had_to_wait_knows_it():
    waited = costs_module._waited()
    assert waited >= 0.0
    assert costs_module._waited() >= waited


def test_a_decoder_measures_when_it_is_first_described_and_not_in_use(tmp_path, idle):
    """At load another model may be loading beside it."""
    directory = export_tiny(tmp_path)
    config = DecoderConfig(max_sequences=2, num_threads=1)
    in_use = load_decoder(config, directory)
    in_use.open(1, [1, 2, 3], SamplingParams())
    assert not in_use.describe().costs
    assert not (directory / FILE).exists()
    decoder = load_decoder(config, directory)
    assert not decoder.info.costs
    costs = decoder.describe().costs
    assert statistics.median(cost.seconds for cost in costs) > 0
    assert len(json.loads((directory / FILE).read_text())) == 1
    assert decoder.describe().costs == costs
