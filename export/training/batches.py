"""A ragged batch as arrays, and the order in which batches come. Pure functions of a seed.

Row i of a text of n tokens t_0 ... t_(n-1) is what a draft is fed there (`ahead` = 1 for a head
that reads the sampled token, 0 for a draft that does not):

    row i             features f_i, token t_(i+ahead), rotary position i
    predicts          t_(i+ahead+1), whose distribution the target gave at f_(i+ahead)
    step j of a draft reads t_(i+ahead+j) and predicts t_(i+ahead+1+j)

Rows are flat, one text after another. Rows that predict an answer token are scored, the first one
aside, which the target's prefill gives; those before them are context: keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.export.training.corpus import Text

Array = np.ndarray[Any, Any]

MIN_ANSWER = 2  # answer tokens: of the first nothing is drafted
_WINDOW = 32  # batches sorted by length among themselves: little padding, and still well mixed


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """M rows of B texts, Q of them scored, J steps.

    places: a text's rows stand in a padded table of L columns, its scored rows in one of K.
    """

    ahead: int
    num_texts: int  # B
    num_columns: int  # L
    num_query_columns: int  # K
    features: Array  # float16 [M, layers * hidden]
    positions: Array  # int64 [M] i
    places: Array  # int64 [M] b * L + i
    scored: Array  # int64 [Q] rows
    query_places: Array  # int64 [Q] b * K + number of the scored row in its text
    first_scored: Array  # int64 [B] i of each text's first scored row
    next_ids: Array  # int64 [M] t_(i+ahead)
    ids_ahead: Array  # int64 [J + 1, Q] t_(i+ahead+j), the text's last token beyond its end
    valid: Array  # bool [J, Q] whether t_(i+ahead+1+j) exists
    teacher_rows: Array  # int64 [Q] rows of f_(i+ahead)
    likeliest: Array  # int64 [Q] the target's argmax for t_(i+ahead+1)
    text_of_scored: Array  # int64 [Q] b

    def __len__(self) -> int:
        return len(self.scored)


def build(texts: Sequence[Text], *, num_steps: int, ahead: int = 1) -> Batch:
    """Arrays of one batch; every text has at least MIN_ANSWER answer tokens."""
    lengths = np.array([len(text) for text in texts])
    rows = lengths - 1  # of each text: the last token was never fed
    first = np.array([max(text.num_prompt_tokens - ahead, 0) for text in texts])
    num_scored = lengths - ahead - 1 - first  # rows first ... n - ahead - 2
    assert num_scored.min() > 0, (lengths, first)
    begin = np.cumsum(rows) - rows
    positions = np.concatenate([np.arange(n) for n in rows])
    owner = np.repeat(np.arange(len(texts)), num_scored)
    column = np.concatenate([np.arange(n) for n in num_scored])
    i = first[owner] + column  # [Q] the row's index in its text
    starts = np.cumsum(lengths) - lengths
    all_ids = np.concatenate([text.token_ids for text in texts])
    steps = np.arange(num_steps + 1)[:, None]
    target_index = np.minimum(i + ahead + steps, lengths[owner] - 1)  # [J + 1, Q]
    answer = np.concatenate([text.likeliest for text in texts])
    prompts = np.array([text.num_prompt_tokens for text in texts])
    answer_start = np.cumsum(lengths - prompts) - (lengths - prompts)
    return Batch(
        ahead=ahead,
        num_texts=len(texts),
        num_columns=int(rows.max()),
        num_query_columns=int(num_scored.max()),
        features=np.concatenate([text.features for text in texts]),
        positions=positions,
        places=np.repeat(np.arange(len(texts)), rows) * rows.max() + positions,
        scored=begin[owner] + i,
        query_places=owner * num_scored.max() + column,
        first_scored=first,
        next_ids=all_ids[np.repeat(starts, rows) + positions + ahead],
        ids_ahead=all_ids[starts[owner] + target_index],
        valid=(i + ahead + 1 + steps[:-1]) < lengths[owner],
        teacher_rows=begin[owner] + i + ahead,
        likeliest=answer[answer_start[owner] + i + ahead + 1 - prompts[owner]],
        text_of_scored=owner,
    )


def order(texts: Sequence[Text], *, rows_per_batch: int, seed: int, epoch: int) -> list[list[int]]:
    """One epoch's batches, as indices of texts.

    Args:
        rows_per_batch: rows of a batch at most, padding included (a longer text goes alone).
    """
    if not texts:
        return []
    generator = np.random.default_rng((seed, epoch))
    shuffled = generator.permutation(len(texts))
    lengths = np.array([len(text) for text in texts])
    per_window = max(1, _WINDOW * rows_per_batch // max(int(lengths.mean()), 1))
    batches: list[list[int]] = []
    for begin in range(0, len(shuffled), per_window):
        window = shuffled[begin : begin + per_window]
        window = window[np.argsort(lengths[window], kind="stable")]
        batches += _fill(window, lengths, rows_per_batch)
    return [batches[i] for i in generator.permutation(len(batches))]


def _fill(window: Array, lengths: Array, rows_per_batch: int) -> Iterator[list[int]]:
    """Cut texts of rising length into batches."""
    batch: list[int] = []
    for index in window:
        if batch and (len(batch) + 1) * lengths[index] > rows_per_batch:
            yield batch
            batch = []
        batch.append(int(index))
    if batch:
        yield batch
