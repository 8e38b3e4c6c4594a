"""Draws the tokens of one pass: where the logits are if the runtime can, else here, row by row.

Knows nothing of caches, passes or what a draw is for.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from specdec.decoder.runtimes import Draw, Logits, Place, Runtime
from specdec.sampling import leaves_logits, sample
from specdec.types import NOT_DRAWN, SamplingParams

Ints = np.ndarray[Any, np.dtype[np.int32]]

_NO_DRAW = Draw(NOT_DRAWN, 0.0)


class Wanted(NamedTuple):
    """One sequence's draws of a pass."""

    rows: slice  # of the pass's logits [R, V], one for each of `histories`
    histories: Seq[Ints]  # the tokens before each draw, prompt first: [position]
    sampling: SamplingParams
    num_prompt_tokens: int
    # Of each draw but the first: which one its row follows if that drew this token. It is left
    # out if not. Empty: all are made.
    links: Seq[tuple[int, int]] = ()

    def is_reached(self, number: int, draws: Seq[Draw]) -> bool:
        """Whether draw `number` is made, after those before it."""
        if not number or not self.links:
            return True
        row, token_id = self.links[number - 1]
        return draws[row].token_id == token_id


def draw_all(
    runtime: Runtime, logits: Logits, wanted: Seq[Wanted], num_tokens: int
) -> list[list[Draw]]:
    """The draws from ids below `num_tokens`, in the order of `wanted`.

    All that the runtime can do is asked of it at once: each question costs a journey to the card.
    Raises `DecoderFailed`: a logit is not finite.
    """
    places = [
        Place(each.rows.start + i, each.sampling, len(history))
        for each in wanted
        if leaves_logits(each.sampling)
        for i, history in enumerate(each.histories)
    ]
    there = runtime.draw(logits, places, num_tokens) if places else None
    if there is None:
        return [_draw_here(logits, each, num_tokens) for each in wanted]
    drawn = iter(there)
    return [
        _reached(each, list(islice(drawn, len(each.histories))))
        if leaves_logits(each.sampling)
        else _draw_here(logits, each, num_tokens)
        for each in wanted
    ]


def _reached(wanted: Wanted, drawn: Seq[Draw]) -> list[Draw]:
    draws: list[Draw] = []
    for number, draw in enumerate(drawn):
        draws.append(draw if wanted.is_reached(number, draws) else _NO_DRAW)
    return draws


def _draw_here(logits: Logits, wanted: Wanted, num_tokens: int) -> list[Draw]:
    draws: list[Draw] = []
    rows = zip(logits[wanted.rows], wanted.histories, strict=True)
    for number, (row, history) in enumerate(rows):
        if not wanted.is_reached(number, draws):
            draws.append(_NO_DRAW)
            continue
        token_id, logprob = sample(
            row,
            wanted.sampling,
            history=history,
            num_prompt_tokens=wanted.num_prompt_tokens,
            position=len(history),
            vocab_limit=num_tokens,
        )
        draws.append(Draw(token_id, logprob))
    return draws
