"""The load-time probe finds the smallest stable row count, or says that there is none."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.decoder.batch import ROW_BLOCK
from specdec.decoder.probe import CANDIDATES, Finding, probe
from support.runtimes import EMPTY, TokenRuntime, artifact


def rows(batch) -> int:
    return len(batch.input_ids)


def places(batch) -> int:
    return batch.row_index.shape[1]


def outputs(batch) -> int:
    return len(batch.output_rows)


def slots(batch) -> int:
    return len(batch.write_index)


def positions(batch) -> int:
    return batch.attention_mask.shape[-1]


@pytest.mark.parametrize("axis", [rows, places, outputs])
@pytest.mark.parametrize(("needed", "found"), [(1, 1), (2, 2), (3, 4), (4, 4), (7, 8), (16, 16)])
def test_finds_the_smallest_stable_count(axis, needed, found):
    runtime = TokenRuntime(unstable=lambda batch: axis(batch) < needed)
    assert probe(runtime, artifact()) == Finding("bitwise", found)


@pytest.mark.parametrize(
    "unstable",
    [
        lambda b: rows(b) < 17,
        lambda b: rows(b) > 64,
        lambda b: slots(b) > 2,
        lambda b: slots(b) == 2 and rows(b) > 20 - 16,
        lambda b: positions(b) != 256,
        lambda b: positions(b) == 384,
        lambda b: places(b) == 17,
        lambda b: rows(b) % 2 == 1 and rows(b) > 16,
    ],
)
def test_reports_distribution_when_nothing_is_stable(unstable):
    assert probe(TokenRuntime(unstable=unstable), artifact()) == Finding("distribution", 1)


@pytest.mark.parametrize(("needed", "found"), [(1, 1), (2, 2), (5, 8), (16, 16)])
def test_what_is_left_behind_whole_blocks_counts_as_a_pass(needed, found):
    """As with quantized products of more than one thread."""

    def is_unstable(batch):
        left_over = rows(batch) % ROW_BLOCK
        return 0 < left_over < needed

    runtime = TokenRuntime(unstable=is_unstable)
    assert probe(runtime, artifact()) == Finding("bitwise", found)


def test_sees_logits_that_depend_on_what_is_behind_the_mask():
    runtime = TokenRuntime()
    runtime._unstable = lambda batch: runtime.keys[0, 30] != EMPTY  # behind the compared text
    assert probe(runtime, artifact()) == Finding("distribution", 1)


def test_sees_logits_that_depend_on_the_branches_of_a_tree():
    def is_tree(batch):
        sees = batch.attention_mask.sum(axis=-1)
        return bool((np.diff(sees) < 1).any())

    runtime = TokenRuntime(unstable=is_tree)
    assert probe(runtime, artifact()) == Finding("distribution", 1)


def test_works_with_one_slot_and_leaves_no_room_unused():
    runtime = TokenRuntime(num_slots=1)
    assert probe(runtime, artifact()) == Finding("bitwise", 1)
    assert len(runtime.batches) < 30


def test_gives_up_early():
    """A row count that is too small must not cost a whole round."""
    runtime = TokenRuntime(unstable=lambda batch: rows(batch) < 16)
    probe(runtime, artifact())
    assert sum(rows(b) < 16 for b in runtime.batches) < 12 * len(CANDIDATES)
