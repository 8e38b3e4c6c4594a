"""The nouns that every room shares. Plain data: no Triton, no tokenizer, no numerics.

One step moves them in one direction:
request -> Sequence -> (drafter) Proposal -> (verifier) Verdict -> (commit) -> Chunk
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float16]
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one token is drawn from logits; the same object drives the target and a draft model.

    The transforms apply in this order: repetition, presence and frequency penalties, logit bias,
    masks (bad words, end ids before `min_tokens`), temperature, top-k, top-p, min-p.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the most likely token
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output only
    frequency_penalty: float = 0.0  # over output only
    seed: int = 0  # unsigned 64 bit; the noise at (seed, position, token id) is fixed
    min_tokens: int = 0  # end ids are masked before this many output tokens
    end_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that must not be completed
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    logprobs: bool = True  # whether log-probabilities are wanted: they take longer than the draw


@dataclass(frozen=True, slots=True)
class Request:
    """What one client asked for one prompt, validated. Never mutated."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_words: tuple[str, ...] = ()
    num_draft_tokens: int | None = None  # None: the server's default; 0: no speculation
    adaptive: bool | None = None  # False: exactly that many; None: the server's default
    drafter: str | None = None  # None: the server's default
    cache_salt: int = 0  # what it leaves behind serves requests of the same salt alone


@dataclass(slots=True)
class Speedup:
    """The time that the same tokens take at K = 0, and the time they took."""

    plain_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def value(self) -> float:
        """Their ratio; 0 where nothing is known."""
        return self.plain_seconds / self.seconds if self.seconds else 0.0

    def add(self, other: Speedup) -> None:
        self.plain_seconds += other.plain_seconds
        self.seconds += other.seconds


@dataclass(slots=True)
class SpeculationStats:
    """Counts of one sequence, or of the server; rates are derived, never stored.

    acceptance rate = accepted / draft tokens; acceptance length = 1 + accepted / drafts;
    tokens per pass = output tokens / steps (steps without a draft pull it towards 1).
    """

    num_steps: int = 0  # target passes that emitted tokens
    num_drafts: int = 0  # steps with a non-empty proposal
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # committed ones only: nothing after a stop counts
    num_output_tokens: int = 0
    num_draft_errors: int = 0
    # Of the decode-only steps before the last one:
    reasons: dict[str, int] = field(default_factory=dict)  # why no more was drafted, by steps
    predicted: Speedup = field(default_factory=Speedup)  # what the controller expected
    measured: Speedup = field(default_factory=Speedup)

    def decided(self, reason: str | None, predicted: Speedup | None, measured: Speedup) -> None:
        """Count one step."""
        if reason:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if predicted:
            self.predicted.add(predicted)
        self.measured.add(measured)

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


class Proposal(NamedTuple):
    """Draft tokens for one sequence in one step; empty means plain decoding.

    A chain, or a tree: then `parents` names the token that each one follows. The likeliest come
    first and parents before their children, so that any beginning is a proposal too.
    """

    token_ids: tuple[int, ...] = ()  # [num_draft_tokens]
    # [num_draft_tokens] how good each looks to its drafter; tokens of one omen are judged together.
    omens: tuple[int, ...] = ()  # empty: all 0
    # [num_draft_tokens] indexes in `token_ids`, -1 for the end of the text so far.
    parents: tuple[int, ...] = ()  # empty: a chain

    def first(self, num_tokens: int) -> Proposal:
        """Its beginning."""
        return Proposal(*(column[:num_tokens] for column in self))

    def behind(self, token_ids: tuple[int, ...]) -> Proposal:
        """The same after a chain of `token_ids`."""
        size = len(token_ids)
        if not size:
            return self
        omens = self.omens or (0,) * len(self.token_ids)
        parents = (*range(-1, size - 1), *(p + size for p in self.parents)) if self.parents else ()
        return Proposal((*token_ids, *self.token_ids), (*(0,) * size, *omens), parents)

    @property
    def links(self) -> Seq[int]:
        """`parents`, a chain's too."""
        return self.parents or range(-1, len(self.token_ids) - 1)

    @property
    def trunk(self) -> list[int]:
        """Indexes of its likeliest token, the likeliest behind that, and so on."""
        found = [-1]
        for node, parent in enumerate(self.links):
            if parent == found[-1]:
                found.append(node)
        return found[1:]

    @property
    def depths(self) -> list[int]:
        """[num_draft_tokens] how many draft tokens each follows."""
        found: list[int] = []
        for parent in self.links:
            found.append(0 if parent < 0 else found[parent] + 1)
        return found


class Verdict(NamedTuple):
    """Outcome of one target pass for one sequence: accepted draft tokens, then one more token."""

    output_ids: tuple[int, ...]  # [num_accepted + 1]; the last is the recovered or bonus token
    # [num_accepted + 1], of the raw target distribution; NaN where they are not wanted
    logprobs: tuple[float, ...]
    num_draft_tokens: int
    # What the target drew on a branch behind the last of them: next step's first draft tokens.
    carry: tuple[int, ...] = ()
    # [num_accepted + 1][num_candidates] its likeliest tokens at each of them.
    candidate_ids: tuple[tuple[int, ...], ...] = ()

    @property
    def num_accepted(self) -> int:
        return len(self.output_ids) - 1


class Chunk(NamedTuple):
    """One delta for the client; the same type with and without speculation."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    from_draft: tuple[bool, ...]  # per token: it came from a drafter
    text_lengths: tuple[int, ...] = ()  # per token: how many characters of `text` it released
    finish_reason: FinishReason | None = None


class Extend(NamedTuple):
    """One sequence's share of a decoder call.

    The cache is first rewound to `start`, then `token_ids` are appended; tokens are sampled after
    each of the last `num_outputs` of them, and up to `num_draft_steps` more autoregressively.

    With `parents`, the last `num_outputs - 1` tokens are a draft tree: each sees the tokens before
    the tree and its own ancestors, at the position its depth gives it. Tokens that follow the one
    before them from the start (the trunk) stay in the cache, the other branches do not.
    """

    sequence_id: int
    start: int  # cache length this call builds on; at most the present one
    token_ids: Seq[int]  # [num_tokens], at least one
    num_outputs: int  # 0 for a prefill chunk that is not the last
    num_draft_steps: int = 0  # needs num_outputs >= 1
    parents: Seq[int] = ()  # [num_outputs - 1] as in `Proposal`; empty: a chain
    num_candidates: int = 0  # likeliest tokens wanted after each of the `num_outputs`
    wants_features: bool = False  # hidden states of `token_ids`, for a trained head
    least_logprob: float = float("-inf")  # nothing is drawn behind a less likely draft
    follows_draws: bool = False  # behind a token other than the one drawn there nothing is drawn


NOT_DRAWN = -1


class Extended(NamedTuple):
    """Sampled tokens for one `Extend`: [num_outputs + the draft steps taken] each.

    Where nothing was drawn, for that row does not follow the draws, the token and its candidates
    are `NOT_DRAWN`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    # [num_outputs][num_candidates] the raw logits' largest, in falling order
    candidate_ids: tuple[tuple[int, ...], ...] = ()
    # [num_tokens, feature_size] of every token of the call, in its order; None: not wanted.
    features: Features | None = None


class ExtendResult(NamedTuple):
    sequences: list[Extended]  # in the order of the calls
    compute_seconds: float  # inside the decoder, sampling included


class PassCost(NamedTuple):
    """One measured pass: `num_rows` rows spread over `num_sequences` sequences."""

    num_sequences: int
    num_rows: int
    seconds: float


class DecoderInfo(NamedTuple):
    """What a decoder says of itself once it is loaded."""

    max_sequences: int
    max_sequence_length: int  # tokens a slot can hold
    vocab_size: int  # ids that may be emitted: [0, vocab_size)
    exactness: Literal["bitwise", "distribution"]
    min_rows: int  # rows every pass is padded to, found by the load-time probe
    precision: str
    costs: tuple[PassCost, ...] = ()  # measured when a decoder is first described
    feature_size: int = 0  # numbers per token in `Extended.features`; 0: there are none


class Decoder(Protocol):
    """A compiled model and its KV cache. One caller at a time; every call is synchronous.

    Raises `DecoderFailed` when a call fails; the sequences named in it are then in an unknown
    state and must be closed.
    """

    def describe(self) -> DecoderInfo: ...

    def reset(self) -> None:
        """Close every sequence: what a new scheduler does first."""

    def open(
        self,
        sequence_id: int,
        prompt_ids: Seq[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
    ) -> int:
        """Give the sequence a slot; return how many prompt tokens the cache already holds, of
        sequences with the same salt (at most len(prompt_ids) - 1)."""
        ...

    def extend(self, calls: Seq[Extend]) -> ExtendResult: ...

    def close(self, sequences: Seq[tuple[int, int]]) -> None:
        """Free the slots of (sequence_id, committed length); unknown ids are ignored. What was
        committed is kept for prefix reuse until the slot is needed."""


class HeadCall(NamedTuple):
    """One sequence's share of a call to an EAGLE head.

    The cache is first rewound to `start` rows, then one row per token is appended: it pairs the
    hidden states the target had at one position with the token at the next. From the last row the
    head goes on by itself, along `carry` and then as a tree; of these nothing stays in the cache.
    """

    sequence_id: int
    start: int  # rows this call builds on; at most the present ones
    token_ids: Seq[int]  # [num_rows], at least one
    features: Features  # [num_rows, feature_size]
    carry: Seq[int] = ()  # tokens all but certain to follow
    max_tokens: int = 0  # of the tree; 0: none is wanted
    max_depth: int = 1  # of the tree; one pass each
    width: int = 1  # branches of a token, and tokens that a pass goes on from; 1 is a chain
    least: float = 0.0  # a token whose path is less likely is left out


class HeadDraft(NamedTuple):
    """The likeliest tree the head found: the likeliest first, parents before their children."""

    token_ids: tuple[int, ...] = ()  # [num_draft_tokens]
    parents: tuple[int, ...] = ()  # [num_draft_tokens] as in `Proposal`
    logprobs: tuple[float, ...] = ()  # [num_draft_tokens] of each, given its parent


class HeadResult(NamedTuple):
    drafts: list[HeadDraft]  # in the order of the calls
    compute_seconds: float  # inside the head


class Head(Protocol):
    """An EAGLE head and its cache. Where nothing else is said, as `Decoder`."""

    def describe(self) -> DecoderInfo: ...

    def reset(self) -> None: ...

    def open(
        self,
        sequence_id: int,
        prompt_ids: Seq[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
        first: int = 0,
    ) -> int:
        """Give the sequence a slot; return how many rows it already holds: those of the text's
        first positions that sequences with the same salt left (at most len(prompt_ids) - 2). The
        prompt's tokens are among those the head may propose.

        Args:
            first: of the states that the caller can give, the position. Where fewer rows are held
                the head never sees what lies between.
        """
        ...

    def draft(self, calls: Seq[HeadCall]) -> HeadResult: ...

    def close(self, sequences: Seq[tuple[int, int]]) -> None: ...
