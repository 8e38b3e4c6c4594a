"""What a drafter is: four verbs, called by the engine's one thread.

For every sequence: `begin` once, then each step `propose` followed by `observe`, then `end` once,
whatever happened (finished, cancelled, failed). Adding a drafter is adding one file to this
folder: the class is found by the file's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from typing import ClassVar, NamedTuple

from specdec.types import Decoder, Proposal, SamplingParams, Verdict


class DraftView(NamedTuple):
    """What a drafter may see of a sequence. `token_ids` is the engine's own list: read only."""

    sequence_id: int
    token_ids: list[int]  # prompt and everything emitted; the last one is not yet in any cache
    num_prompt_tokens: int
    sampling: SamplingParams


class ProposeResult(NamedTuple):
    proposals: list[Proposal]  # one per view, in order
    compute_seconds: float = 0.0  # inside a draft model; 0 where there is none
    failed: tuple[int, ...] = ()  # indexes of views this drafter cannot serve any more


class Drafter(ABC):
    """Proposes draft tokens. Any proposal is safe: the target checks each one."""

    name: ClassVar[str]
    uses_model: ClassVar[bool] = False  # needs a draft decoder

    def __init__(self, decoder: Decoder | None = None) -> None:
        """`decoder` is given only to a class with `uses_model`."""

    def begin(self, view: DraftView) -> None:
        """A sequence was admitted; its prompt is known, nothing has been generated."""

    @abstractmethod
    def propose(self, views: Seq[DraftView], limits: Seq[int]) -> ProposeResult:
        """Propose at most `limits[i]` (>= 1) tokens to follow `views[i].token_ids`.

        An empty proposal is normal. Raises `DecoderFailed` when a draft model's call fails; the
        engine then goes on without proposals and calls `end` for these sequences.
        """

    def observe(self, view: DraftView, verdict: Verdict) -> None:
        """The step's outcome is committed: `view.token_ids` ends with `verdict.output_ids`."""

    def end(self, sequence_ids: Seq[int]) -> None:
        """Forget these sequences; safe at any time after `begin`, and for unknown ids."""
