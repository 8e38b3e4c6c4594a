"""What one call to a drafter's model asks for every sequence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

from specdec.drafters.base import DraftView
from specdec.errors import DecoderFailed

logger = logging.getLogger(__name__)

Call = TypeVar("Call")


def gather(
    views: Seq[DraftView],
    limits: Seq[int],
    call_for: Callable[[DraftView, int], Call | None],
    *,
    model: str,
) -> tuple[dict[int, Call], tuple[int, ...]]:
    """Calls by index of the view, those with nothing to ask left out; and the views refused.

    Args:
        call_for: one sequence's share of the call; raises `DecoderFailed` if it is refused.
        model: what to call it in the log.
    """
    calls: dict[int, Call] = {}
    failed: list[int] = []
    for index, (view, limit) in enumerate(zip(views, limits, strict=True)):
        try:
            call = call_for(view, limit)
        except DecoderFailed as error:
            logger.warning("the %s refused sequence %d: %s", model, view.sequence_id, error)
            failed.append(index)
            continue
        if call is not None:
            calls[index] = call
    return calls, tuple(failed)
