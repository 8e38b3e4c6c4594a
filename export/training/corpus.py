"""Sequences the target wrote and its residual streams beside them, in shards on disk.

    DIR/corpus.json           {"feature_layers": [2, 15, 27, 30], "hidden_size": 576}
    DIR/answers-00000.npz     token_ids [sum of lengths], likeliest [answer tokens]; and by text
                              numbers, lengths, prompt_lengths, temperatures, sources
    DIR/features-00000.npy    float16 [fed tokens, layers * hidden]: the residual stream that
                              enters each layer; of every token but the last of each sequence

Layer number L, for a model of L layers, is what enters the final norm. Features are mapped, not
read: only the rows of a batch are ever in memory.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdec.errors import InvalidArtifact

Array = np.ndarray[Any, Any]

FILE = "corpus.json"
_HELD_OUT_OF = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One prompt and the target's answer to it; n tokens."""

    number: int  # which answer to which prompt, see `Job`
    token_ids: Array  # int64 [n]
    num_prompt_tokens: int
    likeliest: Array  # int64 [n - num_prompt_tokens] the target's argmax for each answer token
    temperature: float  # 0: the answer is the target's greedy one
    source: str  # what its acceptance is reported under

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_key(self) -> int:
        """The same for every answer to one prompt, here and anywhere."""
        return zlib.crc32(self.token_ids[: self.num_prompt_tokens].astype("<i8").tobytes())

    def with_features(self, features: Array) -> Text:
        """`features`: float16 [n - 1, layers * hidden]."""
        fields = {name: getattr(self, name) for name in Answer.__dataclass_fields__}
        return Text(**fields, features=features)


@dataclass(frozen=True, slots=True, eq=False)
class Text(Answer):
    """An answer and the residual streams it was written with."""

    features: Array  # float16 [n - 1, layers * hidden], mapped


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Every text of a directory, in the order in which they were written."""

    texts: Sequence[Text]
    feature_layers: tuple[int, ...]
    hidden_size: int

    @classmethod
    def read(cls, directory: Path) -> Corpus:
        """Map a corpus. Raises `InvalidArtifact` naming the file that is missing or wrong."""
        layers, hidden_size = _read_description(directory)
        texts: list[Text] = []
        for path in sorted(directory.glob("answers-*.npz")):
            texts += _read_shard(path, width=len(layers) * hidden_size)
        if not texts:
            raise InvalidArtifact(f"{directory} holds no answers: generate some first")
        return cls(texts, layers, hidden_size)

    def joined(self, other: Corpus, path: Path) -> Corpus:
        """The texts of both. Raises `InvalidArtifact`: `other`, which `path` names, has features of
        other layers."""
        mine, theirs = ((c.feature_layers, c.hidden_size) for c in (self, other))
        if mine != theirs:
            raise InvalidArtifact(
                f"{path} holds {theirs[1]} numbers of layers {','.join(map(str, theirs[0]))}: "
                f"expected {mine[1]} of {','.join(map(str, mine[0]))}"
            )
        return Corpus([*self.texts, *other.texts], self.feature_layers, self.hidden_size)

    def select(self, wanted: Callable[[Text], bool]) -> Corpus:
        """The texts that `wanted` says yes to."""
        return Corpus([t for t in self.texts if wanted(t)], self.feature_layers, self.hidden_size)

    def split(self, held_out: float) -> tuple[Corpus, Corpus]:
        """Training and held-out texts; all answers to one prompt are on one side.

        Args:
            held_out: share of prompts to hold out. Decided by the prompt alone, so a growing
                corpus never moves a text from one side to the other.
        """
        limit = held_out * _HELD_OUT_OF
        kept = self.select(lambda text: text.prompt_key % _HELD_OUT_OF >= limit)
        return kept, self.select(lambda text: text.prompt_key % _HELD_OUT_OF < limit)

    def counts(self, vocab_size: int) -> Array:
        """int64 [vocab_size] how often each id stands in an answer."""
        answers = [text.token_ids[text.num_prompt_tokens :] for text in self.texts]
        return np.bincount(np.concatenate(answers), minlength=vocab_size)

    @property
    def num_answer_tokens(self) -> int:
        return sum(len(text.likeliest) for text in self.texts)


class CorpusWriter:
    """Appends shards; a shard appears when it is whole, so that a reader never sees half of one."""

    def __init__(self, directory: Path, *, feature_layers: Sequence[int], hidden_size: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        description = {"feature_layers": list(feature_layers), "hidden_size": hidden_size}
        path = directory / FILE
        if path.is_file() and json.loads(path.read_text()) != description:
            raise InvalidArtifact(f"{path} describes another corpus: found {path.read_text()}")
        path.write_text(json.dumps(description) + "\n")

    @property
    def num_shards(self) -> int:
        """Of whole ones: where an interrupted generation goes on."""
        return len(list(self._directory.glob("answers-*.npz")))

    def append(self, texts: Sequence[Text]) -> None:
        """Write one shard."""
        number = self.num_shards
        partial = self._directory / f".partial-{os.getpid()}"
        with partial.open("wb") as file:
            np.save(file, np.concatenate([text.features for text in texts]))
        os.replace(partial, self._directory / f"features-{number:05d}.npy")
        with partial.open("wb") as file:
            np.savez(
                file,
                token_ids=np.concatenate([t.token_ids for t in texts]).astype(np.int32),
                likeliest=np.concatenate([t.likeliest for t in texts]).astype(np.int32),
                numbers=np.array([t.number for t in texts]),
                lengths=np.array([len(t) for t in texts]),
                prompt_lengths=np.array([t.num_prompt_tokens for t in texts]),
                temperatures=np.array([t.temperature for t in texts], np.float32),
                sources=np.array([t.source for t in texts]),
            )
        os.replace(partial, self._directory / f"answers-{number:05d}.npz")


def _read_description(directory: Path) -> tuple[tuple[int, ...], int]:
    path = directory / FILE
    try:
        found = json.loads(path.read_text())
        return tuple(found["feature_layers"]), int(found["hidden_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArtifact(f"{path} is no description of a corpus: {error!r}") from None


def _read_shard(path: Path, *, width: int) -> Iterator[Text]:
    features_path = path.with_name(path.name.replace("answers", "features")).with_suffix(".npy")
    try:
        with np.load(path) as shard:
            part = {name: shard[name] for name in shard.files}
        features = np.load(features_path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise InvalidArtifact(f"{path} or {features_path.name} cannot be read: {error}") from None
    lengths, prompts = part["lengths"], part["prompt_lengths"]
    if features.shape != (int((lengths - 1).sum()), width):
        raise InvalidArtifact(
            f"{features_path} has shape {features.shape}: expected "
            f"{(int((lengths - 1).sum()), width)}"
        )
    token_ids = np.split(part["token_ids"].astype(np.int64), np.cumsum(lengths)[:-1])
    likeliest = np.split(part["likeliest"].astype(np.int64), np.cumsum(lengths - prompts)[:-1])
    ends = np.cumsum(lengths - 1)
    for i, end in enumerate(ends):
        yield Text(
            number=int(part["numbers"][i]),
            token_ids=token_ids[i],
            num_prompt_tokens=int(prompts[i]),
            likeliest=likeliest[i],
            temperature=float(part["temperatures"][i]),
            source=str(part["sources"][i]),
            features=features[end - lengths[i] + 1 : end],
        )
