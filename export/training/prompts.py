"""Prompts from files, as the target reads them, and the answers it is to write to each."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec.errors import InvalidRequest


class Prompt(NamedTuple):
    """One prompt behind the chat template."""

    token_ids: tuple[int, ...]
    source: str  # what its acceptance is reported under


class Job(NamedTuple):
    """One answer to be written."""

    number: int  # round * prompts + index of the prompt: the same in every run
    prompt: Prompt
    temperature: float
    seed: int


class Prompts:
    """Every prompt of some files, in order."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.all = list(prompts)

    @classmethod
    def read(cls, paths: Sequence[Path], tokenizer: Any, *, max_tokens: int) -> Prompts:
        """Read JSON lines: {"prompt": text} or {"messages": [...]}, and perhaps a "source".

        Args:
            tokenizer: transformers'; its chat template is used where it has one.
            max_tokens: longer prompts are left out.

        Raises `InvalidRequest` naming file and line.
        """
        prompts = []
        for path in paths:
            try:
                lines = path.read_text().splitlines()
            except OSError as error:
                raise InvalidRequest(f"--prompts {path}: {error.strerror}") from None
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    prompts.append(_prompt(line, tokenizer, where=f"{path}:{number}"))
        kept = [p for p in prompts if len(p.token_ids) <= max_tokens]
        if not kept:
            raise InvalidRequest(
                f"no prompt of at most {max_tokens} tokens among the {len(prompts)} read"
            )
        return cls(kept)

    @property
    def sha256(self) -> str:
        """Of every prompt's tokens: answers without prompts fit only these."""
        digest = hashlib.sha256()
        for prompt in self.all:
            digest.update(np.array([len(prompt.token_ids), *prompt.token_ids], "<i8").tobytes())
        return digest.hexdigest()

    def jobs(self, *, rounds: int, temperature: float, seed: int) -> list[Job]:
        """Round 0 is greedy, later ones are sampled; each is shuffled in its own way."""
        jobs: list[Job] = []
        for number in range(rounds):
            order = np.random.default_rng((seed, number)).permutation(len(self.all))
            for index in order.tolist():
                prompt = self.all[index]
                ids = np.array([number, *prompt.token_ids], "<i8")
                jobs.append(
                    Job(
                        number=number * len(self.all) + index,
                        prompt=prompt,
                        temperature=temperature if number else 0.0,
                        seed=zlib.crc32(ids.tobytes(), seed),
                    )
                )
        return jobs


def _prompt(line: str, tokenizer: Any, *, where: str) -> Prompt:
    try:
        found = json.loads(line)
        messages = found.get("messages") or [{"role": "user", "content": found["prompt"]}]
        source = str(found.get("source", Path(where.rsplit(":", 1)[0]).stem))
    except (ValueError, KeyError, AttributeError):
        raise InvalidRequest(
            f'{where}: expected {{"prompt": text}} or {{"messages": [...]}}, found {line[:80]!r}'
        ) from None
    if getattr(tokenizer, "chat_template", None):
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
        ids = ids if isinstance(ids, list) else ids["input_ids"]
    else:
        ids = tokenizer("\n".join(m["content"] for m in messages))["input_ids"]
    return Prompt(tuple(ids), source)
