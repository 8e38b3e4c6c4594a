"""Which of a batch's proposals go into the pass: what pays, and now and then a trial.

Knows proposals and odds; knows no drafter and no sequence.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from specdec.speculation.costs import Floats
from specdec.speculation.pace import Pace
from specdec.speculation.planner import Step
from specdec.speculation.prices import Prices
from specdec.speculation.rows import Offers, most, on_trunk, worth_of
from specdec.types import Proposal


class Choice(NamedTuple):
    """Which draft tokens are taken, and what is hoped of it."""

    kept: list[int]  # by sequence
    odds: list[float]  # of the first token that is not
    tokens: float  # output expected of drafts in this step
    worth: float  # tokens gained over taking none, after paying for the rows
    seconds: float  # of the pass


def choose(
    limits: Seq[int],
    proposals: Seq[Proposal],
    survival: Floats,
    *,
    num_rows: int,
    prices: Prices,
    pace: Pace | None,
    step: Step | None = None,
) -> Choice:
    """The draft tokens that pay, behind `num_rows` that are in the pass anyway.

    Args:
        limits: [sequences] tokens that may be taken or left; 0: all are taken.
        survival: [sequences, tokens].
        pace: pays for trials; without it there are none.
        step: of as many rows and at least as many offers, if that is known already.
    """
    sizes = np.array([len(p.token_ids) for p in proposals])
    free = np.array(limits)
    num_offers = int(free.sum())
    num_fixed = int(sizes.sum()) - num_offers
    num_rows += num_fixed
    if step is None or num_fixed or len(step.seconds) <= num_offers:
        step = prices.step(len(proposals), num_rows, num_offers)
    elif len(step.seconds) > num_offers + 1:
        step = step._replace(seconds=step.seconds[: num_offers + 1])
    trunk = on_trunk(proposals, survival.shape[1])
    toll = step.price * float(step.seconds[-1] - step.seconds[0]) / max(num_offers, 1)
    offers = Offers(worth_of(survival, trunk, toll), free)
    longest: int | None = None
    if pace and num_offers and len(proposals) > 1:
        idle = prices.target.idle_seconds(len(proposals))
        longest, found = offers.within(step.seconds, step.price, idle)
    else:
        found = offers.gains(step.seconds, step.price)
    gains, num_taken = np.append(0.0, found), most(found)
    if gains[num_taken] < step.least_gain:
        num_taken = 0
    if pace and num_offers and pace.may_try:
        doubt = np.append(0.0, prices.doubt(step, num_rows))[: len(gains)]
        num_taken = _tried(step, gains, doubt, num_taken, pace)
    kept = np.where(free, offers.lengths(num_taken, longest), sizes)
    is_taken = np.arange(survival.shape[1]) < kept[:, None]
    is_next = np.arange(survival.shape[1]) == kept[:, None]
    return Choice(
        kept.tolist(),
        np.where(is_next, survival, 0.0).sum(axis=1).tolist(),
        float(survival[is_taken & trunk].sum()),
        max(0.0, float(gains[num_taken])),
        float(step.seconds[num_taken]),
    )


def _tried(step: Step, gains: Floats, doubt: Floats, num_taken: int, pace: Pace) -> int:
    """Something else than what seems best, where costs are so uncertain that it may be better,
    and the account pays for it. Half of the rows tell nearly as much as none and lose less.

    Args:
        gains, doubt: [1 + offers] of 0, 1, ... draft tokens.
    """
    losses = gains[num_taken] - gains
    if num_taken:
        other = num_taken // 2
    else:
        is_affordable = losses <= pace.credit * step.num_sequences
        other = int(np.where(is_affordable, gains + doubt, 0.0).argmax())
    is_hopeful = abs(doubt[num_taken] - doubt[other]) > losses[other]
    is_tried = is_hopeful and pace.pays(float(losses[other]) / step.num_sequences)
    return other if is_tried else num_taken
