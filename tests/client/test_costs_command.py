"""`specdec costs`: saved tables, live ones, and what is said when there are none."""

import json

import pytest
from typer.testing import CliRunner

from specdec.artifact import Artifact
from specdec.client import costs_command
from specdec.client.cli import app
from specdec.client.errors import ServerUnavailable
from specdec.client.live import metrics_url
from specdec.errors import SpecdecError
from support.metrics_server import MetricsServer, known_states, render
from support.tiny import export_tiny


def run(*arguments):
    return CliRunner().invoke(app, ["costs", *map(str, arguments)])


@pytest.fixture
def directory(tmp_path):
    directory = export_tiny(tmp_path)
    weights = Artifact.read(directory).weights_sha256[:16]
    saved = {
        f"{weights} fp32 here x2 16 slots": [[1, 1, 0.02], [1, 4, 0.0251], [2, 2, 0.03]],
        f"{weights} fp32 there x8 16 slots": [[1, 1, 0.005]],
        "0123456789abcdef fp32 here x2 16 slots": [[1, 1, 9.0]],
    }
    (directory / "costs.json").write_text(json.dumps(saved))
    return directory


@pytest.fixture
def server():
    server = MetricsServer(render(known_states()))
    yield server
    server.stop()


def test_saved_tables_of_this_model_only(directory):
    lines = run(directory).output.splitlines()
    assert sum("slots" in line for line in lines) == 2
    (row,) = [line for line in lines if "20.0" in line]
    assert "25.1" in row
    assert "9000" not in run(directory).output


def test_saved_as_json(directory):
    found = json.loads(run(directory, "--json").output)
    assert [len(table) for table in found.values()] == [3, 1]
    assert next(iter(found.values()))[1] == {"sequences": 1, "rows": 4, "seconds": 0.0251}


def test_measured_where_nothing_is_saved(tmp_path):
    directory = export_tiny(tmp_path)
    output = run(directory, "--json").output
    (table,) = json.loads(output[output.index("{") :]).values()
    assert {(c["sequences"], c["rows"]) for c in table} >= {(1, 1), (1, 32), (16, 128)}


@pytest.mark.parametrize("text", ["not json", "[1]", '{"a": 1}'])
def test_a_damaged_file_is_named(directory, text):
    weights = Artifact.read(directory).weights_sha256[:16]
    (directory / "costs.json").write_text(text.replace("a", f"{weights} x"))
    result = run(directory)
    assert isinstance(result.exception, SpecdecError)
    assert "costs.json cannot be read" in str(result.exception)


def test_no_artifact(tmp_path):
    result = run(tmp_path)
    assert isinstance(result.exception, SpecdecError)
    assert "no exported model" in str(result.exception)


def test_live_tables_of_target_and_draft(server):
    output = run("--url", server.address).output
    assert output.index("target") < output.index("draft model of model")
    (row, *_) = [line for line in output.splitlines() if line.startswith("│    16")]
    assert "71.0" in row  # 24 + 10 * 2 + 15 * 1.8, as the world's machine has it
    found = json.loads(run("--url", server.address, "--json").output)
    assert list(found) == ["target", "draft model of model"]


def test_no_costs_yet_and_no_server(server):
    with pytest.raises(ServerUnavailable, match=r"no metrics at http://127\.0\.0\.1:1/metrics"):
        costs_command.read_live("127.0.0.1:1")
    empty = MetricsServer('specdec:num_steps_total{model="speculative"} 4\n')
    with pytest.raises(ServerUnavailable, match="no costs yet"):
        costs_command.read_live(empty.address)
    empty.stop()
    with pytest.raises(ServerUnavailable, match="404"):
        costs_command.read_live(f"http://{server.address}/other")


def test_addresses(monkeypatch):
    monkeypatch.setenv("METRICS_PORT", "9002")
    assert metrics_url(None) == "http://127.0.0.1:9002/metrics"
    assert metrics_url("host:1") == "http://host:1/metrics"
    assert metrics_url("https://host/prefix/metrics") == "https://host/prefix/metrics"
