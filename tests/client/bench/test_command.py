"""The command as a person meets it, against a client and metrics that are fakes."""

import json

import pytest
from typer.testing import CliRunner

from specdec.client.bench import session, wave
from specdec.client.bench.command import parse_numbers
from specdec.client.bench.metrics import MetricsUnavailable, Scraper
from specdec.client.bench.random_text import NUM_TEXTS
from specdec.client.bench.session import default_metrics_url
from specdec.client.bench.wave import NUM_AT_ONCE
from specdec.client.cli import app
from specdec.client.errors import RequestRejected, ServerFailed, ServerUnavailable
from support.bench import NUM_SLOTS, FakeClient

SERVER = {
    "url": "127.0.0.1:8001",
    "name": "triton 2.51.0",
    "drafter": "ngram",
    "num_draft_tokens": 5,
    "max_running": NUM_SLOTS,
    "num_slots": NUM_SLOTS,
    "idle_prefill_chunk_tokens": 256,
}


@pytest.fixture
def client(monkeypatch):
    client = FakeClient(step_seconds=0.0005)
    monkeypatch.setattr(session, "SpecdecClient", lambda url, model: client)
    monkeypatch.setattr(session.environment, "describe_server", lambda url, model: dict(SERVER))
    monkeypatch.setattr(
        session.metrics, "connect", lambda url: Scraper(client.metrics, poll_seconds=0)
    )
    return client


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", "-n", "4", *map(str, arguments)])


def write_prompts(path, count=2):
    lines = [{"category": "chat", "prompt": f"question {i}"} for i in range(count)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_the_whole_way_from_the_command_line_to_the_file(client, tmp_path):
    file = tmp_path / "out.json"
    prompts = write_prompts(tmp_path / "p.jsonl")
    done = bench(
        *("--prompts", prompts, "--variant", "ngram:8", "--concurrency", "1,2", "--json", file)
    )
    assert done.exit_code == 0, done.output
    for title in ("One request at a time", "One step while decoding", "Many requests at once"):
        assert title in done.stdout
    assert "same ids in all variants: 2 of 2 prompts" in done.stdout
    assert "same ids in all variants and levels: 12 of 12 prompts" in done.stdout
    assert "2 prompts, 1 categories, up to 4 tokens, greedy; K=0, default, ngram:8" in done.stderr
    found = json.loads(file.read_text())
    assert found["is_complete"]
    assert len(found["records"]) == 6
    assert found["settings"]["max_tokens"] == 4
    assert found["environment"]["server"]["num_draft_tokens"] == 5
    assert found["environment"]["machine"]["cores"] >= 1


@pytest.mark.parametrize("num_lost", [0, 1])
def test_drafts_that_were_lost_are_told(client, tmp_path, num_lost):
    """Else a server that runs without its head looks like one whose head is poor."""
    client.num_draft_errors = num_lost
    done = bench("--prompts", write_prompts(tmp_path / "p.jsonl"))
    assert done.exit_code == 0, done.output
    assert ("requests lost their drafts" in done.stdout) == bool(num_lost)


def test_whether_it_is_ever_slower(client, tmp_path, monkeypatch):
    monkeypatch.setattr(wave, "_LEAST_SECONDS", 0.0)
    file = tmp_path / "out.json"
    parts = ("--no-single", "--fixed", "2,4", "--random-text", "--square-wave", "--repeats", 1)
    done = bench(*parts, "--prompts", write_prompts(tmp_path / "p.jsonl"), "--json", file)
    assert done.exit_code == 0, done.output
    titles = ("One draft length for all 2 prompts", "Random text", "A wave of load")
    places = [done.stdout.index(title) for title in titles]
    assert places == sorted(places)
    assert "One request at a time" not in done.stdout
    found = json.loads(file.read_text())
    assert found["fixed"]["variants"]["K=4"] == {"num_draft_tokens": 4, "adaptive": False}
    assert len(found["random_text"]["records"]) == 2 * NUM_TEXTS
    (one,) = found["square_wave"]["waves"]
    assert len(one["load"]) == NUM_AT_ONCE - 1
    assert found["settings"]["fixed"] == [2, 4]


def test_ctrl_c_in_a_wave_prints_what_there_is(client, tmp_path, monkeypatch):
    client.failures["ferry"] = KeyboardInterrupt()
    done = bench("--no-single", "--fixed", "2", "--square-wave", "--per-category", "1")
    assert done.exit_code == 130
    assert "One draft length for all 5 prompts" in done.stdout
    assert "note: stopped before the end" in done.stdout
    assert "A wave of load" not in done.stdout


def test_without_a_file_the_builtin_prompts_are_used(client):
    done = bench("--per-category", "1")
    assert done.exit_code == 0, done.output
    assert "5 prompts, 5 categories" in done.stderr
    assert "summarise" in done.stdout


def test_ctrl_c_prints_what_there_is(client, tmp_path):
    client.failures["question 1"] = KeyboardInterrupt()
    file = tmp_path / "out.json"
    done = bench("--prompts", write_prompts(tmp_path / "p.jsonl"), "--json", file)
    assert done.exit_code == 130
    assert "note: stopped before the end" in done.stdout
    assert "same ids in all variants: 1 of 1 prompts" in done.stdout
    assert not json.loads(file.read_text())["is_complete"]


def test_an_error_in_the_middle_prints_what_there_is_and_then_the_error(client, tmp_path):
    client.failures["question 1"] = ServerFailed("the target broke")
    done = bench("--prompts", write_prompts(tmp_path / "p.jsonl"))
    assert isinstance(done.exception, ServerFailed)
    assert "note: ended by an error: the target broke" in done.stdout
    assert "One request at a time" in done.stdout


def test_a_server_without_metrics_is_measured_from_outside(client, monkeypatch, tmp_path):
    def connect(url):
        raise MetricsUnavailable(f"no metrics at {url}")

    monkeypatch.setattr(session.metrics, "connect", connect)
    done = bench("--prompts", write_prompts(tmp_path / "p.jsonl"))
    assert done.exit_code == 0, done.output
    assert "One step while decoding" not in done.stdout
    assert "nothing is known of steps" in " ".join(done.stdout.split())


def test_a_server_that_is_not_there():
    done = bench("--url", "127.0.0.1:9")
    assert isinstance(done.exception, ServerUnavailable)
    assert "no server with a ready model 'speculative' answers at 127.0.0.1:9" in str(
        done.exception
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bare", "x", "--temperature", "0.5"], "--bare is a greedy loop"),
        (["--concurrency", "1,x"], "--concurrency '1,x': expected numbers"),
        (["--fixed", "0"], "--fixed '0': expected numbers from 1 to 64"),
        (["--no-single"], "--no-single leaves nothing to measure"),
        (["--no-single", "--random-text", "--bare", "x"], "need prompts one at a time"),
        (["--json", "/nowhere/out.json"], "cannot be written"),
        (["--prompts", "/nowhere.jsonl"], "cannot be read"),
        (["--variant", "eagles"], "no drafter 'eagles'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(client, arguments, message):
    done = bench(*arguments)
    assert isinstance(done.exception, RequestRejected)
    assert message in str(done.exception)
    assert not client.requests


def test_lists_of_numbers():
    assert parse_numbers("--fixed", None, most=64) == ()
    assert parse_numbers("--fixed", "1, 4,16,4", most=64) == (1, 4, 16)
    for text in ("", "0", "-1", "1,,2", "65"):
        with pytest.raises(RequestRejected, match="expected numbers from 1 to 64"):
            parse_numbers("--fixed", text, most=64)


def test_metrics_are_looked_for_on_the_servers_host(monkeypatch):
    monkeypatch.delenv("METRICS_PORT", raising=False)
    assert default_metrics_url("gpu7:8001") == "http://gpu7:8002/metrics"
    assert default_metrics_url("[::1]:8001") == "http://[::1]:8002/metrics"
    monkeypatch.setenv("METRICS_PORT", "9002")
    assert default_metrics_url("127.0.0.1:9001") == "http://127.0.0.1:9002/metrics"
