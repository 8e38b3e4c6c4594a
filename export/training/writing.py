"""The target writes answers, many at a time, through the decoder that serves it.

Every text is also what the target thought while it wrote: the features of every token it read,
and its likeliest token at every step, which differs from the sampled one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from specdec.artifact import Artifact
from specdec.decoder.decoder import CachedDecoder
from specdec.decoder.runtimes import load_runtime
from specdec.errors import InvalidRequest
from specdec.export.training.corpus import Answer, Array, Text
from specdec.export.training.prompts import Job
from specdec.types import DecoderInfo, Extend, Extended, SamplingParams


def load_target(directory: Path, *, batch: int, max_tokens: int, threads: int) -> CachedDecoder:
    """An exported target, without what only serving needs (probe, costs).

    Args:
        batch: sequences at once.
        max_tokens: of a prompt and its answer.

    Raises:
        InvalidArtifact: there is none in `directory`.
        InvalidRequest: its graph gives out no features.
    """
    artifact = Artifact.read(directory)
    if artifact.num_layers not in artifact.feature_layers:
        raise InvalidRequest(
            f"--target {directory} gives out the features of layers "
            f"{list(artifact.feature_layers)}: training needs the last, {artifact.num_layers}, "
            f"among them: export it with --features auto"
        )
    runtime = load_runtime(artifact, directory, num_slots=batch, num_threads=threads)
    info = DecoderInfo(
        max_sequences=batch,
        max_sequence_length=min(max_tokens, artifact.max_position_embeddings),
        vocab_size=min(artifact.num_tokens, artifact.vocab_size),
        exactness="distribution",
        min_rows=1,
        precision=artifact.precision,
        feature_size=artifact.feature_size,
    )
    return CachedDecoder(runtime, info, artifact)


@dataclass(slots=True, eq=False)
class _Writing:
    """One answer on its way."""

    job: Job
    token_ids: list[int]
    likeliest: list[int] = field(default_factory=list)
    features: list[Array] = field(default_factory=list)

    def take(self, found: Extended) -> None:
        """One more token, and the features of those it was sampled after."""
        assert found.features is not None
        self.token_ids.append(found.token_ids[0])
        self.likeliest.append(found.candidate_ids[0][0])
        self.features.append(found.features)

    def text(self) -> Text:
        return Text(
            number=self.job.number,
            token_ids=np.array(self.token_ids, np.int64),
            num_prompt_tokens=len(self.job.prompt.token_ids),
            likeliest=np.array(self.likeliest, np.int64),
            temperature=self.job.temperature,
            source=self.job.prompt.source,
            features=np.concatenate(self.features),
        )


def write_answers(
    decoder: CachedDecoder, jobs: Iterable[Job], *, end_ids: Iterable[int], max_new_tokens: int
) -> Iterator[Text]:
    """Texts in the order in which they end; the next job starts as soon as one has."""
    waiting, ends = iter(jobs), frozenset(end_ids)
    running: dict[int, _Writing] = {}
    while True:
        while len(running) < decoder.info.max_sequences:
            job = next(waiting, None)
            if job is None:
                break
            running[job.number] = _begin(decoder, job)
        if not running:
            return
        ended = [
            number
            for number, text in running.items()
            if text.token_ids[-1] in ends or len(text.likeliest) >= max_new_tokens
        ]
        for number in ended:
            decoder.close([(number, len(running[number].token_ids) - 1)])
            yield running.pop(number).text()
        if running and not ended:
            _step(decoder, running)


def _begin(decoder: CachedDecoder, job: Job) -> _Writing:
    """Read the whole prompt: what another text has left in the cache has no features."""
    prompt = job.prompt.token_ids
    sampling = SamplingParams(temperature=job.temperature, seed=job.seed)
    decoder.open(job.number, prompt, sampling)
    text = _Writing(job, list(prompt))
    call = Extend(job.number, 0, prompt, 1, num_candidates=1, wants_features=True)
    text.take(decoder.extend([call]).sequences[0])
    return text


def _step(decoder: CachedDecoder, running: dict[int, _Writing]) -> None:
    """One token for every running text."""
    calls = [
        Extend(
            number,
            len(text.token_ids) - 1,
            text.token_ids[-1:],
            1,
            num_candidates=1,
            wants_features=True,
        )
        for number, text in running.items()
    ]
    for text, found in zip(running.values(), decoder.extend(calls).sequences, strict=True):
        text.take(found)


def read_again(decoder: CachedDecoder, answers: Iterable[Answer]) -> Iterator[Text]:
    """Features of answers of which only the tokens were kept: one pass over each."""
    for answer in answers:
        decoder.open(answer.number, answer.token_ids[:1].tolist(), SamplingParams())
        call = Extend(answer.number, 0, answer.token_ids[:-1].tolist(), 0, wants_features=True)
        features = decoder.extend([call]).sequences[0].features
        decoder.close([(answer.number, len(answer) - 1)])
        assert features is not None
        yield answer.with_features(features)
