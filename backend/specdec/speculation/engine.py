"""The loop: schedule, propose, verify, commit, emit. One thread runs it; any thread may submit.

Knows decoders, drafters and sinks only by their protocols; knows nothing of Triton.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence as Seq

from specdec.config import SpeculativeConfig
from specdec.drafters.base import Drafter
from specdec.errors import Cancelled, DecoderFailed, SpecdecError
from specdec.speculation.acceptance import lay_out
from specdec.speculation.controller import Controller
from specdec.speculation.metrics import Metrics, StepTimes
from specdec.speculation.scheduler import Scheduler
from specdec.speculation.sequence import Sequence
from specdec.speculation.state import State, read
from specdec.speculation.verifier import Outcome, Work, verify
from specdec.types import Decoder, Proposal, Speedup

logger = logging.getLogger(__name__)


class Engine:
    """Continuous batching over all open sequences, with speculation per sequence."""

    def __init__(
        self,
        config: SpeculativeConfig,
        target: Decoder,
        *,
        max_sequences: int,
        metrics: Metrics,
        controller: Controller,
    ) -> None:
        self._target = target
        self._metrics = metrics
        self._controller = controller
        self.scheduler = Scheduler(config, max_sequences)
        self._changed = threading.Condition()  # guards the waiting line and `_stopping`
        self._stopping = False
        metrics.state(self._read_state)

    # ---- any thread ----------------------------------------------------------------------

    def submit(self, sequences: Seq[Sequence]) -> None:
        """Queue the sequences of one request, all or none. Raises `Overloaded`."""
        with self._changed:
            if self._stopping:
                raise SpecdecError("the server is shutting down")
            self.scheduler.add(sequences)
            self._changed.notify()

    def stop(self) -> None:
        """Make `run` end what is open with an error and return."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    # ---- the engine's thread -------------------------------------------------------------

    def run(self) -> None:
        """Step until `stop`. A bug in one step fails that step's sequences, not the server."""
        while self._wait_for_work():
            try:
                self.step()
            except Exception:
                logger.exception("step failed")
                self._fail(list(self.scheduler.running), SpecdecError("internal error"))
        with self._changed:
            open_sequences = [*self.scheduler.running, *self.scheduler.waiting]
            self.scheduler.waiting.clear()
        self._fail(open_sequences, SpecdecError("the server is shutting down"))

    def step(self) -> None:
        """One round over everything that is running."""
        started = time.perf_counter()
        self._drop_unwanted()
        self._admit()
        decoding = self.scheduler.decoding()
        chunks = self.scheduler.chunks(is_busy=bool(decoding))
        drafts, draft_seconds = self._propose(decoding, chunks)
        batch = [*drafts, *chunks]
        if not batch:
            return
        try:
            outcomes, verify_seconds = verify(self._target, batch)
        except DecoderFailed as error:
            self._fail([work.sequence for work in batch], error)
            return
        for work, outcome in zip(batch, outcomes, strict=True):
            self._commit(work, outcome)
        times = StepTimes(time.perf_counter() - started, draft_seconds, verify_seconds)
        self._account(drafts, outcomes, times, is_pure=not chunks)

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._stopping or self.scheduler.waiting or self.scheduler.running):
                self._metrics.idle()
                self._metrics.state(self._read_state, is_last=True)
                self._changed.wait()
            return not self._stopping

    def _drop_unwanted(self) -> None:
        with self._changed:
            gone = self.scheduler.drop_unwanted()
        gone += [s for s in self.scheduler.running if s.is_unwanted]
        if gone:
            self._metrics.cancelled(sum(s.sink.cancelled for s in gone))
            self._fail(gone, Cancelled("the request was cancelled"))

    def _admit(self) -> None:
        """Give waiting sequences a slot; their prompt may already be in the cache in part."""
        while True:
            with self._changed:
                sequence = self.scheduler.next_waiting()
            if sequence is None:
                return
            sequence.scheduled_ns, request = time.time_ns(), sequence.request
            try:
                sequence.num_cached = sequence.num_reused = self._target.open(
                    sequence.sequence_id, request.prompt_ids, request.sampling, request.cache_salt
                )
            except DecoderFailed as error:
                self._fail([sequence], error)
                continue
            self._metrics.admitted(sequence)
            if sequence.drafter:
                sequence.drafter.begin(sequence.view)

    def _propose(self, decoding: Seq[Sequence], chunks: Seq[Work]) -> tuple[list[Work], float]:
        """One row per decoding sequence, with the drafts that pay behind it.

        Each drafter is asked once for all its sequences; at limit 0 it is not asked at all.
        """
        control = self._controller
        candidates = [s.candidate for s in decoding]
        prompt_rows = sum(len(chunk.token_ids) for chunk in chunks)
        limits = control.limits(candidates, other_rows=prompt_rows)
        groups: dict[Drafter, list[tuple[Sequence, int]]] = {}
        for sequence, limit in zip(decoding, limits, strict=True):
            if sequence.drafter and limit > 0:
                groups.setdefault(sequence.drafter, []).append((sequence, limit))
        offers: dict[int, Proposal] = {}
        seconds = sum(self._ask(drafter, group, offers) for drafter, group in groups.items())
        proposals = [offers.get(s.sequence_id, Proposal()) for s in decoding]
        kept = control.trim(candidates, proposals, other_rows=prompt_rows, draft_seconds=seconds)
        return [
            Work(
                s,
                s.pending,
                lay_out(proposal.behind(s.carried)),
                num_carried=len(s.carried),
                offered=offered,
                is_resting=not limit,
            )
            for s, proposal, offered, limit in zip(decoding, kept, proposals, limits, strict=True)
        ], seconds

    def _ask(
        self, drafter: Drafter, group: Seq[tuple[Sequence, int]], offers: dict[int, Proposal]
    ) -> float:
        """One call to a drafter; fills `offers` by sequence id, returns the draft model's time."""
        sequences = [sequence for sequence, _ in group]
        limits = [limit for _, limit in group]
        try:
            judge = self._controller.judge(drafter.name)
            result = drafter.propose([s.view for s in sequences], limits, judge)
        except DecoderFailed as error:
            self._degrade(drafter, sequences, str(error))
            return 0.0
        for sequence, proposal, limit in zip(sequences, result.proposals, limits, strict=True):
            assert len(proposal.token_ids) <= limit, (drafter.name, proposal, limit)
            offers[sequence.sequence_id] = proposal
        asked = result.asked.values()
        if asked and not any(a.num_left for a in asked):  # nobody still catches up
            self._controller.observe_draft(
                drafter.name,
                [a.num_passes for a in asked],
                num_rows=sum(a.num_rows for a in asked),
                seconds=result.model_seconds,
                inside_seconds=result.inside_seconds,
            )
        for i, share in result.asked.items():
            sequences[i].num_undrafted = share.num_left
        late = [i for i, share in result.asked.items() if share.num_left]
        unanswered = [sequences[i].sequence_id for i in (*late, *result.failed)]
        self._controller.unanswered(drafter.name, unanswered)
        if result.failed:
            self._degrade(drafter, [sequences[i] for i in result.failed], "it was refused")
        return result.model_seconds

    def _degrade(self, drafter: Drafter, sequences: Seq[Sequence], reason: str) -> None:
        """Its model failed: without one these requests go on by plain decoding."""
        if drafter.needs_model:
            logger.warning("drafter %s failed, plain decoding goes on: %s", drafter.name, reason)
            self._end_drafting(sequences)
        for sequence in sequences:
            if drafter.needs_model:
                sequence.drafter = None
            sequence.stats.num_draft_errors += 1
        self._metrics.draft_errors(len(sequences))

    def _commit(self, work: Work, outcome: Outcome) -> None:
        """Append what the target decided, cut at the end of the text, and emit it."""
        sequence, (verdict, features) = work.sequence, outcome
        if sequence.drafter and features is not None:
            sequence.drafter.absorb(sequence.view, sequence.num_cached, features)
        sequence.num_cached += len(work.token_ids)
        if verdict is None:
            return
        from_draft = [True] * verdict.num_accepted + [False]
        chunk = sequence.text.push(verdict.output_ids, verdict.logprobs, from_draft)
        num_kept = len(chunk.token_ids)
        assert 1 <= num_kept <= len(verdict.output_ids), (num_kept, verdict)
        sequence.token_ids.extend(chunk.token_ids)
        # A draft model has seen its own tokens, all but the last; a head none without features.
        num_followed = min(verdict.num_accepted, max(len(work.offered.token_ids) - 1, 0))
        if features is not None:
            num_followed = 0
        sequence.num_undrafted += num_kept - min(num_followed, num_kept)
        # Accepted rows are in the cache already; the last token of the text never is.
        sequence.num_cached = len(sequence.token_ids) - 1
        num_accepted = sum(chunk.from_draft)
        self._metrics.committed(sequence, verdict.num_draft_tokens, num_accepted, num_kept)
        # It follows the whole block: where a stop cut that, it follows nothing.
        carry = verdict.carry if num_kept == len(verdict.output_ids) else ()
        if sequence.drafter and work.num_carried <= num_accepted:
            known_ids = (*chunk.token_ids[work.num_carried :], *carry)
            self._controller.observe_text(sequence.candidate, work.offered, known_ids)
        sequence.carry = carry
        if chunk.finish_reason is not None:
            self._close([sequence])
            self._metrics.finished(sequence)
        elif sequence.drafter:
            sequence.drafter.observe(sequence.view, verdict)
        sequence.sink.chunk(sequence, chunk)

    def _account(
        self, drafts: Seq[Work], outcomes: Seq[Outcome], times: StepTimes, *, is_pure: bool
    ) -> None:
        """Tell the controller, the metrics and the requests what the step took."""
        control = self._controller
        if drafts and is_pure:
            plain = control.plain_seconds(len(drafts))
            for work, outcome, reason in zip(drafts, outcomes, control.last_reasons, strict=True):
                if outcome.verdict and work.sequence.text.finish_reason is None:
                    measured = Speedup(plain * len(outcome.verdict.output_ids), times.total)
                    work.sequence.stats.decided(reason, control.last_speedup, measured)
            control.observe_pass(
                [1 + len(work.proposal.token_ids) for work in drafts],
                verify_seconds=times.verify,
                overhead_seconds=times.total - times.draft - times.verify,
            )
        self._metrics.step(
            times,
            plain_seconds=control.plain_seconds(len(drafts)) if drafts and is_pure else None,
            num_decoding=len(drafts),
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
        )
        num_drafted = sum(len(work.proposal.token_ids) for work in drafts)
        self._metrics.decided(*control.take(), num_drafted / len(drafts) if drafts else None)
        self._metrics.state(self._read_state)

    def _read_state(self) -> dict[State, float]:
        return read(self._controller, self.scheduler.max_running)

    def _fail(self, sequences: Seq[Sequence], error: SpecdecError) -> None:
        self._close(sequences)
        for sequence in sequences:
            sequence.sink.fail(error)

    def _close(self, sequences: Seq[Sequence]) -> None:
        """Free every trace of these sequences: target slot, draft slot, running table."""
        running = [s for s in sequences if s in self.scheduler.running]
        for sequence in running:
            self.scheduler.remove(sequence)
            self._controller.end(sequence.sequence_id)
        self._end_drafting(running)
        if running:
            try:
                self._target.close([(s.sequence_id, s.num_cached) for s in running])
            except DecoderFailed as error:
                logger.warning("closing sequences failed: %s", error)

    def _end_drafting(self, sequences: Seq[Sequence]) -> None:
        groups: dict[Drafter, list[int]] = {}
        for sequence in sequences:
            if sequence.drafter:
                groups.setdefault(sequence.drafter, []).append(sequence.sequence_id)
        for drafter, sequence_ids in groups.items():
            try:
                drafter.end(sequence_ids)
            except DecoderFailed as error:
                logger.warning("drafter %s: ending sequences failed: %s", drafter.name, error)
