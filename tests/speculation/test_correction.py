"""Level, slope and empty places of one batch size, and how far they can be trusted."""

import random

import pytest

from specdec.speculation.correction import START, Correction, parts


def taught(level, slope, row, idle, *, num_passes=150, noise=0.05):
    """By passes that differ in rows and in empty places."""
    found, rng = Correction(), random.Random(1)
    for _ in range(num_passes):
        num_more, num_idle = rng.randrange(40), rng.randrange(60)
        pass_ = parts(30.0, 0.02 * num_more**2, num_more, num_idle)
        true = level * pass_.plain + slope * pass_.more + row * pass_.row + idle * pass_.idle
        found.learn(pass_, true * rng.gauss(1.0, noise))
    return found


@pytest.mark.parametrize(
    "factors",
    [(1.0, 1.0, 0.0, 0.1), (2.0, 2.0, 0.0, 0.5), (0.5, 1.5, 1.0, 0.0), (1.0, 0.5, 4.0, 1)],
)
def test_factors_are_found(factors):
    found = taught(*factors)
    for num_more, num_idle in ((0, 0), (20, 0), (4, 60), (40, 30)):
        pass_ = parts(30.0, 0.02 * num_more**2, num_more, num_idle)
        true = sum(f * x for f, x in zip(factors, pass_, strict=True))
        assert found.apply(pass_) == pytest.approx(true, rel=0.06)


def test_a_table_that_is_three_times_too_low_is_right_after_a_dozen_passes():
    found = Correction()
    for _ in range(12):
        found.learn(parts(10.0, 0.0, 0), 30.0)
    assert found.apply(parts(10.0, 0.0, 0)) == pytest.approx(30.0, rel=0.1)


def test_a_machine_that_becomes_slower_is_followed_within_some_dozens_of_passes():
    found = taught(1.0, 1.0, 0.0, 0.1, num_passes=500)
    for _ in range(40):
        found.learn(parts(30.0, 0.0, 0), 60.0)
    assert found.apply(parts(30.0, 0.0, 0)) == pytest.approx(60.0, rel=0.15)


def test_what_is_never_seen_stays_in_doubt():
    found = Correction()
    for _ in range(100):
        found.learn(parts(10.0, 0.0, 0), 10.0)
    assert found.covariance[0][0] < 0.01
    assert found.covariance[1][1] == pytest.approx(START[1], abs=0.01)
    assert found.covariance[2][2] == pytest.approx(START[2], abs=0.02)


def test_another_size_begins_at_this_level_with_the_tables_shape():
    found = taught(2.0, 0.5, 3.0, 0.4)
    other = Correction.like(found)
    level, idle = found.factors[0], found.factors[3]
    assert other.factors == [level, level, 0.0, idle]
    assert other.covariance[0][0] == START[0]
    assert Correction.like(None).factors == Correction().factors


def test_noise_is_learned():
    assert taught(1.0, 1.0, 0.0, 0.1, noise=0.2).noise > 4 * taught(1, 1, 0, 0.1, noise=0.02).noise
