"""What a drafter is: four verbs, called by the engine's one thread (five where it needs features).

For every sequence: `begin` once, then each step `propose` followed by `observe`, then `end` once,
whatever happened (finished, cancelled, failed). Adding a drafter is adding one file to this
folder: the class is found by the file's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

from specdec.types import Decoder, Features, Head, Proposal, SamplingParams, Verdict

# (omen, depth) -> P(a draft token of that omen holds | its parent does), as learned so far.
Odds = Callable[[int, int], float]


# (sequence ids, for each P(it and all before it hold) of the draft tokens it has without the
# model) -> how many passes of the model pay for each.
Passes = Callable[[Seq[int], Seq[Seq[float]]], list[int]]

MANY_PASSES = 64


def _even(omen: int, depth: int) -> float:
    return 0.5


def _many(sequence_ids: Seq[int], free: Seq[Seq[float]]) -> list[int]:
    return [MANY_PASSES] * len(sequence_ids)


class Judge(NamedTuple):
    """What a drafter that can weigh its draft tokens goes by."""

    odds: Callable[[int], Odds]  # by sequence id
    least: float = 0.02  # a draft token less likely than that cannot pay
    passes: Passes = _many  # for a drafter that grows trees with a model; asked once a step
    # By sequence id: behind a draft less likely than that, one more pass of a model that drafts
    # chains cannot pay. Others are drafted to their limit.
    stops: Mapping[int, float] = MappingProxyType({})


undecided = Judge(lambda sequence_id: _even)  # has seen nothing


class DraftView(NamedTuple):
    """What a drafter may see of a sequence. `token_ids` is the engine's own list: read only."""

    sequence_id: int
    token_ids: list[int]  # prompt and everything emitted; the last one is not yet in any cache
    num_prompt_tokens: int
    sampling: SamplingParams
    carry: tuple[int, ...] = ()  # all but certain to follow: proposals go behind these
    cache_salt: int = 0  # what is learned of it may serve sequences of the same salt alone

    @property
    def text(self) -> list[int]:
        """What proposals follow; read only."""
        return [*self.token_ids, *self.carry] if self.carry else self.token_ids


class Asked(NamedTuple):
    """One sequence's share of a call to the drafter's model."""

    num_passes: int
    num_rows: int  # tokens of the text that the model was shown
    num_left: int = 0  # and that it has still not seen


class ProposeResult(NamedTuple):
    proposals: list[Proposal]  # one per view, in order
    model_seconds: float = 0.0  # that the call to a model took; 0 where there was none
    inside_seconds: float = 0.0  # of these, the model's own: the others are the way there and back
    failed: tuple[int, ...] = ()  # indexes of views whose sequence the model refused
    asked: Mapping[int, Asked] = MappingProxyType({})  # by index of the view


class Drafter(ABC):
    """Proposes draft tokens. Any proposal is safe: the target checks each one."""

    name: ClassVar[str]
    model: ClassVar[Literal["draft", "head"] | None] = None  # what it calls
    needs_model: ClassVar[bool] = True  # False: it does without where a server has none
    # It asks `Judge.passes` how many passes of its model pay; else that many tokens are the limit.
    grows_trees: ClassVar[bool] = False
    max_arrears: ClassVar[int] = 1 << 30  # tokens of the text that its model is shown at first
    num_candidates: ClassVar[int] = 0  # of the target's likeliest tokens, for `observe`
    first_odds: Mapping[int, float] = MappingProxyType({})  # by omen, unseen; else 0.5
    needs_features: bool = False  # the target's hidden states, for `absorb`

    def __init__(self, model: Decoder | Head | None = None) -> None:
        """`model`: of the kind that `Drafter.model` names, if the server has one."""

    def begin(self, view: DraftView) -> None:
        """A sequence was admitted; its prompt is known, nothing has been generated."""

    @abstractmethod
    def propose(
        self, views: Seq[DraftView], limits: Seq[int], judge: Judge = undecided
    ) -> ProposeResult:
        """Propose at most `limits[i]` (>= 1) tokens to follow `views[i]`'s text and carry.

        An empty proposal is normal. Raises `DecoderFailed` when a draft model's call fails; the
        engine then goes on without proposals and calls `end` for these sequences.
        """

    def absorb(self, view: DraftView, start: int, features: Features) -> None:
        """The target's hidden states at positions `start`, `start` + 1, ... of the text.

        Follows every pass over the sequence, prompt chunks too, before `observe`: the last row is
        the one the newest token was drawn from. Positions that the target's cache held already
        when the sequence came are never seen.
        """

    def observe(self, view: DraftView, verdict: Verdict) -> None:
        """The step's outcome is committed: `view.token_ids` ends with `verdict.output_ids`."""

    def end(self, sequence_ids: Seq[int]) -> None:
        """Forget these sequences; safe at any time after `begin`, and for unknown ids."""
