"""/metrics: every name is there, and the counters are what clients received."""

import re

import pytest

from specdec.speculation.metrics import COUNTERS, GAUGES, HISTOGRAMS, PER_POSITION

pytestmark = pytest.mark.server


def test_every_name_is_there(served):
    url = f"http://127.0.0.1:{served.ports.metrics}/metrics"
    text = served.http.get(url).text
    for name in (*COUNTERS, *GAUGES, PER_POSITION):
        assert re.search(rf'^specdec:{name}{{model="speculative"[^}}]*}} \d', text, re.MULTILINE), (
            name
        )
        assert re.search(rf"^# HELP specdec:{name} \w", text, re.MULTILINE)
    for name in HISTOGRAMS:
        for part in ("_count", "_sum", '_bucket{le="+Inf"'):
            assert f"specdec:{name}{part}" in text.replace('{model="speculative",le=', "{le=")
    assert "nan" not in text.lower()


@pytest.fixture
def growth(served):
    """How far the counters have grown since the test began."""
    before = served.settled_metrics()

    def measure():
        after = served.settled_metrics()
        assert before.keys() <= after.keys()
        grown = {name: after[name] - before.get(name, 0.0) for name in after}  # some are new
        assert all(grown[name] >= 0 for name in grown if name.endswith("_total"))
        return grown

    return measure


def test_counters_are_what_clients_received(served, growth):
    answers = [
        call.finish()
        for call in [
            served.call(
                text_input=f"the quick brown fox {i}",
                drafter=["ngram", "draft_model", "none"][i % 3],
                num_draft_tokens=i % 5,
                max_tokens=10 + i,
                return_perf_metrics=True,
                return_num_input_tokens=True,
            )
            for i in range(15)
        ]
    ]
    grown = growth()
    assert sum(len(answer.ids()) for answer in answers) == sum(10 + i for i in range(15))
    received = {
        "generation_tokens_total": sum(len(a.ids()) for a in answers),
        "prompt_tokens_total": sum(int(a.rows("num_input_tokens")[0][0]) for a in answers),
        "prefix_cache_hits_total": sum(a.count("kv_cache_reused_blocks") for a in answers),
        "spec_decode_num_draft_tokens_total": sum(a.count("total_draft_tokens") for a in answers),
        "spec_decode_num_accepted_tokens_total": sum(
            a.count("total_accepted_draft_tokens") for a in answers
        ),
        "requests_finished_total": 15,
        "requests_cancelled_total": 0,
        "draft_errors_total": 0,
        "time_to_first_token_seconds_count": 15,
        "time_per_output_token_seconds_count": 15,
    }
    assert {name: grown[name] for name in received} == received
    accepted = received["spec_decode_num_accepted_tokens_total"]
    assert 0 < accepted < received["spec_decode_num_draft_tokens_total"]
    positions = [grown[f"{PER_POSITION}[{n}]"] for n in range(16)]
    assert sum(positions) == accepted
    assert positions == sorted(positions, reverse=True)
    assert 0 < grown["spec_decode_num_drafts_total"] <= grown["num_steps_total"] * 15


def test_times_add_up(served, growth):
    served.ask("the fox", drafter="draft_model", num_draft_tokens=4, max_tokens=60)
    grown = growth()
    inside = grown["draft_seconds_total"] + grown["verify_seconds_total"]
    assert grown["draft_seconds_total"] > 0
    assert 0 < inside < grown["step_seconds_total"] < 5


def test_plain_decoding_drafts_nothing(served, growth):
    served.ask("the fox", num_draft_tokens=0)
    served.ask("the fox", drafter="none")
    grown = growth()
    assert grown["generation_tokens_total"] == 48
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert grown[f"spec_decode_num_{name}_total"] == 0
    assert grown["draft_seconds_total"] == 0


def test_refused_requests_count_for_nothing(served, growth):
    for _ in range(3):
        assert served.ask("the fox", max_tokens=-1).errors
    grown = growth()
    assert not any(grown.values())


def test_only_committed_tokens_count(served, growth):
    """A stop word inside an accepted block: what comes after it never happened."""
    text = served.ask("the fox", num_draft_tokens=0).text()
    before = growth()
    answer = served.ask(
        "the fox", drafter="draft_model", num_draft_tokens=16, stop_words=[text[12:14]]
    )
    after = growth()
    assert answer.finish_reason() == "stop"
    grown = after["generation_tokens_total"] - before["generation_tokens_total"]
    assert grown == len(answer.ids()) == answer.count("num_output_tokens") < 24
