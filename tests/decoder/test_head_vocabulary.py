"""Static ids, ids of the text, and whose are whose."""

from __future__ import annotations

import numpy as np
import pytest

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
    assert [mask.tolist() for mask in shared.is_own] == [[True, True, False], [True, False, True]]


def test_a_sequence_never_gets_another_s_ids():
    shared = columns(STATIC, [own(7), own(12)])
    logits = np.array([[0.0, 1.0, 2.0, 3.0, 9.0]], np.float32)
    ((ids, logprobs),) = shared.best(logits, 0, 10)
    assert ids == [7, 9, 5, 2]
    assert np.exp(logprobs).sum() == pytest.approx(1.0)
    expected = np.array([3.0, 2.0, 1.0, 0.0])
    np.testing.assert_allclose(logprobs, expected - np.log(np.exp(expected).sum()), rtol=1e-6)


def test_only_as_many_as_wanted_of_every_row():
    shared = columns(STATIC, [own(7)])
    logits = np.array([[3.0, 1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 5.0]], np.float32)
    found = shared.best(logits, 0, 2)
    assert [ids for ids, _ in found] == [[2, 9], [7, 2]]


def test_the_latest_stay_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(head_vocabulary, "MAX_ADDED", 4)
    shared = columns(STATIC, [own(*range(10, 16)), own(16)])
    assert shared.extra_ids.tolist() == [14, 15, 16]


def test_no_own_ids_leave_the_static_ones():
    shared = columns(STATIC, [own()])
    assert shared.ids.tolist() == STATIC.tolist()
    ((ids, _),) = shared.best(np.array([[1.0, 3.0, 2.0]], np.float32), 0, 3)
    assert ids == [5, 9, 2]
