import threading
import time

import pytest

from specdec.client.bench.load import Driver, Settings, seed_of
from specdec.client.bench.metrics import Scraper
from specdec.client.bench.records import Prompt, Variant
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import RequestCancelled, ServerFailed, StreamBroken
from specdec.client.results import Chunk, Stats
from support.bench import NUM_SLOTS, PROMPT_TOKENS, FakeClient, FakeStream

DEFAULT = Variant("default", {})
HELLO = Prompt("chat/1", "chat", "Hello")


def driver(client, *, scraper=True, **settings):
    settings = {"max_tokens": 6, "num_slots": NUM_SLOTS, **settings}
    return Driver(
        client,
        Settings(**settings),
        Scraper(client.metrics, poll_seconds=0) if scraper else None,
    )


def test_a_record_holds_what_came_and_when():
    client = FakeClient(step_seconds=0.002)
    found = driver(client).request(HELLO, DEFAULT, repeat=3)
    assert (found.prompt, found.category, found.variant) == ("chat/1", "chat", "default")
    assert found.repeat == 3
    assert found.token_ids == (5, 6, 7, 8, 9, 10)
    assert found.chunk_tokens == (1, 2, 2, 1)
    assert found.num_input_tokens == PROMPT_TOKENS
    assert (found.num_draft_tokens, found.num_accepted_tokens) == (9, 2)
    assert found.num_target_passes == 4
    assert 0.002 <= found.ttft_seconds < found.total_seconds
    assert list(found.chunk_seconds) == sorted(found.chunk_seconds)
    assert found.num_decode_tokens == 5


def test_variants_differ_in_their_options_alone():
    client = FakeClient()
    under_test = driver(client, temperature=0.7)
    under_test.request(HELLO, DEFAULT)
    under_test.request(HELLO, PLAIN)
    under_test.request(Prompt("chat/2", "chat", "Bye"), Variant("n", {"drafter": "ngram"}))
    base = {"max_tokens": 6, "temperature": 0.7, "seed": seed_of(HELLO)}
    (text, default), (_, plain), (_, other) = client.requests
    assert len({o.pop("cache_salt") for o in (default, plain, other)}) == 3
    assert text == "Hello"
    assert default == base
    assert plain == {**base, "num_draft_tokens": 0}
    assert other["drafter"] == "ngram"
    assert other["seed"] != base["seed"]


def test_a_prompt_is_a_chat_unless_raw():
    assert driver(FakeClient()).source(HELLO) == {
        "messages": [{"role": "user", "content": "Hello"}]
    }
    assert driver(FakeClient(), raw=True).source(HELLO) == {"prompt": "Hello"}


def test_measured_fills_the_cache_with_other_text_and_counts_only_the_request():
    client = FakeClient()
    found = driver(client).measured(HELLO, PLAIN)
    *fillers, (text, _) = client.requests
    assert text == "Hello"
    assert len({t for t, _ in fillers}) == len(fillers) == NUM_SLOTS
    assert all(o == {"max_tokens": 1, "num_draft_tokens": 0} for _, o in fillers)
    assert found.work.num_finished == 1
    assert found.work.num_steps == 6
    assert found.work.step_seconds == pytest.approx(0.06)


def test_a_draft_models_cache_is_filled_by_drafting():
    client = FakeClient()
    options = {"drafter": "draft_model", "num_draft_tokens": 4}
    driver(client).measured(HELLO, Variant("draft_model:4", options, uses_draft_model=True))
    assert client.requests[0][1] == {
        "drafter": "draft_model",
        "num_draft_tokens": 1,
        "adaptive": False,
        "max_tokens": 3,
        "min_tokens": 3,
    }
    assert client.requests[-1][1]["num_draft_tokens"] == 4


def test_the_opening_is_read_by_every_model_that_a_variant_uses():
    client = FakeClient()
    options = {"drafter": "draft_model", "num_draft_tokens": 4}
    own = driver(client)
    own.read_opening(Variant("draft_model:4", options, uses_draft_model=True), "1/0")
    own.read_opening(PLAIN, "1/0")
    (_, drafting), (_, plain) = client.requests
    assert (drafting["num_draft_tokens"], drafting["max_tokens"]) == (1, 3)
    assert (plain["num_draft_tokens"], plain["max_tokens"]) == (0, 1)
    assert drafting["cache_salt"] != plain["cache_salt"]


def test_the_opening_waits_until_the_server_has_counted_it(monkeypatch):
    """Counters come late: else the loop behind it would be charged for it."""
    own, counted = driver(FakeClient()), []
    after = own._scraper.after

    def noted(before, num_requests):
        counted.append((num_requests, after(before, num_requests).num_finished))

    monkeypatch.setattr(own._scraper, "after", noted)
    own.read_opening(PLAIN, "1/0")
    assert counted == [(1, 1)]


def test_the_cache_can_be_left_alone_and_metrics_can_be_missing():
    client = FakeClient()
    found = driver(client, scraper=False, clears_cache=False).measured(HELLO, PLAIN)
    assert len(client.requests) == 1
    assert found.work is None


def test_a_closed_loop_keeps_so_many_in_flight_and_answers_each_job_once():
    client = FakeClient(step_seconds=0.002)
    jobs = [(Prompt(f"chat/{i}", "chat", "x" * i), i % 2) for i in range(1, 10)]
    done = []
    level = driver(client).closed_loop(jobs, DEFAULT, 3, on_done=lambda: done.append(1))
    assert client.most_in_flight == 3
    assert sorted((r.prompt, r.repeat) for r in level.records) == sorted(
        (p.name, repeat) for p, repeat in jobs
    )
    assert len(done) == 9
    assert (level.variant, level.concurrency) == ("default", 3)
    assert level.work.num_finished == 9


def test_an_error_ends_the_loop_and_cancels_the_others():
    client = FakeClient(step_seconds=0.01)
    client.failures["bad"] = ServerFailed("the target broke")
    jobs = [(Prompt("bad", "c", "bad"), 0)] + [(Prompt("long", "c", "long"), 0)] * 50
    with pytest.raises(ServerFailed, match="the target broke"):
        driver(client, max_tokens=50).closed_loop(jobs, PLAIN, 2)
    assert len(client.requests) <= 3
    assert client.in_flight == 0


def test_stop_cancels_what_is_in_flight_and_what_comes_after():
    client = FakeClient(step_seconds=0.01)
    under_test = driver(client, max_tokens=1000)
    threading.Timer(0.05, under_test.stop).start()
    began = time.monotonic()
    with pytest.raises(RequestCancelled):
        under_test.request(HELLO, PLAIN)
    assert time.monotonic() - began < 5
    with pytest.raises(RequestCancelled):
        under_test.request(HELLO, PLAIN)


def test_an_answer_without_tokens_is_an_error():
    class Empty(FakeClient):
        def _answer(self, text, options):
            yield Chunk("", finish_reason="stop", stats=Stats(1, 0, 0, 0, 0, 0.0, 0.0))

    with pytest.raises(StreamBroken, match="has no tokens"):
        driver(Empty()).request(HELLO, PLAIN)


def test_the_fake_stream_ends_like_the_real_one():
    """A closed stream gives no further chunk, and the client is told once."""
    ended = []
    stream = FakeStream(iter([Chunk("a"), Chunk("b")]), lambda: ended.append(1))
    with stream:
        next(stream)
        stream.close()
        assert list(stream) == []
    assert ended == [1]


def test_variants_rounds_and_runs_have_their_own_salts():
    """Or a variant that comes later would draft what an earlier one was told."""
    client = FakeClient()
    for run in (driver(client), driver(client)):
        for variant in (PLAIN, DEFAULT):
            for repeat in (0, 1):
                run.request(HELLO, variant, repeat=repeat)
                run.closed_loop([(HELLO, 0), (HELLO, 1)], variant, 1, turn=f"4/{repeat}")
    salts = [options["cache_salt"] for _, options in client.requests]
    assert len(set(salts)) == 2 * 2 * 2 * 2
    loops = [salts[i : i + 2] for i in range(1, len(salts), 3)]
    assert all(first == second for first, second in loops), "one loop is one server's day"


def test_all_is_remembered_where_the_cache_is_kept():
    client = FakeClient()
    driver(client, clears_cache=False).request(HELLO, DEFAULT)
    assert "cache_salt" not in client.requests[0][1]
