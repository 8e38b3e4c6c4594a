"""When drafters are asked, and what trials may cost."""

import pytest

from specdec.speculation.pace import (
    EAGER_LOOKS,
    LIMIT,
    MAX_REST,
    PATIENCE,
    REST,
    SHARE,
    Pace,
    reason_for,
)


def steps_until_due(pace):
    return next(number for number in range(100) if pace.is_due())


def test_asking_that_pays_goes_on_every_step():
    pace = Pace()
    for _ in range(5):
        assert pace.is_due()
        pace.looked(2.0, 0.1, share=0.02, reasons=["cap"])


def test_asking_in_vain_rests():
    pace = Pace()
    assert pace.is_due()
    pace.looked(0.0, 0.1, share=0.01, reasons=["load", "load", "acceptance", None])
    assert steps_until_due(pace) == REST
    assert pace.reason == "load"


def test_the_longer_nothing_comes_of_asking_the_rarer_it_is():
    pace, rests = Pace(), []
    for _ in range(60):
        pace.looked(0.0, 0.1, share=0.01, reasons=[])
        rests.append(steps_until_due(pace))
    assert rests == sorted(rests)
    assert (rests[0], rests[-1]) == (REST, PATIENCE)
    pace.looked(5.0, 0.1, share=0.01, reasons=[])
    pace.looked(0.0, 9.0, share=0.01, reasons=[])
    assert steps_until_due(pace) == REST


@pytest.mark.parametrize(("share", "rest"), [(0.001, REST), (10 * SHARE, 10), (9.0, MAX_REST)])
def test_the_longer_it_takes_the_longer_it_rests(share, rest):
    pace = Pace()
    pace.looked(0.0, 0.1, share=share, reasons=[])
    assert steps_until_due(pace) == rest


def test_one_poor_look_is_no_reason_to_rest():
    pace = Pace()
    for worth in (3.0, 3.0, 0.0):
        pace.looked(worth, 0.5, share=0.1, reasons=[])
    assert pace.is_due()


def test_trials_stay_within_the_account():
    pace, spent = Pace(), 0.0
    for _ in range(1000):
        pace.is_due()
        if pace.may_try and pace.pays(0.3):
            spent += 0.3
    assert 1.0 < spent <= LIMIT + 10.0


def test_trials_become_rare():
    pace = Pace()
    for _ in range(EAGER_LOOKS):
        pace.is_due()
    due = sum(pace.is_due() and pace.may_try for _ in range(160))
    assert due == 10


@pytest.mark.parametrize(
    ("odds", "alone", "reason"),
    [
        (0.9, None, "cost"),
        (0.1, None, "acceptance"),
        (0.5, 0.4, "load"),
        (0.1, 0.05, "load"),
        (0.5, 0.6, "cost"),
        (0.1, 0.2, "acceptance"),
    ],
)
def test_load_is_what_a_lone_request_would_not_suffer(odds, alone, reason):
    assert reason_for(odds, alone) == reason
