"""An EAGLE head with its cache: the `Head` protocol over a runtime.

One `draft` is: check everything, rewind, append the committed rows, then go on along the carry and
grow the trees. All sequences of a call share its passes; each is where its own rows have brought
it, so one may still catch up while another grows.

    pass 1   committed rows of A | of B
    pass 2   A's carry           | B: the likeliest tokens of the root
    pass 3   A: likeliest ...    | B: the likeliest of all its tokens ...

Rows are numbered from the first one a sequence ever had, and so are their rotary positions: only
distances between positions matter, so a head may begin anywhere in a text. As in a target's cache
the rows of a text's beginning serve every sequence that starts with it: what all prompts have
before them is what a head's attention rests on (without it 2.22 tokens a pass, with it 2.41; for
code 2.45 and 3.07).
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specdec.artifact import Artifact
from specdec.config import DecoderConfig
from specdec.decoder import batch, head_batch, head_runtime
from specdec.decoder.cache import Cache, Slot
from specdec.decoder.cached import Cached, Measure
from specdec.decoder.costs import load_or_measure
from specdec.decoder.head_batch import HeadShare, Row
from specdec.decoder.head_growth import ROOT, Growth
from specdec.decoder.head_refusals import MAX_OWN_ROWS, refuse_calls
from specdec.decoder.head_runtime import HeadRuntime
from specdec.decoder.head_vocabulary import Best, Bools, Columns, Floats, OwnIds, columns
from specdec.decoder.refusals import Limits, refuse_ids
from specdec.errors import DecoderFailed
from specdec.types import (
    DecoderInfo,
    HeadCall,
    HeadDraft,
    HeadResult,
    SamplingParams,
)

NOBODYS = -1  # stands for the tokens of rows that no other sequence may begin with


@dataclass(slots=True, eq=False)
class _Sequence:
    """The first `num_whole` rows are of the text's first positions, with nothing left out before
    them: other sequences may begin with them."""

    slot: Slot
    own_ids: OwnIds
    num_whole: float

    def begin(self, call: HeadCall) -> None:
        """Rewind, and note the tokens of the rows to come."""
        self.slot.length = call.start
        is_whole = call.start < self.num_whole
        end = call.start + len(call.token_ids)
        self.slot.tokens[call.start : end] = call.token_ids if is_whole else NOBODYS
        self.own_ids.see(call.token_ids)


class _Got(NamedTuple):
    """What a pass gave one sequence."""

    hidden: Floats  # [its rows, H]
    best: list[Best]  # [num_outputs]


_Steps = Generator[HeadShare, _Got, HeadDraft]


def _steps(call: HeadCall, slot: int) -> _Steps:
    """One sequence's call: yields its share of every pass and is sent what that gave."""
    place = call.start + len(call.token_ids)
    share = partial(HeadShare, slot, place)
    wanted = call.max_tokens > 0
    is_last = wanted and not call.carry
    got = yield share(call.start, call.token_ids, int(is_last), features=call.features)
    if not wanted:
        return HeadDraft()
    path: tuple[int, ...] = ()
    for number, token_id in enumerate(call.carry, start=1):
        row = Row(token_id, path, got.hidden[-1])
        got = yield share(place, [token_id], int(number == len(call.carry)), rows=[row])
        path, place = (*path, place), place + 1
    growth = Growth(call)
    growth.add(ROOT, *got.best[0])
    paths, states = {ROOT: path}, {ROOT: got.hidden[-1]}
    while numbers := growth.next():
        parents = [growth.parent(i) for i in numbers]
        rows = [
            Row(growth.token_id(i), paths[p], states[p])
            for i, p in zip(numbers, parents, strict=True)
        ]
        got = yield share(place, [row.token_id for row in rows], len(rows), rows=rows)
        for number, row, state, best in zip(numbers, rows, got.hidden, got.best, strict=True):
            paths[number], states[number] = (*row.before, place), state
            growth.add(number, *best)
            place += 1
    return growth.draft()


class HeadDecoder(Cached[_Sequence]):
    """See `Head`. Between calls a slot holds a sequence's committed rows and nothing else."""

    def __init__(
        self,
        runtime: HeadRuntime,
        info: DecoderInfo,
        artifact: Artifact,
        measure: Measure | None = None,
    ) -> None:
        """`info`, `measure`: see `Cached`."""
        longest = info.max_sequence_length + MAX_OWN_ROWS
        super().__init__(Cache(runtime, max_length=longest), info, measure)
        self._runtime = runtime
        self._artifact = artifact
        self._limits = Limits(info, artifact.vocab_size, None)
        self._is_static = np.zeros(artifact.vocab_size, np.bool_)
        self._is_static[runtime.static_ids] = True

    def open(
        self,
        sequence_id: int,
        prompt_ids: Seq[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
        first: int = 0,
    ) -> int:
        """See `Head`. Raises `DecoderFailed`: id in use, an unknown token, no free slot."""
        self._refuse_open(sequence_id)
        if not 0 <= first <= max(len(prompt_ids) - 1, 0):
            raise DecoderFailed(
                f"sequence {sequence_id} would begin at position {first} of {len(prompt_ids)}"
            )
        refuse_ids(prompt_ids, self._limits)
        # A row is known by its token, and by those before it, of which the first has no row.
        rows = np.array(prompt_ids[1:], np.int32)
        slot = self._cache.open(rows, hash((cache_salt, *prompt_ids[:1])))
        num_whole = math.inf if slot.length >= first else slot.length
        sequence = _Sequence(slot, OwnIds(self._is_static), num_whole)
        sequence.own_ids.see(prompt_ids)
        self._add(sequence_id, sequence)
        return slot.length

    def draft(self, calls: Seq[HeadCall]) -> HeadResult:
        """See `Head`. Nothing changes if a call is refused.

        If a pass fails, the sequences of the call are cut back to what is certain.
        """
        began = time.perf_counter()
        sequences = self._called(calls)
        refuse_calls(calls, self._limits)
        for call, sequence in zip(calls, sequences, strict=True):
            sequence.begin(call)
        shared = columns(self._runtime.static_ids, [s.own_ids for s in sequences])
        steps = [
            _steps(call, sequence.slot.index)
            for call, sequence in zip(calls, sequences, strict=True)
        ]
        try:
            drafts = self._run(steps, calls, sequences, shared)
        finally:
            for call, sequence in zip(calls, sequences, strict=True):
                committed = call.start + len(call.token_ids)
                sequence.slot.length = min(sequence.slot.length, committed)
        return HeadResult(drafts, time.perf_counter() - began)

    def _run(
        self,
        steps: Seq[_Steps],
        calls: Seq[HeadCall],
        sequences: Seq[_Sequence],
        shared: Columns,
    ) -> list[HeadDraft]:
        """Pass after pass, until every sequence is done."""
        drafts = [HeadDraft()] * len(steps)
        going = {i: next(step) for i, step in enumerate(steps)}  # by number in the call
        while going:
            numbers = {share.slot: i for i, share in going.items()}
            plain = [share.plain for share in going.values()]
            for group in batch.plan(plain, length=self._runtime.length):
                members = [numbers[share.slot] for share in group]
                allowed = shared.allowed(members, [going[i].num_outputs for i in members])
                width = min(max(calls[i].width for i in members), len(shared.ids))
                outputs = self._pass([going[i] for i in members], shared, allowed, width)
                for i, got in zip(members, outputs, strict=True):
                    share = going.pop(i)
                    sequences[i].slot.length = share.start + len(share.token_ids)
                    try:
                        going[i] = steps[i].send(got)
                    except StopIteration as end:
                        drafts[i] = end.value
        return drafts

    def _pass(
        self, shares: Seq[HeadShare], shared: Columns, allowed: Bools, width: int
    ) -> Iterator[_Got]:
        """One pass: what it gives each share, `width` ids of every output."""
        first, last = min(s.slot for s in shares), max(s.slot for s in shares) + 1
        self._cache.make_room(first, last, batch.num_places([s.plain for s in shares], 1))
        outputs = self._runtime.evaluate(
            head_batch.build(
                shares,
                self._cache.lengths,
                length=self._runtime.length,
                max_position=self._artifact.max_position_embeddings,
                feature_size=self._artifact.feature_size,
                hidden_size=self._artifact.hidden_size,
                extra_ids=shared.extra_ids,
                allowed=allowed,
                width=width,
            )
        )
        if not np.isfinite(outputs.hidden).all() or np.isnan(outputs.best_logprobs).any():
            raise DecoderFailed("the head's hidden states are not finite")
        best = shared.best(outputs.best_columns, outputs.best_logprobs)
        row = output = 0
        for share in shares:
            first_row, first_output = row, output
            row, output = row + len(share.token_ids), output + share.num_outputs
            yield _Got(outputs.hidden[first_row:row], best[first_output:output])


def load_head(config: DecoderConfig, artifact: Artifact, directory: Path) -> HeadDecoder:
    """Load an exported head.

    Args:
        directory: the artifact's.

    Raises:
        InvalidArtifact: it is damaged, or its graph is no head's.
    """
    runtime = head_runtime.load(
        artifact, directory, num_slots=config.max_sequences, num_threads=config.threads
    )
    measure = partial(
        load_or_measure, runtime, artifact, directory, min_rows=1, num_threads=config.threads
    )
    info = DecoderInfo(
        max_sequences=config.max_sequences,
        max_sequence_length=min(config.max_sequence_length, artifact.max_position_embeddings),
        vocab_size=min(artifact.num_tokens, artifact.vocab_size),
        exactness="distribution",
        min_rows=1,
        precision=artifact.precision,
        feature_size=artifact.feature_size,
    )
    return HeadDecoder(runtime, info, artifact, measure)
