"""Static ids, ids of the text, and whose are whose."""

from __future__ import annotations

import numpy as np

from specdec.decoder import head_vocabulary
from specdec.decoder.head_vocabulary import OwnIds, columns

STATIC = np.array([2, 5, 9])
IS_STATIC = np.isin(np.arange(20), STATIC)


def own(*token_ids: int) -> OwnIds:
    ids = OwnIds(IS_STATIC)
    ids.see(token_ids)
    return ids


def test_own_ids_are_those_that_are_not_static_the_latest_last():
    ids = own(7, 5, 3, 7, 2, 11)
    assert ids.latest(10) == [3, 7, 11]
    ids.see([3])
    assert ids.latest(2) == [11, 3]


def test_columns_of_two_sequences():
    shared = columns(STATIC, [own(7, 3), own(3, 12)])
    assert shared.ids.tolist() == [2, 5, 9, 3, 7, 12]
    assert shared.extra_ids.tolist() == [3, 7, 12]
    assert shared.is_own.tolist() == [[True, True, False], [True, False, True]]


def test_the_rows_of_a_sequence_may_have_its_own_ids():
    shared = columns(STATIC, [own(7), own(12)])
    allowed = shared.allowed([1, 0], [2, 1])
    assert allowed.tolist() == [[False, True], [False, True], [True, False]]
    assert shared.allowed([0], [0]).shape == (0, 2)


def test_what_a_row_may_not_propose_is_left_out():
    shared = columns(STATIC, [own(7), own(12)])
    best_columns = np.array([[3, 2, 4], [4, 0, 1]])
    logprobs = np.array([[-0.5, -1.5, -np.inf], [-0.25, -2.0, -3.0]], np.float32)
    assert shared.best(best_columns, logprobs) == [
        ([7, 9], [-0.5, -1.5]),
        ([12, 2, 5], [-0.25, -2.0, -3.0]),
    ]


def test_the_latest_stay_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(head_vocabulary, "MAX_ADDED", 4)
    shared = columns(STATIC, [own(*range(10, 16)), own(16)])
    assert shared.extra_ids.tolist() == [14, 15, 16]


def test_no_own_ids_leave_the_static_ones():
    shared = columns(STATIC, [own()])
    assert shared.ids.tolist() == STATIC.tolist()
    assert shared.allowed([0], [3]).shape == (3, 0)
    assert shared.best(np.array([[1, 2]]), np.zeros((1, 2), np.float32))[0][0] == [5, 9]
