"""What is taken of a batch's proposals."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.speculation.choice import choose
from specdec.speculation.planner import Step
from specdec.types import Proposal

PRICE = 40.0  # tokens per second
SECONDS = 0.01  # of a row: 0.4 tokens


@pytest.mark.parametrize(("batch", "least"), [(1, 0.0032), (4, 0.05), (16, 0.8), (64, 3.2)])
def test_a_crowd_drafts_only_where_that_promises_something(batch, least):
    """A twentieth of its tokens, for 16 sequences and more; of fewer, less in proportion."""

    def num_taken(gain: float) -> int:
        """Of one draft token for each sequence, which together gain so many tokens."""
        seconds = 0.05 + SECONDS * np.arange(batch + 1)
        return sum(
            choose(
                [1] * batch,
                [Proposal((7,))] * batch,
                np.full((batch, 1), PRICE * SECONDS + gain / batch),
                num_rows=batch,
                prices=None,
                pace=None,
                step=Step(batch, PRICE, 0.05, seconds),
            ).kept
        )

    assert num_taken(0.97 * least) == 0
    assert num_taken(1.03 * least) == batch
