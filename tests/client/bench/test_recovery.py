import math
from dataclasses import replace

import pytest

from specdec.client.bench.records import Excerpt, Results
from specdec.client.bench.recovery import NUM_PASSES, recovery, summarize_waves
from support.bench import record, wave


def test_the_gain_is_back_when_the_same_tokens_come_as_fast_as_in_calm():
    """Chunks come at 5.5, 6.0, 6.5, 7.0 and then every 0.1 s. From the chunk at 7.0 on all is as
    in calm; a stretch of 16 passes from an earlier one would hold at least one slow gap of 0.5 s:
    1.6 s in calm against 2.0 s, which is less than 0.9 of it. The load went at 5.05 s."""
    found = recovery(wave())
    assert found.back_seconds == pytest.approx(7.0 - 5.05)
    assert found.before_rate == found.calm_rate == pytest.approx(20.0)
    assert found.load_rate == pytest.approx(2.0)
    assert found.after_rate == pytest.approx(20.0)


def test_a_small_difference_counts_as_back():
    """All is 5 % slower than in calm."""
    found = wave(slow_chunks=0)
    slower = tuple(1.05 * t for t in found.lone.chunk_seconds)
    found = replace(found, lone=replace(found.lone, chunk_seconds=slower), fall_seconds=1.05 * 5.05)
    assert recovery(found).back_seconds == pytest.approx(1.05 * 0.05)


def test_blocks_of_another_size_are_no_loss():
    """In calm the tokens came in fours: every 0.2 s, as many in the same time."""
    found = wave(slow_chunks=0)
    calm = record("lone", "default", ttft=0.2, gap=0.2, chunks=[4] * 30)
    assert recovery(replace(found, calm=calm)).back_seconds == pytest.approx(0.05)


def test_what_is_never_seen_to_come_back_is_not_a_number():
    found = recovery(wave(slow_chunks=100))
    assert math.isnan(found.back_seconds)
    # 60 chunks, 14 of them before the fall: the last stretch begins 16 passes before the end.
    assert found.seen_seconds == pytest.approx(0.45 + 0.5 * (60 - 14 - NUM_PASSES - 1))
    assert found.after_rate == pytest.approx(4.0)


def test_an_answer_that_ends_with_the_load_shows_nothing():
    found = recovery(wave(num_chunks=14))
    assert math.isnan(found.back_seconds)
    assert found.seen_seconds == 0.0


def test_an_answer_of_few_passes_shows_nothing():
    early = replace(wave(num_chunks=10), rise_seconds=0.0, fall_seconds=0.0)
    assert math.isnan(recovery(early).back_seconds)


def summary(*waves):
    plain = [
        replace(waves[0].calm, variant="K=0", chunk_seconds=tuple(0.2 * i for i in range(60))),
        record("a", "K=0", token_ids=(1, 2, 3, 4)),
    ]
    return summarize_waves(Results(waves=list(waves), wave_plain=plain))


def test_median_and_worst_of_several_waves():
    found = summary(wave(slow_chunks=0), wave(), wave(slow_chunks=2))
    assert found.median_back_seconds == pytest.approx(0.95)
    assert found.worst_back_seconds == pytest.approx(1.95)
    assert found.calm_gain == pytest.approx(2.0)


def test_one_that_was_not_seen_is_the_worst():
    found = summary(wave(), wave(), wave(slow_chunks=100))
    assert found.median_back_seconds == pytest.approx(1.95)
    assert math.isnan(found.worst_back_seconds)


def test_answers_are_compared_as_far_as_they_got():
    found = summary(wave())
    assert (found.num_lone, found.num_lone_equal) == (2, 2)
    assert (found.num_load, found.num_load_equal) == (1, 1), "of b nothing came"
    load = [Excerpt("a", (1, 2)), Excerpt("a", (1, 2, 4)), Excerpt("not asked", (1,))]
    one = wave(load=load)
    found = summary(replace(one, lone=replace(one.lone, token_ids=(9,) * 120)))
    assert (found.num_lone, found.num_lone_equal) == (2, 1)
    assert (found.num_load, found.num_load_equal) == (2, 1)
