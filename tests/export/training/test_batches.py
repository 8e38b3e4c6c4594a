"""Which feature stands beside which token: off by one here and a head learns next to nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec.export.training import batches
from specdec.export.training.corpus import Text


def text(token_ids: list[int], num_prompt_tokens: int) -> Text:
    """Token t is the number at its place; its feature is t, its likeliest token 100 + t."""
    ids = np.array(token_ids, np.int64)
    return Text(
        number=0,
        token_ids=ids,
        num_prompt_tokens=num_prompt_tokens,
        likeliest=100 + ids[num_prompt_tokens:],
        temperature=0.0,
        source="",
        features=ids[:-1, None].astype(np.float16),
    )


TEXTS = [text([10, 11, 12, 13, 14, 15], 2), text([20, 21, 22, 23, 24], 3)]


@pytest.mark.parametrize("ahead", [0, 1])
def test_rows_by_hand(ahead: int) -> None:
    batch = batches.build(TEXTS, num_steps=3, ahead=ahead)
    features = batch.features[batch.scored, 0].astype(int)
    next_ids = batch.next_ids[batch.scored]
    # The first answer token is the target's own: a draft is first asked for the second, 13 and 24.
    expected: dict[int, Any] = {
        1: ([11, 12, 13, 22], [12, 13, 14, 23], [13, 14, 15, 24]),
        0: ([12, 13, 14, 23], [12, 13, 14, 23], [13, 14, 15, 24]),
    }
    read, fed, predicted = expected[ahead]
    assert features.tolist() == read
    assert next_ids.tolist() == fed
    assert batch.ids_ahead[0].tolist() == fed
    assert batch.ids_ahead[1].tolist() == predicted
    assert batch.likeliest.tolist() == [100 + t for t in predicted]
    # The target's distribution of a token is in the features of the one before it.
    assert batch.features[batch.teacher_rows, 0].tolist() == [t - 1 for t in predicted]
    assert batch.valid.tolist() == [
        [True, True, True, True],
        [True, True, False, False],
        [True, False, False, False],
    ]


def test_positions_and_places() -> None:
    batch = batches.build(TEXTS, num_steps=1)
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert batch.places.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert batch.query_places.tolist() == [0, 1, 2, 3]
    assert (batch.num_columns, batch.num_query_columns) == (5, 3)


def test_an_epoch_has_every_text_once_and_fits() -> None:
    generator = np.random.default_rng(0)
    texts = [text(list(range(int(n))), 1) for n in generator.integers(4, 60, 300)]
    order = batches.order(texts, rows_per_batch=256, seed=1, epoch=0)
    assert sorted(i for batch in order for i in batch) == list(range(300))
    assert all(len(b) * max(len(texts[i]) for i in b) <= 256 for b in order)
    assert order == batches.order(texts, rows_per_batch=256, seed=1, epoch=0)
    assert order != batches.order(texts, rows_per_batch=256, seed=1, epoch=1)
