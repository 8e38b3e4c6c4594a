"""The engine's state for one sequence, and where its output goes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from specdec.drafters import NONE
from specdec.drafters.base import Drafter, DraftView
from specdec.errors import SpecdecError
from specdec.speculation.planner import Candidate
from specdec.speculation.stream import TextStream
from specdec.types import Chunk, Request, SpeculationStats


class Sink(Protocol):
    """Where one sequence's chunks go. Calls must not block; exactly one call ends it:
    `chunk` with a finish reason, or `fail`."""

    @property
    def cancelled(self) -> bool:
        """The client went away."""
        ...

    @property
    def closed(self) -> bool:
        """The request has ended: another of its prompts failed."""
        ...

    def chunk(self, sequence: Sequence, chunk: Chunk) -> None: ...

    def fail(self, error: SpecdecError) -> None: ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One running or waiting sequence. Counts are stored once; the rest is derived.

    token_ids   [ prompt ............ | output ...... last ]
    target cache  ^^^^^^^^^ num_cached ^^^^^^^^^^^^^^      the last token is never cached yet
    """

    sequence_id: int
    request: Request
    text: TextStream
    sink: Sink
    drafter: Drafter | None  # None once speculation is off for good: asked for, or degraded
    max_draft_tokens: int  # what this request uses per step, 0..cap
    is_fixed: bool = True  # exactly that many; else the controller may choose fewer
    token_ids: list[int] = field(init=False)
    num_cached: int = 0  # length of the target's cache that holds committed tokens
    num_reused: int = 0  # prompt tokens found in the cache at the start
    carry: tuple[int, ...] = ()  # what the target drew beyond the text, on a branch of the drafts
    num_undrafted: int = field(init=False)  # tokens a draft model has not been shown
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    arrival_ns: int = field(default_factory=time.time_ns)
    scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_ids)
        self.num_undrafted = len(self.token_ids)
        if not self.max_draft_tokens:
            self.drafter = None  # asked for: no drafter hears of this sequence

    @property
    def is_unwanted(self) -> bool:
        return self.sink.cancelled or self.sink.closed

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def pending(self) -> list[int]:
        """Committed tokens the target has not seen; one while decoding, more during prefill."""
        return self.token_ids[self.num_cached :]

    @property
    def is_decoding(self) -> bool:
        return self.num_cached == len(self.token_ids) - 1 and self.num_output_tokens > 0

    @property
    def draft_limit(self) -> int:
        """Draft tokens worth proposing now: the step adds one more token by itself."""
        if self.drafter is None:
            return 0
        remaining = self.request.max_tokens - self.num_output_tokens
        return max(0, min(self.max_draft_tokens, remaining - 1))

    @property
    def carried(self) -> tuple[int, ...]:
        """The step's first draft tokens."""
        return self.carry[: self.draft_limit]

    @property
    def candidate(self) -> Candidate:
        """What the controller decides on."""
        num_carried, drafter = len(self.carried), self.drafter
        return Candidate(
            self.sequence_id,
            drafter.name if drafter else NONE,
            self.draft_limit - num_carried,
            self.is_fixed,
            min(self.num_undrafted, drafter.max_arrears) if drafter else 0,
            num_carried,
        )

    @property
    def view(self) -> DraftView:
        return DraftView(
            self.sequence_id,
            self.token_ids,
            len(self.request.prompt_ids),
            self.request.sampling,
            self.carried,
            self.request.cache_salt,
        )
