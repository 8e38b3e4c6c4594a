"""The cost model: from few noisy points to a curve, and corrected by what is seen."""

import random

import numpy as np
import pytest

from specdec.speculation.costs import CostModel, MovingMean, bucket, nearest
from specdec.types import PassCost
from support.world import MACHINES, cpu, fitted, gpu


def points(*values):
    """Of one sequence: (rows, seconds)."""
    return [PassCost(1, rows, seconds) for rows, seconds in values]


def test_buckets_double():
    sizes = [1, 2, 3, 4, 5, 8, 9, 16, 17, 256]
    assert [bucket(n) for n in sizes] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 8]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("batch", [1, 2, 3, 8, 40, 64])
def test_it_predicts_the_machine_it_was_measured_on(machine, batch):
    model = fitted(MACHINES[machine])
    for each in (1, 2, 3, 5, 9):
        rows = batch * each
        assert model.predict(batch, rows) == pytest.approx(MACHINES[machine](batch, rows), rel=0.06)


def test_the_knee_of_a_roofline_is_found_between_two_points():
    """Rows 256 and 512 are measured; up to 300 they are free."""
    model = fitted(gpu)
    assert model.predict(64, 288) == pytest.approx(gpu(64, 288), rel=0.01)
    assert model.predict(64, 400) == pytest.approx(gpu(64, 400), rel=0.05)


def test_nothing_measured_still_predicts():
    model = CostModel.fit(())
    assert 0 < model.predict(1, 1) < model.predict(1, 64) < model.predict(1, 200)
    assert model.predict(0, 0) == 0.0


def test_one_point_is_a_flat_line():
    assert CostModel.fit(points((4, 2.0))).predict(3, 100) == 2.0


def test_noisy_points_in_the_wrong_order_are_averaged():
    """A spike (24 rows dearer than 32) raises what is behind it by half, not to its height."""
    model = CostModel.fit(points((1, 27.0), (16, 68.0), (24, 93.0), (32, 87.0)))
    assert model.curve(24) == pytest.approx(90.0)
    assert model.curve(32) == pytest.approx(90.0)
    curve = [model.curve(rows) for rows in range(1, 80)]
    assert curve == sorted(curve)


def test_batches_teach_the_price_of_a_sequence_and_rows_beyond_the_lone_ones():
    alone = [PassCost(1, rows, cpu(1, rows)) for rows in (1, 2, 4, 6, 8, 16)]
    crowd = [PassCost(16, rows, cpu(16, rows)) for rows in (16, 64)]
    model = CostModel.fit([*crowd, *alone])
    assert model.per_sequence == pytest.approx(1.8)
    assert model.predict(16, 64) == pytest.approx(cpu(16, 64))
    # Without the larger pass the last slope goes on.
    assert CostModel.fit(alone).curve(64) == pytest.approx(cpu(1, 64))


def test_many_at_once_are_the_same_as_one_by_one():
    model = fitted(cpu)
    model.observe(3, 9, 99.0)
    assert model.predict_from(3, 5, 90).tolist() == pytest.approx(
        [model.predict(3, rows) for rows in range(5, 96)]
    )
    model.observe(1, 1, 99.0)
    assert model.single_rows(9).tolist() == pytest.approx([model.predict(n, n) for n in range(10)])


def test_beyond_the_last_knot_as_well():
    model = CostModel.fit(points((1, 1.0), (4, 1.0), (8, 2.0)))
    assert model.predict_from(1, 7, 3).tolist() == pytest.approx([1.75, 2.0, 2.25, 2.5])


def test_a_slower_machine_is_noticed():
    model = fitted(cpu)
    for _ in range(150):
        model.observe(1, 5, 2 * cpu(1, 5))
    assert model.predict(1, 5) == pytest.approx(2 * cpu(1, 5), rel=0.03)
    assert model.predict(1, 1) > 1.5 * cpu(1, 1)


def test_a_wrong_curve_is_bent_where_it_is_visited():
    """The knee stands at 64 rows, not at 4: passes of 4 and 32 rows alternate."""
    model = CostModel.fit(points((1, 10.0), (4, 10.0), (32, 40.0), (128, 140.0)))
    for _ in range(400):
        model.observe(2, 4, 10.0)
        model.observe(2, 32, 10.0)
    assert model.predict(2, 32) / model.predict(2, 4) < 1.3
    curve = [model.curve(rows) for rows in range(1, 200)]
    assert curve == sorted(curve)


def test_one_outlier_moves_little_once_something_was_seen():
    model = fitted(cpu)
    for _ in range(20):
        model.observe(1, 4, cpu(1, 4))
    model.observe(1, 4, 1000 * cpu(1, 4))
    assert model.predict(1, 4) <= 1.1 * cpu(1, 4)
    model.observe(1, 4, 0.0)
    model.observe(1, 4, -1.0)
    assert model.predict(1, 4) >= cpu(1, 4)


def test_a_batch_size_not_seen_yet_is_corrected_as_the_nearest_one():
    model = fitted(cpu)
    for _ in range(60):
        model.observe(1, 1, 2 * cpu(1, 1))
        model.observe(1, 9, 2 * cpu(1, 9))
    assert model.predict(16, 16) == pytest.approx(2 * cpu(16, 16), rel=0.1)
    for _ in range(60):
        model.observe(16, 16, cpu(16, 16))
    assert model.predict(16, 16) == pytest.approx(cpu(16, 16), rel=0.05)
    assert model.predict(32, 32) == pytest.approx(cpu(32, 32), rel=0.1)
    assert model.predict(2, 2) == pytest.approx(2 * cpu(2, 2), rel=0.1)


def test_the_nearest_of_two_is_the_smaller():
    assert nearest({}, 4) is None
    assert nearest({0: "one", 4: "sixteen"}, 4) == "one"  # bucket 2 stands between
    assert nearest({0: "one", 4: "sixteen"}, 8) == "sixteen"
    assert nearest({0: "one", 4: "sixteen"}, 200) == "sixteen"


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda n, rows: 2.0 * cpu(n, rows),
        lambda n, rows: 0.5 * cpu(n, rows),
        lambda n, rows: 30.0,
        lambda n, rows: 60.0 + 8.0 * rows,
        lambda n, rows: 1.0 + 3.0 * rows,
    ],
)
def test_a_wrong_table_is_right_after_some_dozens_of_passes(wrong, batch):
    """As long as passes differ in rows."""
    model, rng = fitted(wrong), random.Random(0)
    for _ in range(48):
        rows = batch * rng.randrange(1, 7)
        model.observe(batch, rows, cpu(batch, rows) * rng.gauss(1.0, 0.05))
    for each in (1, 3, 6):
        rows = batch * each
        assert model.predict(batch, rows) == pytest.approx(cpu(batch, rows), rel=0.2)


def test_doubt_is_large_until_passes_with_more_rows_were_seen():
    model = fitted(cpu)
    before = model.doubt(4, 4, 16)
    assert before[0] == 0.0
    assert before[16] > 0.3
    for _ in range(30):
        model.observe(4, 4, cpu(4, 4))
    assert model.doubt(4, 4, 16)[16] > 0.6 * before[16]
    for _ in range(15):
        model.observe(4, 4, cpu(4, 4))
        model.observe(4, 20, cpu(4, 20))
    assert model.doubt(4, 4, 16)[16] < 0.3 * before[16]


def test_noise_averages_out():
    model, rng = fitted(cpu), random.Random(0)
    for _ in range(500):
        rows = rng.randrange(4, 36)
        model.observe(4, rows, cpu(4, rows) * rng.gauss(1.0, 0.2))
    ratios = [model.predict(4, rows) / cpu(4, rows) for rows in range(4, 36)]
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.12)
    assert max(ratios) / min(ratios) < 1.35


def test_moving_mean_starts_at_the_first_value():
    mean = MovingMean()
    mean.observe(8.0)
    assert mean.value == 8.0
    mean.observe(0.0)
    assert 7.0 < mean.value < 8.0
