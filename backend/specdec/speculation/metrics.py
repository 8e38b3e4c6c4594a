"""What the engine counts. Counters first; rates are defined here in words, never stored.

    acceptance rate    = spec_decode_num_accepted_tokens / spec_decode_num_draft_tokens
    acceptance length  = 1 + spec_decode_num_accepted_tokens / spec_decode_num_drafts
    tokens per pass    = decode_tokens / (target passes of decoding sequences, drafted or not)
    draft overhead     = draft_seconds / step_seconds
    orchestration      = step_seconds - draft_seconds - verify_seconds
    measured gain      = plain_decode_seconds / decode_seconds   (over steps without prompts)
    expected / real    = spec_decode_expected_tokens / decode_tokens

Only committed tokens count: what a stop cuts off was never accepted. Names follow vLLM's, with
the prefix `specdec:`. The engine's thread writes, a publisher takes snapshots; nothing here
knows Triton.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specdec.speculation.pace import Reason
from specdec.speculation.sequence import Sequence
from specdec.speculation.state import State

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 30.0, 60.0)
PER_TOKEN = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0, 5.0)

COUNTERS = {
    "spec_decode_num_drafts_total": "Non-empty proposals that were verified",
    "spec_decode_num_draft_tokens_total": "Draft tokens that were verified",
    "spec_decode_num_accepted_tokens_total": "Draft tokens that were committed",
    "generation_tokens_total": "Tokens emitted to clients",
    "prompt_tokens_total": "Prompt tokens of admitted sequences",
    "prefix_cache_hits_total": "Prompt tokens found in the cache",
    "decode_tokens_total": "Emitted tokens that are not the first of their sequence",
    "spec_decode_expected_tokens_total": "Tokens the controller expected of decoding sequences",
    "num_steps_total": "Scheduler steps",
    "step_seconds_total": "Wall time of steps",
    "draft_seconds_total": "Time inside the draft model",
    "verify_seconds_total": "Time inside the target model",
    "decode_seconds_total": "Wall time of steps without prompt chunks",
    "plain_decode_seconds_total": "Their tokens at K = 0, by the cost model",
    "draft_errors_total": "Sequences that lost speculation to a draft error",
    "requests_finished_total": "Sequences that ended with a finish reason",
    "requests_cancelled_total": "Sequences that clients cancelled",
}
GAUGES = {
    "num_requests_running": "Sequences in the running table",
    "num_requests_waiting": "Sequences in the waiting line",
    "spec_decode_draft_length": "Verified draft tokens per decoding sequence in the last step",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("Arrival to first token", SECONDS),
    "time_per_output_token_seconds": ("Mean time of a sequence's later tokens", PER_TOKEN),
}
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
REASON = "spec_decode_decisions_total"
STATE_SECONDS = 2.0  # between two looks at what the controller knows


class StepTimes(NamedTuple):
    total: float
    draft: float
    verify: float


@dataclass(slots=True)
class Snapshot:
    """Increments since the last snapshot, present gauges, and single observations."""

    counters: dict[str, float] = field(default_factory=dict)
    per_position: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    states: dict[State, float] = field(default_factory=dict)
    observations: dict[str, list[float]] = field(default_factory=dict)


class Metrics:
    """Accumulates between snapshots; every method is cheap and takes one short lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = Snapshot()
        self._num_step_tokens = 0
        self._state_due = 0.0  # time.monotonic()

    def take(self) -> Snapshot:
        with self._lock:
            taken, self._now = self._now, Snapshot()
            return taken

    def step(
        self,
        times: StepTimes,
        *,
        plain_seconds: float | None,
        num_decoding: int,
        running: int,
        waiting: int,
    ) -> None:
        """Count one step; `plain_seconds`: a K = 0 step of the same batch, None with prompts."""
        with self._lock:
            self._add("num_steps_total", 1)
            self._add("step_seconds_total", times.total)
            self._add("draft_seconds_total", times.draft)
            self._add("verify_seconds_total", times.verify)
            if plain_seconds is not None:
                self._add("decode_seconds_total", times.total)
                per_token = plain_seconds / num_decoding
                self._add("plain_decode_seconds_total", per_token * self._num_step_tokens)
            self._num_step_tokens = 0
            self._now.gauges["num_requests_running"] = running
            self._now.gauges["num_requests_waiting"] = waiting

    def state(self, read: Callable[[], dict[State, float]], *, is_last: bool = False) -> None:
        """Take what the controller knows, if that was not done lately or nothing follows soon."""
        now = time.monotonic()
        if now < self._state_due and not is_last:
            return
        self._state_due = now + STATE_SECONDS
        states = read()
        with self._lock:
            self._now.states = states

    def decided(
        self, reasons: Mapping[Reason, int], expected_tokens: float, draft_length: float | None
    ) -> None:
        """Why the controller let through what it did, and what it expects of it.

        Args:
            draft_length: mean over decoding sequences; None where there are none.
        """
        with self._lock:
            if draft_length is not None:
                self._now.gauges["spec_decode_draft_length"] = draft_length
            self._add("spec_decode_expected_tokens_total", expected_tokens)
            for reason, count in reasons.items():
                self._now.reasons[reason] = self._now.reasons.get(reason, 0) + count

    def idle(self) -> None:
        with self._lock:
            self._now.gauges.update(num_requests_running=0, num_requests_waiting=0)

    def admitted(self, sequence: Sequence) -> None:
        with self._lock:
            self._add("prompt_tokens_total", len(sequence.request.prompt_ids))
            self._add("prefix_cache_hits_total", sequence.num_reused)

    def committed(
        self, sequence: Sequence, num_draft_tokens: int, num_accepted: int, num_outputs: int
    ) -> None:
        """Count one verdict in the sequence's own stats and in the server's."""
        stats = sequence.stats
        stats.num_steps += 1
        stats.num_output_tokens += num_outputs
        stats.num_drafts += num_draft_tokens > 0
        stats.num_draft_tokens += num_draft_tokens
        stats.num_accepted_tokens += num_accepted
        sequence.last_token_ns = time.time_ns()
        is_first = not sequence.first_token_ns
        if is_first:
            sequence.first_token_ns = sequence.last_token_ns
        with self._lock:
            if is_first:
                waited = (sequence.first_token_ns - sequence.arrival_ns) * 1e-9
                self._observe("time_to_first_token_seconds", waited)
            self._add("generation_tokens_total", num_outputs)
            self._num_step_tokens += num_outputs
            if not is_first:
                self._add("decode_tokens_total", num_outputs)
            if num_draft_tokens:
                self._add("spec_decode_num_drafts_total", 1)
                self._add("spec_decode_num_draft_tokens_total", num_draft_tokens)
                self._add("spec_decode_num_accepted_tokens_total", num_accepted)
            for position in range(num_accepted):
                counts = self._now.per_position
                counts[position] = counts.get(position, 0) + 1

    def finished(self, sequence: Sequence) -> None:
        later_tokens = sequence.stats.num_output_tokens - 1
        seconds = (sequence.last_token_ns - sequence.first_token_ns) * 1e-9
        with self._lock:
            self._add("requests_finished_total", 1)
            if later_tokens > 0:
                self._observe("time_per_output_token_seconds", seconds / later_tokens)

    def cancelled(self, count: int) -> None:
        with self._lock:
            self._add("requests_cancelled_total", count)

    def draft_errors(self, count: int) -> None:
        with self._lock:
            self._add("draft_errors_total", count)

    def _add(self, name: str, amount: float) -> None:
        self._now.counters[name] = self._now.counters.get(name, 0) + amount

    def _observe(self, name: str, value: float) -> None:
        self._now.observations.setdefault(name, []).append(value)
