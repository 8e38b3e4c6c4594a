"""What asking may cost, and when it is done."""

import pytest

from specdec.speculation.curiosity import CERTAINTY, LIMIT, OPTIMISM, PATIENCE, SHARE, Curiosity


def pick(curiosity, arrears=(1,), *, price=0.1, is_worth_it=lambda optimism: True):
    return curiosity.pick(
        list(arrears), price=lambda sequences, rows: price * rows, is_worth_it=is_worth_it
    )


def test_asking_costs_at_most_its_share():
    curiosity, spent = Curiosity(), 0.0
    for _ in range(2000):
        curiosity.wait(is_asked=False)
        spent += 0.1 * pick(curiosity)
    assert spent <= 2000 * SHARE + LIMIT
    assert spent >= 0.8 * 2000 * SHARE


def test_what_cannot_be_paid_is_saved_for():
    curiosity = Curiosity(credit=0.0)
    waits = 0
    while not pick(curiosity, price=0.6):
        curiosity.wait(is_asked=False)
        waits += 1
    assert waits == pytest.approx(0.6 / SHARE, abs=1)


def test_savings_are_limited():
    curiosity = Curiosity()
    for _ in range(10_000):
        curiosity.wait(is_asked=False)
    assert curiosity.credit == LIMIT
    assert not pick(curiosity, price=LIMIT * 1.01)


def test_as_many_are_asked_as_can_be_paid():
    assert pick(Curiosity(credit=0.35), arrears=(1, 1, 1, 1, 1)) == 3
    assert pick(Curiosity(credit=0.35), arrears=(1, 5, 5)) == 1
    assert pick(Curiosity(credit=0.35), arrears=(5,)) == 0


@pytest.mark.parametrize(
    ("curiosity", "optimism"),
    [
        (Curiosity(), OPTIMISM),
        (Curiosity(num_idle=PATIENCE), CERTAINTY),
        (Curiosity(is_hopeful=True), CERTAINTY),
    ],
)
def test_the_longer_it_waits_the_less_must_speak_for_it(curiosity, optimism):
    asked = []
    assert pick(curiosity, is_worth_it=lambda found: asked.append(found) or False) == 0
    assert asked == [optimism]


def test_nothing_is_paid_for_what_is_not_asked():
    curiosity = Curiosity()
    before = curiosity.credit
    assert pick(curiosity, is_worth_it=lambda optimism: False) == 0
    assert curiosity.credit == before
    assert pick(curiosity) == 1
    assert curiosity.credit == before - 0.1
