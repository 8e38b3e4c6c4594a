import pytest

from specdec.client.bench.load import Driver, Settings
from specdec.client.bench.plan import Plan
from specdec.client.bench.random_text import (
    NUM_PROMPT_TOKENS,
    TEMPERATURE,
    measure_random,
    random_prompt,
    summarize_random,
)
from specdec.client.bench.records import Results, Variant
from specdec.client.bench.variants import PLAIN
from support.bench import FakeClient, Recorder, record

VARIANTS = (PLAIN, Variant("default", {}))


def driver(client):
    return Driver(client, Settings(max_tokens=5))


def test_prompts_are_tokens_that_the_target_drew_each_once():
    class Repeating(FakeClient):
        def _answer(self, text, options):
            options = {**options, "max_tokens": 4}
            yield from super()._answer("same", options)
            yield from super()._answer("same", options)

    client = Repeating()
    prompt = random_prompt(driver(client), "random/1")
    assert prompt.token_ids == (4, 5, 6, 7)
    ((_, options),) = client.requests
    assert options["temperature"] == TEMPERATURE
    assert options["max_tokens"] == options["min_tokens"] == NUM_PROMPT_TOKENS
    assert options["num_draft_tokens"] == 0


def test_every_text_is_sent_once_by_every_variant_hot_and_with_its_own_seed():
    client, results, progress = FakeClient(), Results(variants=VARIANTS), Recorder()
    plan = Plan([], VARIANTS, num_random=2, rounds=2)
    measure_random(driver(client), plan, results, progress)
    assert [(r.prompt, r.variant) for r in results.random] == [
        *(("random/1", "K=0"), ("random/1", "default")),
        *(("random/2", "default"), ("random/2", "K=0")),
        *(("random/3", "K=0"), ("random/3", "default")),
        *(("random/4", "default"), ("random/4", "K=0")),
    ]
    sent = [o for _, o in client.requests if o["max_tokens"] == 5]
    assert all(o["temperature"] == TEMPERATURE and o["min_tokens"] == 5 for o in sent)
    assert len({o["seed"] for o in sent}) == 4
    assert progress.effort == 4 * 3


def test_decoding_is_compared_text_by_text():
    records = [
        record("random/1", "K=0", ttft=9.0, gap=1.0),
        record("random/1", "default", ttft=1.0, gap=2.0, drafted=7, accepted=1),
        record("random/2", "K=0", gap=1.0, token_ids=(1, 1, 2, 3)),
        record("random/2", "default", gap=1.0, token_ids=(1, 2, 3, 4)),
        record("random/3", "default", gap=0.1),  # K=0's turn did not come
    ]
    plain, default = summarize_random(Results(variants=VARIANTS, random=records))
    assert plain.decode_tokens_per_second == pytest.approx(1.0)
    assert plain.distinct_share == pytest.approx(7 / 8)
    assert default.total == pytest.approx(3 / 4.5)
    assert default.against_plain == pytest.approx((2, 0.75, 0.5, 1.0))
    assert (default.num_texts, default.num_draft_tokens, default.num_accepted_tokens) == (3, 7, 1)
    assert (default.num_equal, default.num_compared) == (1, 2)
