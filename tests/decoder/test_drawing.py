"""Who draws what: one question to a runtime that can, everything here where it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.decoder.drawing import Wanted, draw_all
from specdec.decoder.runtimes import Draw, Place
from specdec.types import NOT_DRAWN, SamplingParams

PLAIN = SamplingParams(temperature=1.0, seed=3)
EDITED = SamplingParams(temperature=1.0, seed=3, bad_words=((1,),))
LOGITS = np.random.default_rng(0).standard_normal((6, 9)).astype(np.float32)


class Runtime:
    """Answers with the row's number, or not at all."""

    def __init__(self, *, draws: bool) -> None:
        self._draws = draws
        self.asked: list[list[Place]] = []

    def draw(self, logits, places, num_tokens):
        assert logits is LOGITS
        assert num_tokens == 8
        self.asked.append(places)
        return [Draw(100 + place.row, 0.0) for place in places] if self._draws else None


def wanted(rows, sampling):
    tokens = np.arange(50, dtype=np.int32)
    return Wanted(rows, [tokens[: 10 + i] for i in range(rows.stop - rows.start)], sampling, 4)


MIXED = [
    wanted(slice(0, 2), PLAIN),
    wanted(slice(2, 2), PLAIN),  # a chunk of a prompt: nothing is drawn
    wanted(slice(2, 5), EDITED),
    wanted(slice(5, 6), PLAIN),
]


def test_all_that_a_runtime_can_draw_is_asked_at_once():
    runtime = Runtime(draws=True)
    found = draw_all(runtime, LOGITS, MIXED, 8)
    assert runtime.asked == [[Place(0, PLAIN, 10), Place(1, PLAIN, 11), Place(5, PLAIN, 10)]]
    assert [[draw.token_id for draw in draws] for draws in found][:2] == [[100, 101], []]
    assert found[3] == [Draw(105, 0.0)]
    assert found[2] == draw_all(Runtime(draws=False), LOGITS, MIXED, 8)[2]
    assert all(draw.token_id < 8 and draw.token_id != 1 for draw in found[2])


def test_a_runtime_that_leaves_it_to_the_caller():
    runtime = Runtime(draws=False)
    found = draw_all(runtime, LOGITS, MIXED, 8)
    assert len(runtime.asked) == 1
    assert [len(draws) for draws in found] == [2, 0, 3, 1]
    assert all(draw.token_id < 8 for draws in found for draw in draws)


@pytest.mark.parametrize("some", [[], [MIXED[1]], [MIXED[2]]])
def test_nothing_is_asked_for_nothing(some):
    runtime = Runtime(draws=True)
    assert [len(draws) for draws in draw_all(runtime, LOGITS, some, 8)] == [
        len(each.histories) for each in some
    ]
    assert runtime.asked == []


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("sampling", [PLAIN, EDITED])
def test_draws_that_no_draw_leads_to_are_left_out(draws, sampling):
    """Wherever they are made. Row 1 follows row 0's draw, row 2 another token, row 3 row 2."""
    rows = slice(0, 5)
    whole = draw_all(Runtime(draws=draws), LOGITS, [wanted(rows, sampling)], 8)[0]
    drawn = [draw.token_id for draw in whole]
    links = ((0, drawn[0]), (0, drawn[0] + 1), (2, drawn[2]), (1, drawn[1]))
    found = draw_all(
        Runtime(draws=draws), LOGITS, [wanted(rows, sampling)._replace(links=links)], 8
    )[0]
    nothing = Draw(NOT_DRAWN, 0.0)
    assert found == [whole[0], whole[1], nothing, nothing, whole[4]]
