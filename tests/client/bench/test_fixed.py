import pytest

from specdec.client.bench.fixed import compare_fixed, fixed_variants, measure_fixed
from specdec.client.bench.load import Driver, Settings
from specdec.client.bench.plan import Plan
from specdec.client.bench.records import Prompt, Results
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import RequestRejected
from support.bench import FakeClient, Recorder, record

PROMPTS = [Prompt(f"chat/{i}", "chat", "word " * i) for i in range(1, 4)]
FIXED = fixed_variants([2, 4])


def test_the_adaptive_default_stands_beside_the_same_drafter_with_fixed_lengths():
    assert [(v.name, v.options) for v in FIXED] == [
        ("K=0", {"num_draft_tokens": 0}),
        ("adaptive", {"adaptive": True}),
        ("K=2", {"num_draft_tokens": 2, "adaptive": False}),
        ("K=4", {"num_draft_tokens": 4, "adaptive": False}),
    ]
    assert FIXED[0] == PLAIN
    assert fixed_variants([]) == ()


def measure(client, repeats=1):
    plan = Plan(PROMPTS, (PLAIN,), fixed=FIXED, repeats=repeats)
    results, progress = Results(fixed_variants=FIXED), Recorder()
    driver = Driver(client, Settings(max_tokens=5, clears_cache=False))
    measure_fixed(driver, plan, results, progress)
    return results, progress


def test_all_lengths_take_turns_at_every_prompt():
    results, progress = measure(FakeClient(), repeats=2)
    names = ["K=0", "adaptive", "K=2", "K=4"]
    turns = [r.variant for r in results.fixed]
    assert turns[:8] == [*names, *names[1:], names[0]]
    assert turns[8:12] == [*names[1:], names[0]]
    assert progress.effort == 3 * 2 * 4


def test_a_refused_prompt_is_noted_and_left_out():
    client = FakeClient()
    client.failures["word word word"] = RequestRejected("too long")
    results, progress = measure(client)
    assert {r.prompt for r in results.fixed} == {"chat/1", "chat/2"}
    assert results.notes == ["chat/3 was left out: too long"]
    assert progress.effort == 3 * 4


def test_the_best_single_length_is_the_best_over_the_whole_set():
    """K=2 suits one prompt, K=4 the other; K=4 is best over both, and adapting beats it."""
    seconds = {"K=0": (4, 4), "adaptive": (2, 2), "K=2": (2, 4), "K=4": (3, 2)}
    records = [
        record(prompt, name, ttft=total, gap=0.0)
        for name, totals in seconds.items()
        for prompt, total in zip(("a", "b"), totals, strict=True)
    ]
    # Not yet answered by all: it must not count for those that did.
    records.append(record("c", "K=2", ttft=0.1, gap=0.0))
    found = compare_fixed(Results(fixed_variants=FIXED, fixed=records))
    assert found.num_prompts == 2
    assert [length.variant for length in found.lengths] == ["K=0", "K=2", "K=4"]
    assert found.best.variant == "K=4"
    assert found.best.adaptive.total == pytest.approx(5 / 4)
    assert found.adaptive.summary.tokens_per_second == pytest.approx(2.0)
    assert found.equality.num_equal == 2


def test_plain_decoding_may_be_the_best_length():
    records = [record("a", v.name, ttft=1.0 + 0.1 * i) for i, v in enumerate(FIXED)]
    found = compare_fixed(Results(fixed_variants=FIXED, fixed=records))
    assert found.best.variant == "K=0"
    assert found.best.adaptive.total < 1


def test_nothing_is_compared_before_one_prompt_is_answered_by_all():
    assert compare_fixed(Results()) is None
    assert compare_fixed(Results(fixed_variants=FIXED, fixed=[record("a", "K=0")])) is None
