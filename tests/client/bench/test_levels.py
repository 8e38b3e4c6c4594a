import pytest

from specdec.client.bench.levels import (
    answer_range,
    level_equality,
    measure_levels,
    summarize_levels,
)
from specdec.client.bench.load import Driver, Settings
from specdec.client.bench.plan import Plan
from specdec.client.bench.records import Level, Prompt, Results, Variant
from specdec.client.bench.variants import PLAIN
from support.bench import NUM_SLOTS, FakeClient, Recorder, record

VARIANTS = (PLAIN, Variant("default", {}))
PROMPTS = [Prompt(f"chat/{i}", "chat", "word " * i) for i in range(1, 4)]


def measure(client, plan, **settings):
    results, progress = Results(variants=tuple(plan.variants)), Recorder()
    settings = {"max_tokens": 5, "num_slots": NUM_SLOTS, "clears_cache": False, **settings}
    measure_levels(Driver(client, Settings(**settings)), plan, results, progress)
    return results, progress


def test_the_variants_take_turns_and_do_the_same_work():
    client = FakeClient()
    results, _ = measure(client, Plan(PROMPTS, VARIANTS, concurrency=(1, 2), rounds=3))
    assert [(v.concurrency, v.round, v.variant) for v in results.levels] == [
        (n, *turn)
        for n in (1, 2)
        for turn in (
            (0, "K=0"),
            (0, "default"),
            (1, "default"),
            (1, "K=0"),
            (2, "K=0"),
            (2, "default"),
        )
    ]
    assert all(o["min_tokens"] == o["max_tokens"] for _, o in client.requests)
    for plain, default in zip(results.levels[:1], results.levels[1:2], strict=True):
        texts = [sorted(r.prompt for r in level.records) for level in (plain, default)]
        assert texts[0] == texts[1]


def test_answers_differ_in_length_and_not_from_variant_to_variant():
    """Of equal lengths, whatever begins together ends together: at K=0 alone."""
    client = FakeClient()
    prompts = [Prompt(f"chat/{i}", "chat", f"word {i}") for i in range(60)]
    plan = Plan(prompts, VARIANTS, concurrency=(3,), rounds=1, num_load_prompts=60)
    measure(client, plan, max_tokens=20)
    lengths = [{p: o["max_tokens"] for p, o in client.requests[k : k + 60]} for k in (0, 60)]
    assert lengths[0] == lengths[1]
    found = list(lengths[0].values())
    assert answer_range(20) == (10, 30)
    assert min(found) <= 12
    assert max(found) >= 28
    assert sum(found) / 60 == pytest.approx(20, abs=2)
    assert set(range(10, 31)) >= set(found)


def test_no_round_repeats_a_text_of_another():
    """Or the server's memory of an answer would answer it."""
    plan = Plan(PROMPTS, VARIANTS, concurrency=(4,), rounds=3)
    texts = [p.text for number in range(3) for p, _ in plan.jobs(4, number)]
    assert len(set(texts)) == len(texts) == 3 * 9


def test_the_cache_is_cleared_before_every_loop():
    client = FakeClient()
    measure(client, Plan(PROMPTS, VARIANTS, concurrency=(1,), rounds=2), clears_cache=True)
    fillers = [o for _, o in client.requests if "cache_salt" not in o]
    assert len(fillers) == 4 * NUM_SLOTS


def test_what_all_prompts_begin_with_is_cached_before_every_loop():
    """Or as many requests as happen to arrive in the first step read it, each for itself."""
    client = FakeClient()
    plan = Plan(PROMPTS, VARIANTS, concurrency=(2,), rounds=2)
    measure(client, plan, clears_cache=True)
    salted = [o for _, o in client.requests if "cache_salt" in o]
    salts = [o["cache_salt"] for o in salted]
    for salt in set(salts):
        (opening, *rest) = (o for o in salted if o["cache_salt"] == salt)
        assert opening["max_tokens"] == 1
        assert len(rest) == len(plan.jobs(2))
        assert all("min_tokens" in o for o in rest)


def test_no_loop_remembers_another():
    """A level's answers would be drafted from the level before."""
    client = FakeClient()
    plan = Plan(PROMPTS, VARIANTS, concurrency=(1, 2), rounds=2)
    results, _ = measure(client, plan, clears_cache=True)
    salts = [o["cache_salt"] for _, o in client.requests if "cache_salt" in o]
    assert len(set(salts)) == len(results.levels) == 8


def loop(variant, number, seconds, *, concurrency=2, ids=(0, 1)):
    answer = record("p", variant, ttft=seconds, gap=0.0, chunks=(1, 1), token_ids=ids)
    return Level(variant, concurrency, (answer,), round=number)


def test_a_ratio_compares_loops_of_one_round():
    levels = [
        *(loop("K=0", 0, 4.0), loop("default", 0, 2.0)),
        *(loop("default", 1, 1.0), loop("K=0", 1, 1.0)),
        *(loop("K=0", 2, 2.0), loop("default", 2, 1.6)),
        loop("K=0", 3, 9.0),  # stopped before the other's turn
        loop("K=0", 0, 1.0, concurrency=4),
    ]
    results = Results(variants=VARIANTS, levels=levels)
    plain, default, other = summarize_levels(results)
    assert (plain.concurrency, plain.variant, plain.num_rounds) == (2, "K=0", 4)
    assert (other.concurrency, other.variant) == (4, "K=0")
    assert plain.tokens_per_second == pytest.approx((2 / 4 + 2 / 2) / 2)
    assert default.tokens_per_second == pytest.approx(2 / 1.6)
    assert default.against_plain == pytest.approx((3, 1.25, 1.0, 2.0))
    assert (default.num_equal, default.num_compared) == (3, 3)


def test_other_ids_are_seen():
    levels = [loop("K=0", 0, 1.0), loop("default", 0, 1.0), loop("default", 1, 1.0, ids=(0, 2))]
    results = Results(variants=VARIANTS, levels=levels)
    _, default = summarize_levels(results)
    assert (default.num_equal, default.num_compared) == (1, 2)
    assert level_equality(results).different == ("p",)


def test_rounds_without_a_pair_have_no_ratio():
    results = Results(variants=VARIANTS, levels=[loop("default", 0, 1.0)])
    (default,) = summarize_levels(results)
    assert default.against_plain.num_pairs == default.num_compared == 0
