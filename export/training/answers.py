"""Answers alone in one small file: what a later training needs to go on from.

number         int32    which prompt and round, see `Job`
length         int16    tokens of the answer
temperature    float16
token_ids      the answers' tokens, one answer after another, as small as the vocabulary allows
surprise       1 + the target's likeliest token where another was sampled, else 0
prompts        SHA-256 of the prompts, which are in their own files and not here
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from specdec.errors import InvalidArtifact
from specdec.export.training.corpus import Answer
from specdec.export.training.prompts import Prompt, Prompts

FILE = "answers.npz"


def save(path: Path, answers: Sequence[Answer], prompts: Prompts) -> None:
    """Write all of them, compressed; an older file is replaced in one move."""
    answers = sorted(answers, key=lambda a: a.number, reverse=True)  # prompts before answers
    written = [a.token_ids[a.num_prompt_tokens :] for a in answers]
    token_ids = np.concatenate(written)
    likeliest = np.concatenate([a.likeliest for a in answers])
    small = np.uint16 if max(token_ids.max(), likeliest.max()) < 65535 else np.uint32
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            number=np.array([a.number for a in answers], np.int32),
            length=np.array([len(tokens) for tokens in written], np.int16),
            temperature=np.array([a.temperature for a in answers], np.float16),
            token_ids=token_ids.astype(small),
            surprise=np.where(likeliest == token_ids, 0, likeliest + 1).astype(small),
            prompts=np.array(prompts.sha256),
        )
    os.replace(partial, path)


def load(path: Path, prompts: Prompts) -> list[Answer]:
    """Answers with their prompts in front.

    Raises `InvalidArtifact`: it cannot be read, or it answers other prompts.
    """
    try:
        with np.load(path) as file:
            part = {name: file[name] for name in file.files}
        of = str(part["prompts"])
        ends = np.cumsum(part["length"].astype(np.int64))
        token_ids = np.split(part["token_ids"].astype(np.int64), ends[:-1])
        surprise = np.split(part["surprise"].astype(np.int64), ends[:-1])
        rows = zip(part["number"].tolist(), part["temperature"].tolist(), strict=True)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidArtifact(f"{path} holds no answers: {error!r}") from None
    if of != prompts.sha256:
        raise InvalidArtifact(f"{path} answers other prompts: pass the files it was made from")
    answers: dict[int, Answer] = {}
    for i, (number, temperature) in enumerate(rows):
        prompt = _prompt(number, prompts, answers)
        answers[number] = Answer(
            number=number,
            token_ids=np.concatenate([np.array(prompt.token_ids, np.int64), token_ids[i]]),
            num_prompt_tokens=len(prompt.token_ids),
            likeliest=np.where(surprise[i] == 0, token_ids[i], surprise[i] - 1),
            temperature=temperature,
            source=prompt.source,
        )
    return list(answers.values())


def _prompt(number: int, prompts: Prompts, before: Mapping[int, Answer]) -> Prompt:
    """What an answer is to; see `Job` for its number."""
    if number >= 0:
        return prompts.all[number % len(prompts.all)]
    assert prompts.frame is not None
    if number % 2:
        return prompts.frame.opening_prompt(number)
    job = prompts.frame.answer_to(before[number + 1], temperature=0.0, seed=0)
    assert job is not None
    return job.prompt
