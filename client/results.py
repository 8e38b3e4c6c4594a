"""What a client gets back: chunks while it streams, a completion when it is joined."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts from the server, times as this client saw them (seconds)."""

    num_input_tokens: int
    num_output_tokens: int
    num_draft_tokens: int  # proposed by the drafter
    num_accepted_tokens: int  # of those, part of the output
    num_target_passes: int  # passes of the target that gave output tokens
    ttft_seconds: float  # from sending the request to the first token
    total_seconds: float  # from sending the request to the last token
    # The server's decisions: why it drafted no more, by steps (cap, none, acceptance, cost, load);
    # tokens per second while decoding against K = 0, by its own reckoning; 0: not told.
    draft_reasons: dict[str, int] = field(default_factory=dict)
    predicted_gain: float = 0.0
    measured_gain: float = 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted, 0 without drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Output tokens per target pass, the pass's own token included; 1 without speculation.

        Not the acceptance length, which leaves out passes without drafts: 1 + accepted / drafts.
        """
        return self.num_output_tokens / self.num_target_passes if self.num_target_passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the whole time, the prompt's included."""
        return self.num_output_tokens / self.total_seconds if self.total_seconds else 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One delta. All per-token fields have the same length; text may lag behind the ids."""

    text: str
    token_ids: tuple[int, ...] = ()
    from_draft: tuple[bool, ...] = ()  # per token: it came from the drafter
    text_lengths: tuple[int, ...] = ()  # per token: characters of `text`; empty when not told
    logprobs: tuple[float, ...] = ()  # per token; empty unless asked for
    finish_reason: str | None = None  # on the last chunk: stop, length or cancelled
    stats: Stats | None = None  # on the last chunk


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer: its chunks joined."""

    text: str
    token_ids: tuple[int, ...]
    from_draft: tuple[bool, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    stats: Stats

    @classmethod
    def join(cls, chunks: list[Chunk]) -> Completion:
        last = chunks[-1]
        assert last.finish_reason is not None, "the last chunk has no finish reason"
        assert last.stats is not None, "the last chunk has no stats"
        return cls(
            text="".join(c.text for c in chunks),
            token_ids=tuple(t for c in chunks for t in c.token_ids),
            from_draft=tuple(t for c in chunks for t in c.from_draft),
            logprobs=tuple(t for c in chunks for t in c.logprobs),
            finish_reason=last.finish_reason,
            stats=last.stats,
        )
