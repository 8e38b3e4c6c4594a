"""Measured once, remembered beside the artifact, and never a reason not to load."""

import dataclasses

from specdec.artifact import Artifact
from specdec.decoder.costs import FILE, ROWS_ALONE, load_or_measure, shapes
from specdec.decoder.runtimes import load_runtime
from support.tiny import export_tiny


class CountingRuntime:
    """Counts passes of the runtime it wraps."""

    def __init__(self, runtime):
        self._runtime = runtime
        self.num_passes = 0

    def __getattr__(self, name):
        return getattr(self._runtime, name)

    def forward(self, built):
        self.num_passes += 1
        return self._runtime.forward(built)


def test_measured_once_per_artifact_and_machine(tmp_path):
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


def test_a_damaged_or_unwritable_file_only_costs_time(tmp_path):
    directory = export_tiny(tmp_path)
    artifact = Artifact.read(directory)
    runtime = load_runtime(artifact, directory, num_slots=2, num_threads=1)
    for content in ("not json", "[1]"):
        (directory / FILE).write_text(content)
        assert load_or_measure(runtime, artifact, directory, min_rows=2, num_threads=1)
    missing = tmp_path / "nowhere"
    assert load_or_measure(runtime, artifact, missing, min_rows=2, num_threads=1)
