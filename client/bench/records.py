"""What a benchmark writes down: plain data, one object per measured thing. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


class Prompt(NamedTuple):
    """One question: `name` is unique within a run."""

    name: str
    category: str
    text: str  # decides the seed too
    token_ids: tuple[int, ...] = ()  # if any, these are sent in the text's place


class Variant(NamedTuple):
    """One way to ask for the same text: options of the request that must not change it."""

    name: str
    options: dict[str, Any]
    uses_draft_model: bool = False  # as seen on the server

    @property
    def is_plain(self) -> bool:
        """It asks for no speculation: the baseline of every ratio."""
        return self.options.get("num_draft_tokens") == 0


@dataclass(frozen=True, slots=True)
class Work:
    """What the server counted over a span of time, from its /metrics."""

    num_steps: float = 0.0
    step_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    num_drafts: float = 0.0  # steps of a sequence with a non-empty proposal
    num_draft_tokens: float = 0.0
    num_accepted_tokens: float = 0.0
    num_output_tokens: float = 0.0
    num_prompt_tokens: float = 0.0
    num_cached_tokens: float = 0.0  # prompt tokens found in the prefix cache
    num_finished: float = 0.0
    num_draft_errors: float = 0.0  # sequences that went on without their drafter

    @property
    def orchestration_seconds(self) -> float:
        return self.step_seconds - self.draft_seconds - self.verify_seconds

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Record:
    """One request and its answer as the client saw them."""

    prompt: str
    category: str
    variant: str
    repeat: int
    token_ids: tuple[int, ...]
    finish_reason: str
    num_input_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_target_passes: int  # passes that gave output tokens; the prompt's last one is the first
    started_at: float  # on the client's clock
    chunk_seconds: tuple[float, ...]  # since `started_at`, of every chunk with tokens
    chunk_tokens: tuple[int, ...]
    work: Work | None = None  # what the server did for it; None: not known

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def ttft_seconds(self) -> float:
        return self.chunk_seconds[0]

    @property
    def total_seconds(self) -> float:
        return self.chunk_seconds[-1]

    @property
    def num_decode_tokens(self) -> int:
        """Tokens that came after the first chunk."""
        return self.num_tokens - self.chunk_tokens[0]

    @property
    def decode_seconds(self) -> float:
        return self.total_seconds - self.ttft_seconds


@dataclass(frozen=True, slots=True)
class BareRun:
    """One prompt through the bare loop over the same graph: no server, no speculation."""

    prompt: str
    category: str
    repeat: int
    token_ids: tuple[int, ...]
    num_input_tokens: int
    prefill_seconds: float  # up to the first token
    decode_seconds: float
    cache_length: int  # S of the last pass


@dataclass(frozen=True, slots=True)
class PassCost:
    """One timed pass of the bare graph."""

    cache_length: int
    num_rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Level:
    """A closed loop: `concurrency` clients, each sending its next request when one is answered."""

    variant: str
    concurrency: int
    records: tuple[Record, ...]
    work: Work | None = None
    round: int = 0  # the variants take turns in each


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that came while others were decoding."""

    variant: str
    prompt: str
    num_input_tokens: int
    num_background: int
    prefill_seconds: float  # TTFT of as long a prompt on the idle server
    ttft_seconds: float
    step_seconds: float  # one step of the others just before it came

    @property
    def excess_steps(self) -> float:
        """What it waited beyond its own prefill, in steps of the others."""
        return (self.ttft_seconds - self.prefill_seconds) / self.step_seconds


class Excerpt(NamedTuple):
    """What of an answer had come when it was cancelled."""

    prompt: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wave:
    """One request that decodes alone, then among many, then alone again."""

    calm: Record  # the same request shortly before, alone from its first token to its last
    lone: Record
    rise_seconds: float  # since `lone.started_at`: when the others were sent
    fall_seconds: float  # when they were cancelled
    load: tuple[Excerpt, ...]  # the others


@dataclass(slots=True)
class Results:
    """Everything measured so far; it grows while the benchmark runs."""

    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    is_cold: bool = True  # the prefix cache was cleared before every single request
    is_complete: bool = False
    prefills: list[Record] = field(default_factory=list)  # one token per prompt, K=0
    records: list[Record] = field(default_factory=list)  # one request at a time
    bare_runs: list[BareRun] = field(default_factory=list)
    pass_costs: list[PassCost] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    fixed_variants: tuple[Variant, ...] = ()  # K=0, the default, then fixed lengths
    fixed: list[Record] = field(default_factory=list)
    random: list[Record] = field(default_factory=list)  # answers that nobody can predict
    waves: list[Wave] = field(default_factory=list)
    wave_plain: list[Record] = field(default_factory=list)  # the waves' texts, alone, K=0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Something the reader of the numbers must know; said once."""
        if text not in self.notes:
            self.notes.append(text)
