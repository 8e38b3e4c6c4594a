"""What one `extend` has found for one sequence so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdec.types import Extend, Extended, Proposal

Array = np.ndarray[Any, Any]

_LARGEST = float(np.finfo(np.float16).max)


@dataclass(slots=True)
class Outputs:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    candidate_ids: list[tuple[int, ...]] = field(default_factory=list)
    features: list[Array] = field(default_factory=list)  # float16, of each pass
    # Wanted of the rows to come.
    num_candidates: int = 0
    wants_features: bool = False
    num_outputs: int = 0
    num_draft_steps: int = 0
    least_logprob: float = -math.inf
    links: tuple[tuple[int, int], ...] = ()  # see `Wanted`

    @classmethod
    def of(cls, call: Extend) -> Outputs:
        return cls(
            num_candidates=call.num_candidates,
            wants_features=call.wants_features,
            num_outputs=call.num_outputs,
            num_draft_steps=call.num_draft_steps,
            least_logprob=call.least_logprob,
            links=_links(call) if call.follows_draws else (),
        )

    def end_of_given(self) -> None:
        """Draft steps follow: of their rows nothing is wanted but the draws."""
        self.num_candidates, self.wants_features = 0, False

    @property
    def goes_on(self) -> bool:
        """Whether a draft step is left, and what was drafted is likely enough to go on with.

        The token that makes it too unlikely is drawn already: it is kept, for it costs nothing and
        only tokens that are proposed show how far their probabilities can be trusted.
        """
        if len(self.token_ids) == self.num_outputs + self.num_draft_steps:
            return False
        if self.least_logprob == -math.inf:
            return True
        return sum(self.logprobs[self.num_outputs - 1 :]) >= self.least_logprob

    def add_features(self, rows: Array) -> None:
        """float32 [tokens of a pass, feature_size]. What float16 cannot hold becomes its largest
        number: some models have such rows, and an infinity would spoil all that a head reads."""
        self.features.append(np.clip(rows, -_LARGEST, _LARGEST).astype(np.float16))

    def extended(self) -> Extended:
        return Extended(
            tuple(self.token_ids),
            tuple(self.logprobs),
            tuple(self.candidate_ids),
            np.concatenate(self.features) if self.features else None,
        )


def _links(call: Extend) -> tuple[tuple[int, int], ...]:
    draft_ids = tuple(call.token_ids[len(call.token_ids) - call.num_outputs + 1 :])
    parents = Proposal(draft_ids, parents=tuple(call.parents)).links
    rows = (1 + parent for parent in parents)  # the first one stands before the drafts
    return tuple(zip(rows, draft_ids, strict=True))
