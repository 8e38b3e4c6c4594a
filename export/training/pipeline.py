"""One training from prompts to weights: write answers, train, evaluate; every stage resumes."""

from __future__ import annotations

import hashlib
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec.artifact import Artifact
from specdec.errors import InvalidRequest
from specdec.export.sources import Source
from specdec.export.training import answers as answers_file
from specdec.export.training import result, standalone
from specdec.export.training.corpus import Answer, Corpus, CorpusWriter, Text
from specdec.export.training.evaluation import Evaluation, evaluate
from specdec.export.training.head import Head, shape_of
from specdec.export.training.initialise import initialise
from specdec.export.training.kinds import Kind, head_config
from specdec.export.training.options import Draft, Settings, Writing
from specdec.export.training.prompts import Job, Prompts
from specdec.export.training.schedule import Schedule
from specdec.export.training.target import Target
from specdec.export.training.trainer import Trainer
from specdec.export.training.vocabulary import DraftVocabulary
from specdec.export.training.writing import load_target, read_again, write_answers

CORPUS, CHECKPOINT, HUGGING_FACE = "corpus", "checkpoint", "model"
_SHARD = 128  # texts: what an interruption can lose
_SAMPLE = 64  # texts that scales are measured on


class Pipeline:
    """Stages over one output folder; each can be called again and does what is left to do."""

    def __init__(
        self,
        source: Source,
        target_dir: Path,
        prompts: Prompts,
        output: Path,
        also: Sequence[Path] = (),
    ) -> None:
        """`also`: outputs of earlier trainings, whose texts are trained on too."""
        self._source, self._target_dir = source, target_dir
        self._prompts, self._output, self._also = prompts, output, also
        self._artifact = Artifact.read(target_dir)
        self._refuse_other_model()

    def jobs_left(self, writing: Writing) -> list[Job]:
        """What is to be written next: prompts of the target's own, then all answers."""
        done = {text.number: text for text in self._written()}
        openings = self._prompts.openings(writing.num_self_prompts, seed=writing.seed)
        left = [job for job in openings if job.number not in done]
        if left:
            return left
        frame, temperature = self._prompts.frame, writing.temperature
        jobs = self._prompts.jobs(rounds=writing.rounds, temperature=temperature, seed=writing.seed)
        for job in openings:
            assert frame is not None
            answer = frame.answer_to(done[job.number], temperature=temperature, seed=writing.seed)
            if answer is not None and len(answer.prompt.token_ids) <= writing.max_prompt_tokens:
                jobs.append(answer)
        return [job for job in jobs if job.number not in done]

    def write(self, jobs: list[Job], writing: Writing, on_text: Callable[[Text], None]) -> None:
        """Let the target write; what has ended is kept whatever interrupts."""
        texts = write_answers(
            self._decoder(writing),
            jobs,
            end_ids=self._artifact.end_ids,
            max_new_tokens=writing.max_new_tokens,
        )
        self._append(texts, on_text)

    def recall(self, path: Path, writing: Writing, on_text: Callable[[Text], None]) -> None:
        """Go on from an answers file: the target reads them again for their features."""
        done = {text.number for text in self._written()}
        found = [a for a in answers_file.load(path, self._prompts) if a.number not in done]
        self._append(read_again(self._decoder(writing), found), on_text)

    def trainer(self, draft: Draft, schedule: Schedule, settings: Settings) -> Trainer:
        """On the corpus as it is now, at the checkpoint where there is one."""
        weights = self._source.weights
        target = Target.read(self._source.config, weights)
        train, _ = self._all_texts().split(draft.held_out)
        config = head_config(
            draft.kind, self._artifact, layer=draft.layer, num_blocks=draft.num_blocks
        )
        head = Head(config, shape_of(target))
        vocabulary = self.vocabulary(draft, train)  # no weight belongs to an id of it
        if draft.start_from is None:
            initialise(head, target, weights, sample(train), draft.start, seed=settings.seed)
        else:
            result.read_head(draft.start_from, head)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if device.type == "cuda":
            settings = replace(settings, num_threads=1)  # one card, one stream
        trainer = Trainer(
            head,
            target,
            vocabulary,
            train,
            schedule=schedule,
            settings=settings,
            directory=self._output / CHECKPOINT,
            device=device,
        )
        try:
            trainer.resume()
        except ValueError as error:
            raise InvalidRequest(f"{error}: pass the same options, or another --output") from None
        return trainer

    def vocabulary(self, draft: Draft, train: Corpus) -> DraftVocabulary:
        """Ids the training answers use most; special tokens and ends always."""
        special = self._source.tokenizer.get_added_vocab().values()
        return DraftVocabulary.choose(
            train.counts(self._artifact.vocab_size),
            size=draft.vocabulary_size,
            always=(
                i for i in {*special, *self._artifact.end_ids} if i < self._artifact.vocab_size
            ),
        )

    def _refuse_other_model(self) -> None:
        """Raises `InvalidRequest`: the exported target is of another model than the source."""
        config, made = self._source.config, self._artifact
        mine = (config.num_hidden_layers, config.hidden_size, config.vocab_size)
        theirs = (made.num_layers, made.hidden_size, made.vocab_size)
        if mine != theirs:
            sizes = "{} layers of {} numbers and {} ids"
            raise InvalidRequest(
                f"--model is {self._source.label} ({sizes.format(*mine)}), the target in "
                f"{self._target_dir} was exported from {made.source} ({sizes.format(*theirs)})"
            )

    def refuse_misfit(self, head: Head, vocabulary: DraftVocabulary) -> None:
        """Raises `InvalidRequest`: what was trained elsewhere does not fit this target."""
        mine, theirs = self._artifact, head.shape.hidden_size
        sizes = (mine.hidden_size, mine.vocab_size)
        if sizes != (theirs, vocabulary.vocab_size):
            raise InvalidRequest(
                f"it was trained for a hidden size of {theirs} and {vocabulary.vocab_size} ids, "
                f"the target in {self._target_dir} has {sizes[0]} and {sizes[1]}"
            )
        if not set(head.config.feature_layers) <= set(mine.feature_layers):
            wanted = sorted({*head.config.feature_layers, mine.num_layers})
            raise InvalidRequest(
                f"it reads layers {list(head.config.feature_layers)}, the target in "
                f"{self._target_dir} gives out {list(mine.feature_layers)}: export it with "
                f"--features {','.join(map(str, wanted))} into another folder"
            )

    def evaluation(self, head: Head, vocabulary: DraftVocabulary) -> Evaluation:
        """Of what was trained elsewhere, on all that is written here; see `refuse_misfit`."""
        target = Target.read(self._source.config, self._source.weights)
        return evaluate(head, target, vocabulary, self._corpus())

    def finish(self, trainer: Trainer, draft: Draft) -> Evaluation:
        """Evaluate on held-out prompts and write everything that is worth keeping."""
        corpus = self._all_texts()
        _, held = corpus.split(draft.held_out)
        found = evaluate(trainer.head, trainer.target, trainer.vocabulary, held)
        made = {
            "target": {
                "source": self._artifact.source,
                "weights_sha256": self._artifact.weights_sha256,
                "vocabulary_sha256": self._artifact.vocabulary_sha256,
            },
            "training": {
                "steps": trainer.position.step,
                "minutes": round(trainer.position.seconds / 60, 1),
                "texts": len(corpus.texts),
                "answer_tokens": corpus.num_answer_tokens,
            },
        }
        result.write_head(self._output, trainer.head, trainer.vocabulary, made)
        if draft.kind is not Kind.eagle:
            standalone.write(self._output / HUGGING_FACE, trainer.head, self._source)
        result.write_evaluation(self._output, found)
        result.plot(self._output / result.PLOT, trainer.history, found)
        answers_file.save(self._output / answers_file.FILE, self._corpus().texts, self._prompts)
        return found

    def _decoder(self, writing: Writing) -> Any:
        return load_target(
            self._target_dir,
            batch=writing.batch,
            max_tokens=writing.max_prompt_tokens + writing.max_new_tokens,
            threads=writing.threads,
        )

    def _append(self, texts: Iterable[Text], on_text: Callable[[Text], None]) -> None:
        writer = CorpusWriter(
            self._output / CORPUS,
            feature_layers=self._artifact.feature_layers,
            hidden_size=self._artifact.hidden_size,
        )
        with _interruptible():
            for shard in _shards(texts, on_text):
                writer.append(shard)

    def _corpus(self) -> Corpus:
        return Corpus.read(self._output / CORPUS)

    def _all_texts(self) -> Corpus:
        corpus = self._corpus()
        for directory in self._also:
            path = directory / CORPUS
            corpus = corpus.joined(Corpus.read(path), path)
        return corpus

    def _written(self) -> Iterable[Answer]:
        return self._corpus().texts if (self._output / CORPUS).is_dir() else ()


def name_of(target_dir: Path, prompts: Prompts, max_new_tokens: int) -> str:
    """A folder's name by what a target's greedy answers to these prompts depend on."""
    artifact = Artifact.read(target_dir)
    sources = [prompt.source for prompt in prompts.all]
    of = (artifact.weights_sha256, artifact.feature_layers, artifact.end_ids, max_new_tokens)
    return hashlib.sha256(repr((*of, prompts.sha256, sources)).encode()).hexdigest()[:16]


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM is Ctrl-C, which shells have turned off for what runs in the background."""
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _shards(texts: Iterable[Text], on_text: Callable[[Text], None]) -> Iterator[list[Text]]:
    """Lists of some texts each; after Ctrl-C the last, shorter one."""
    shard: list[Text] = []
    iterator = iter(texts)
    try:
        for text in iterator:
            shard.append(text)
            on_text(text)
            if len(shard) == _SHARD:
                yield shard
                shard = []
    except KeyboardInterrupt:
        if shard:
            yield shard
        raise
    if shard:
        yield shard


def sample(corpus: Corpus) -> torch.Tensor:
    """Features [N, layers * H] of some texts, spread over the corpus."""
    step = max(1, len(corpus.texts) // _SAMPLE)
    some = itertools.islice(corpus.texts, 0, None, step)
    return torch.from_numpy(np.concatenate([text.features for text in some]))
