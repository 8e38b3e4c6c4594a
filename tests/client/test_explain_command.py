"""`specdec explain`: a running server's choices, from its /metrics alone."""

import json

import pytest
from typer.testing import CliRunner

from specdec.client.cli import app
from specdec.client.errors import RequestRejected, ServerUnavailable
from specdec.client.explain_command import BATCHES
from support.metrics_server import MetricsServer, known_states, render


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def serve(**known):
    return MetricsServer(render(known_states(**known)))


@pytest.fixture
def server():
    server = serve()
    yield server
    server.stop()


def test_draft_lengths_fall_with_the_batch(server):
    (case,) = json.loads(run("--url", server.address, "--json").output)
    assert case["drafter"] == "model"
    assert case["acceptance"][0] == pytest.approx(0.8, abs=0.15)
    batches = case["batches"]
    assert [b["num_sequences"] for b in batches] == list(BATCHES)
    lengths = [b["draft_length"] for b in batches]
    assert lengths[0] >= 3
    assert lengths == sorted(lengths, reverse=True)
    assert batches[0]["gain"] > batches[2]["gain"] > 1.0
    assert batches[-1]["reason"] == "load"


def test_a_person_reads_a_table_and_the_reasons(server):
    output = run("--url", server.address).output
    assert "draft token is accepted: 0." in output
    lines = [line for line in output.splitlines() if line.startswith("│")]
    assert len(lines) == len(BATCHES)
    assert lines[0].split("│")[2].strip() == "24.0 ms"
    assert "load       the batch fills the machine" in output
    assert "none" not in output


def test_a_tree_drafter_is_one_table_whatever_its_omens():
    server = serve(drafter="tree")
    (case,) = json.loads(run("--url", server.address, "--json").output)
    server.stop()
    assert case["drafter"] == "tree"
    odds = case["acceptance"]  # of the best token on offer, the second best, ...
    assert odds[0] == pytest.approx(0.75 * 0.8, abs=0.12)
    assert odds == sorted(odds, reverse=True)
    assert len(odds) >= 4
    assert case["batches"][0]["draft_length"] >= 3
    assert case["batches"][0]["gain"] > 1.3


def test_hopeless_texts_are_not_drafted():
    server = serve(alpha=0.0)
    (case,) = json.loads(run("--url", server.address, "--json").output)
    server.stop()
    assert {b["draft_length"] for b in case["batches"]} == {0.0}
    assert {b["gain"] for b in case["batches"]} == {1.0}
    assert case["batches"][0]["reason"] == "acceptance"


def test_a_cap(server):
    (case,) = json.loads(run("--url", server.address, "-k", 1, "--json").output)
    assert case["batches"][0]["draft_length"] == 1.0
    assert case["batches"][0]["reason"] == "cap"


def test_a_fresh_server_with_a_draft_model_says_what_it_would_try():
    server = serve(batch=0)
    output = run("--url", server.address).output
    server.stop()
    assert "nothing seen" in output


def test_a_fresh_server_without_one_has_nothing_to_say():
    server = serve(drafter="free", batch=0)
    result = run("--url", server.address)
    server.stop()
    assert isinstance(result.exception, ServerUnavailable)
    assert "no drafts yet" in str(result.exception)


def test_an_unknown_drafter_is_refused(server):
    result = run("--url", server.address, "--drafter", "nope")
    assert isinstance(result.exception, RequestRejected)
    assert str(result.exception) == "--drafter 'nope': this server knows model"


def test_no_server():
    result = run("--url", "127.0.0.1:1")
    assert isinstance(result.exception, ServerUnavailable)
