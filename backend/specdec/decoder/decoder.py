"""A compiled model with its cache and sampler: the `Decoder` protocol over a runtime.

One `extend` is: check everything, rewind, evaluate and sample what was given, then take the
draft steps, one pass each over the sequences that go on. Knows nothing of acceptance,
drafters, text or Triton.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from specdec.artifact import Artifact
from specdec.config import DecoderConfig
from specdec.decoder import batch, tree
from specdec.decoder.batch import Share
from specdec.decoder.cache import Cache, Slot
from specdec.decoder.cached import Cached, Measure
from specdec.decoder.costs import load_or_measure
from specdec.decoder.drawing import Wanted, draw_all
from specdec.decoder.outputs import Outputs
from specdec.decoder.probe import probe
from specdec.decoder.refusals import Limits, refuse_calls, refuse_ids
from specdec.decoder.runtimes import Draw, Features, Logits, Runtime, load_runtime
from specdec.errors import DecoderFailed
from specdec.sampling import likeliest
from specdec.types import (
    NOT_DRAWN,
    DecoderInfo,
    Extend,
    ExtendResult,
    SamplingParams,
)


@dataclass(slots=True, eq=False)
class _Sequence:
    slot: Slot
    sampling: SamplingParams
    num_prompt_tokens: int


class CachedDecoder(Cached[_Sequence]):
    """See `Decoder`. Between calls the described content of slots in use is always in the cache."""

    def __init__(
        self,
        runtime: Runtime,
        info: DecoderInfo,
        artifact: Artifact,
        measure: Measure | None = None,
    ) -> None:
        """`info`: see `Cached`; min_rows as the probe found them on this runtime."""
        super().__init__(Cache(runtime, max_length=info.max_sequence_length), info, measure)
        self._runtime = runtime
        max_rows = batch.most_rows(runtime.max_rows, info.min_rows)
        self._limits = Limits(info, artifact.vocab_size, max_rows)
        self._max_position = artifact.max_position_embeddings

    def open(
        self,
        sequence_id: int,
        prompt_ids: Seq[int],
        sampling: SamplingParams,
        cache_salt: int = 0,
    ) -> int:
        """See `Decoder`. Raises `DecoderFailed`: id in use, bad prompt, no free slot."""
        self._refuse_open(sequence_id)
        if not 1 <= len(prompt_ids) <= self.info.max_sequence_length:
            raise DecoderFailed(
                f"a prompt of {len(prompt_ids)} tokens: allowed are 1 to "
                f"{self.info.max_sequence_length}"
            )
        refuse_ids(prompt_ids, self._limits)
        slot = self._cache.open(np.asarray(prompt_ids, np.int32), cache_salt)
        self._add(sequence_id, _Sequence(slot, sampling, len(prompt_ids)))
        return slot.length

    def extend(self, calls: Seq[Extend]) -> ExtendResult:
        """See `Decoder`. Nothing changes if a call is refused.

        If a pass fails, the sequences of the call are cut back to what is certain.
        """
        began = time.perf_counter()
        sequences = self._called(calls)
        refuse_calls(calls, self._limits)
        outputs = [Outputs.of(call) for call in calls]
        shares = []
        for call, sequence in zip(calls, sequences, strict=True):
            sequence.slot.length = call.start  # rewind
            root = call.start + len(call.token_ids) - len(call.parents) - 1
            parents = tree.branch_parents(call.parents, root)
            shares.append(self._share(sequence.slot, call.token_ids, call.num_outputs, parents))
        self._evaluate(shares, sequences, outputs)
        for output in outputs:
            output.end_of_given()
        going = list(range(len(calls)))
        while going := [i for i in going if outputs[i].goes_on]:
            self._evaluate(
                [self._share(sequences[i].slot, outputs[i].token_ids[-1:], 1) for i in going],
                [sequences[i] for i in going],
                [outputs[i] for i in going],
            )
        extended = [output.extended() for output in outputs]
        return ExtendResult(extended, time.perf_counter() - began)

    def _share(
        self, slot: Slot, token_ids: Seq[int], num_outputs: int, parents: Seq[int] = ()
    ) -> Share:
        """Note the tokens behind the slot's content: penalties see them, the cache not yet."""
        share = Share(slot.index, slot.length, token_ids, num_outputs, parents)
        slot.tokens[slot.length : share.end] = token_ids[: share.end - slot.length]
        return share

    def _evaluate(
        self, shares: Seq[Share], sequences: Seq[_Sequence], outputs: Seq[Outputs]
    ) -> None:
        """Run the passes that these shares need, and publish each that succeeded."""
        by_slot = {s.slot: (q, o) for s, q, o in zip(shares, sequences, outputs, strict=True)}
        max_rows = batch.most_rows(self._runtime.max_rows, self.info.min_rows)
        for parts in batch.cut(shares, max_rows):
            for group in batch.plan(parts, length=self._runtime.length, max_rows=max_rows):
                wanted = any(by_slot[share.slot][1].wants_features for share in group)
                logits, features = self._forward(group, with_features=wanted)
                for share in group:
                    by_slot[share.slot][0].slot.length = share.end
                self._publish(logits, features, [(s, *by_slot[s.slot]) for s in group])

    def _publish(
        self,
        logits: Logits,
        features: Features | None,
        group: Seq[tuple[Share, _Sequence, Outputs]],
    ) -> None:
        """Draw after the output tokens of one pass, logits [R, V], and note what else is wanted."""
        num_tokens = self.info.vocab_size
        ends = list(accumulate(share.num_outputs for share, _, _ in group))
        wanted = [
            Wanted(
                slice(end - share.num_outputs, end),
                tree.histories(share, sequence.slot.tokens),
                sequence.sampling,
                sequence.num_prompt_tokens,
                # What a pass was too narrow for is drawn whole.
                output.links if share.num_outputs == output.num_outputs else (),
            )
            for end, (share, sequence, output) in zip(ends, group, strict=True)
        ]
        drawn = draw_all(self._runtime, logits, wanted, num_tokens)
        flat_row = 0
        for (share, _, output), each, draws in zip(group, wanted, drawn, strict=True):
            output.token_ids += [draw.token_id for draw in draws]
            output.logprobs += [draw.logprob for draw in draws]
            if share.num_outputs:
                self._add_candidates(logits, each.rows, draws, output)
            begin, flat_row = flat_row, flat_row + len(share.token_ids)
            if output.wants_features and features is not None:
                output.add_features(features[begin:flat_row])

    def _forward(self, group: Seq[Share], *, with_features: bool) -> tuple[Logits, Features | None]:
        """One pass: logits [R, V], and the features of its rows [N, feature_size]."""
        first, last = min(s.slot for s in group), max(s.slot for s in group) + 1
        min_rows = self.info.min_rows
        self._cache.make_room(first, last, batch.num_places(group, min_rows))
        built = batch.build(
            group,
            self._cache.lengths,
            length=self._runtime.length,
            min_rows=min_rows,
            max_position=self._max_position,
        )
        if with_features:
            return self._runtime.forward_with_features(built)
        return self._runtime.forward(built), None

    def _add_candidates(
        self, logits: Logits, rows: slice, draws: Seq[Draw], output: Outputs
    ) -> None:
        """Note the likeliest ids of those `rows` that were drawn from, and so are finite."""
        count, num_tokens = output.num_candidates, self.info.vocab_size
        if not count:
            return
        found = self._runtime.likeliest(logits, rows, num_tokens, count)
        for number, draw in enumerate(draws):
            if draw.token_id == NOT_DRAWN:
                ids = [NOT_DRAWN] * count
            elif found is None:
                ids = likeliest(logits[rows.start + number][:num_tokens], count).tolist()
            else:
                ids = found[number]
            output.candidate_ids.append(tuple(ids))


def load_decoder(config: DecoderConfig, directory: Path) -> CachedDecoder:
    """Load an exported model and find out how exact its runtime is here.

    Args:
        config: sizes and threads.
        directory: the artifact's; `config.artifact_dir` goes before it.

    Raises:
        InvalidArtifact: it is missing, damaged, or its runtime is unknown.
    """
    directory = Path(config.artifact_dir or directory)
    artifact = Artifact.read(directory)
    runtime = load_runtime(
        artifact,
        directory,
        num_slots=config.max_sequences,
        num_threads=config.threads,
        device=config.device,
    )
    finding = probe(runtime, artifact)
    measure = partial(
        load_or_measure,
        runtime,
        artifact,
        directory,
        min_rows=finding.min_rows,
        num_threads=config.threads,
    )
    info = DecoderInfo(
        max_sequences=config.max_sequences,
        max_sequence_length=_max_sequence_length(config, artifact, runtime),
        vocab_size=min(artifact.num_tokens, artifact.vocab_size),
        exactness=finding.exactness,
        min_rows=finding.min_rows,
        precision=artifact.precision,
        feature_size=artifact.feature_size,
    )
    return CachedDecoder(runtime, info, artifact, measure)


def _max_sequence_length(config: DecoderConfig, artifact: Artifact, runtime: Runtime) -> int:
    """Tokens a slot can hold; a pass pads every sequence to its longest, behind the last token."""
    longest = min(config.max_sequence_length, artifact.max_position_embeddings)
    if runtime.max_length is None:
        return longest
    return min(longest, runtime.max_length - batch.MAX_SHARED_ROWS)
