"""Reduced vocabularies: what is in them, and the maps to target ids and back."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.export.training.vocabulary import DraftVocabulary, positions_in


def test_most_frequent_ids_and_special_ones() -> None:
    counts = np.array([0, 5, 9, 9, 1, 0, 7])
    found = DraftVocabulary.choose(counts, size=4, always=(0, 5))
    assert found.ids.tolist() == [0, 2, 3, 5]  # of 2 and 3, equally frequent, both fit
    assert DraftVocabulary.choose(counts, size=3, always=(0, 5)).ids.tolist() == [0, 2, 5]


def test_special_ids_are_in_even_where_they_are_more_than_the_size() -> None:
    found = DraftVocabulary.choose(np.zeros(8, np.int64), size=2, always=(7, 1, 4))
    assert found.ids.tolist() == [1, 4, 7]


def test_maps_there_and_back() -> None:
    vocabulary = DraftVocabulary((2, 3, 11, 19), vocab_size=20)
    assert (np.arange(4) + vocabulary.d2t).tolist() == [2, 3, 11, 19]
    assert np.flatnonzero(vocabulary.t2d).tolist() == [2, 3, 11, 19]
    again = DraftVocabulary.of_maps(vocabulary.d2t, vocabulary.t2d)
    assert np.array_equal(again.ids, vocabulary.ids)
    with pytest.raises(ValueError, match="different ids"):
        DraftVocabulary.of_maps(vocabulary.d2t - 1, vocabulary.t2d)


def test_ids_outside_the_target_are_refused() -> None:
    for ids in ((20,), (-1,), ()):
        with pytest.raises(ValueError, match="0 to 19"):
            DraftVocabulary(ids, vocab_size=20)


def test_joined_with_the_ids_of_a_request() -> None:
    vocabulary = DraftVocabulary((2, 3, 11), vocab_size=20)
    rows = vocabulary.joined(np.array([19, 3, 7, 7]))
    assert rows.tolist() == [2, 3, 11, 7, 19]
    places = positions_in(rows, 20)
    assert places[19] == 4
    assert places[0] == -1
    assert np.array_equal(rows[places[rows]], rows)
