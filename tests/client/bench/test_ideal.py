import math

import pytest

from specdec.client.bench.ideal import CostCurve, bare_ratio, ideal, ideal_costs
from specdec.client.bench.records import BareRun, PassCost, Work
from support.bench import record


def run(prompt="a", *, prefill=1.0, decode=3.0, tokens=4, cache_length=256, repeat=0):
    return BareRun(prompt, "c", repeat, tuple(range(tokens)), 10, prefill, decode, cache_length)


@pytest.fixture
def curve():
    """One row 1 s, three rows 2 s, five rows 4 s."""
    samples = [(1, 1.0), (3, 2.0), (5, 4.0), (1, 0.9), (1, 99.0)]
    return CostCurve(PassCost(256, rows, seconds) for rows, seconds in samples)


def test_a_curve_is_the_median_and_interpolates(curve):
    assert curve.by_length == {256: {1: 1.0, 3: 2.0, 5: 4.0}}
    assert curve.seconds(256, 2) == 1.5
    assert curve.seconds(256, 4.5) == 3.5
    with pytest.raises(KeyError):
        curve.seconds(512, 1)


def test_passes_are_charged_at_the_mean_width_of_those_that_proposed(curve):
    # 1 + 7 tokens in 4 passes after the first; two of them had proposals of 4 and 0 tokens each.
    drafted = record("a", chunks=(1, 1, 1, 3, 2), drafted=4, work=Work(num_drafts=2))
    costs = ideal_costs(drafted, run(), curve)
    assert costs.plain == 7.0
    assert costs.speculative == 2 * 1.0 + 2 * 2.0  # two of one row, two of three rows
    assert costs.prefill == 1.0


def test_without_counters_every_pass_is_taken_to_have_proposed(curve):
    drafted = record("a", chunks=(1, 1, 1, 3, 2), drafted=4)
    assert ideal_costs(drafted, run(), curve).speculative == 4 * 1.5  # of two rows each


def test_speedups_of_the_ideal_sum_over_prompts(curve):
    records = [
        record("a", chunks=(1, 3, 3), drafted=8, work=Work(num_drafts=2)),  # 2 passes of 5 rows
        record("b", chunks=(1, 1, 1)),  # nothing drafted
        record("elsewhere", chunks=(1, 9)),  # not in the bare loop
    ]
    found = ideal(records, [run("a", prefill=2.0), run("b", prefill=3.0)], curve)
    assert found.decode == pytest.approx((6 + 2) / (8 + 2))
    assert found.total == pytest.approx((5 + 6 + 2) / (5 + 8 + 2))
    assert found.mean_rows == pytest.approx(1 + 8 / 4)


def test_plain_decoding_has_nothing_to_gain(curve):
    found = ideal([record("a", work=Work())], [run("a")], curve)
    assert found.decode == found.total == found.mean_rows == 1.0


def test_a_run_whose_cache_length_was_not_measured_is_left_out(curve):
    assert math.isnan(ideal([record("a")], [run("a", cache_length=512)], curve).decode)


def test_bare_ratio_is_served_rate_over_bare_rate():
    # Served: 2 s + 3 x 1 s; bare: 1 s + 3 x 0.9 s.
    served = [record("a", ttft=2.0, gap=1.0)]
    found = bare_ratio(served, [run("a", prefill=1.0, decode=2.7)])
    assert found.decode == pytest.approx(0.9)
    assert found.total == pytest.approx(3.7 / 5)
    assert (found.num_prompts, found.num_equal) == (1, 1)


def test_bare_ratio_pairs_repeats_and_notices_other_text():
    served = [record("a", gap=1.0), record("a", gap=2.0, repeat=1), record("b", gap=9.0)]
    runs = [run("a", decode=3.0), run("a", decode=6.0, tokens=5, repeat=1)]
    found = bare_ratio(served, runs)
    assert found.decode == pytest.approx((6 / 9) / (7 / 9))
    assert (found.num_prompts, found.num_equal) == (1, 0)
