import math

import pytest

from specdec.client.bench.records import Level, Work
from specdec.client.bench.stats import (
    Equality,
    equality,
    group,
    speedup,
    step_split,
    summarize,
    throughput,
    total_work,
)
from support.bench import record


def test_summary_divides_sums():
    # 4 tokens: 1 s to the first, 1.5 s for three more. 7 tokens in 3 chunks: 3 s, 1 s for six.
    records = [
        record(ttft=1.0, gap=0.5, chunks=(1, 1, 1, 1)),
        record(ttft=3.0, gap=0.5, chunks=(1, 3, 3), drafted=10, accepted=4),
    ]
    found = summarize(records)
    assert (found.num_requests, found.num_tokens) == (2, 11)
    assert found.ttft_seconds == 2.0
    assert found.tpot_seconds == pytest.approx(2.5 / 9)
    assert found.tokens_per_second == pytest.approx(11 / 6.5)
    assert found.acceptance_rate == pytest.approx(0.4)
    assert found.tokens_per_pass == pytest.approx(11 / 7)
    assert math.isnan(found.acceptance_length), "nobody counted the drafts"


def test_no_later_token_and_no_draft_is_nan_not_zero():
    found = summarize([record(chunks=(1,))])
    assert math.isnan(found.tpot_seconds)
    assert math.isnan(found.acceptance_rate)
    assert found.tokens_per_pass == 1.0


def test_acceptance_length_counts_only_passes_with_drafts():
    found = summarize(
        [
            record(chunks=(1, 1, 3, 2), drafted=6, accepted=3, work=Work(num_drafts=2)),
            record(chunks=(1, 1), work=Work()),
        ]
    )
    assert found.acceptance_length == 2.5
    assert found.tokens_per_pass == 9 / 6


def test_speedup_by_total_time_by_decode_and_by_prompt():
    # Both prompts decode three tokens: A 3 s -> 1 s after 1 s, B 6 s -> 6 s after 2 s.
    plain = [record("a", ttft=1, gap=1.0), record("b", ttft=2, gap=2.0)]
    drafted = [record("a", ttft=1, gap=1 / 3), record("b", ttft=2, gap=2.0)]
    found = speedup(drafted, plain)
    assert found.total == pytest.approx((4 + 8) / (2 + 8))
    assert found.decode == pytest.approx(9 / 7)
    assert found.median == pytest.approx((4 / 2 + 1) / 2)
    # Drawing only A gives 2, drawing only B gives 1.
    assert found.low == pytest.approx(1.0)
    assert found.high == pytest.approx(2.0)


def test_speedup_sums_repeats_and_leaves_out_prompts_of_one_side():
    plain = [record("a", ttft=1, gap=1, repeat=i) for i in range(2)] + [record("c", ttft=99)]
    drafted = [record("a", ttft=1, gap=0, repeat=i) for i in range(2)] + [record("b", ttft=99)]
    found = speedup(drafted, plain)
    assert found.total == found.median == pytest.approx(4.0)
    assert math.isnan(found.low)
    assert math.isnan(found.decode)  # no time at all passed


def test_speedup_compares_rates_where_lengths_differ():
    plain = [record("a", ttft=1, gap=1, chunks=(1, 1))]  # 2 tokens in 2 s
    longer = [record("a", ttft=1, gap=1, chunks=(1, 1, 1, 1))]  # 4 tokens in 4 s
    assert speedup(longer, plain).total == pytest.approx(1.0)


def test_speedup_of_nothing_is_nan():
    assert all(map(math.isnan, speedup([record("a")], [record("b")])))


def test_equality_counts_prompts_and_names_those_that_differ():
    answers = [("a", (1, 2)), ("a", (1, 2)), ("b", (1,)), ("b", (1, 2)), ("c", (5,))]
    assert equality(answers) == Equality(num_prompts=2, num_equal=1, different=("b",))


def test_groups_keep_the_order_of_first_appearance():
    assert group(["bx", "a", "by"], lambda s: s[0]) == {"b": ["bx", "by"], "a": ["a"]}


def test_step_split():
    found = step_split(Work(num_steps=10, step_seconds=2, draft_seconds=0.5, verify_seconds=1.4))
    assert found.step_seconds == 0.2
    assert found.draft_seconds == 0.05
    assert found.verify_seconds == pytest.approx(0.14)
    assert found.orchestration_seconds == pytest.approx(0.01)
    assert found.orchestration_share == pytest.approx(0.05)
    assert math.isnan(step_split(Work()).orchestration_share)


def test_total_work_subtracts_each_records_prefill():
    records = [
        record("a", work=Work(num_steps=10, step_seconds=2.0)),
        record("a", work=Work(num_steps=12, step_seconds=3.0), repeat=1),
        record("b", work=Work(num_steps=4, step_seconds=1.0)),
    ]
    prefills = [record("a", work=Work(num_steps=1, step_seconds=0.5))]
    assert total_work(records) == Work(num_steps=26, step_seconds=6.0)
    assert total_work(records, prefills) == Work(num_steps=24, step_seconds=5.0)


def test_total_work_is_unknown_if_one_record_is():
    assert total_work([record(work=Work(num_steps=1)), record()]) is None
    assert total_work([record("a", work=Work())], [record("a")]) is None
    assert total_work([]) is None


def test_throughput_with_and_without_the_ends_of_the_loop():
    # Two clients; each token is one second after the other.
    #   time     0 1 2 3 4 5 6
    #   client   a a a a | c c     a: 0..4   c: 4..6
    #   client     b b b b         b: 1..5   then it has no more work
    records = (
        record("a", started_at=0, ttft=1, gap=1, chunks=(1, 1, 1, 1)),
        record("b", started_at=1, ttft=1, gap=1, chunks=(1, 1, 1, 1)),
        record("c", started_at=4, ttft=1, gap=1, chunks=(1, 1)),
    )
    found = throughput(Level("K=0", 2, records))
    assert found.seconds == 6
    assert found.tokens_per_second == pytest.approx(10 / 6)
    # Both are busy from 1 to 5: a gives three tokens, b four, c one.
    assert found.full_tokens_per_second == pytest.approx(8 / 4)
    assert found.ttft_p50 == 1.0
    assert found.tpot_seconds == 1.0


def test_percentiles_of_the_first_token():
    records = tuple(record(str(i), ttft=i, started_at=0) for i in range(1, 22))
    found = throughput(Level("K=0", 21, records))
    assert (found.ttft_p50, found.ttft_p95) == (11, 20)
