"""Prompts as the target reads them, and the answers it is to write to each.

They come from files, or from the target itself: behind the chat template's opening of a user's turn
an instruction-tuned model writes what a user would ask (Magpie, arXiv 2406.08464), and behind the
first words of a question it writes a question of that kind. Such a prompt is an answer like any
other, to the opening, and is trained on too.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec.errors import InvalidRequest
from specdec.export.training.corpus import Answer


class Prompt(NamedTuple):
    """One prompt behind the chat template."""

    token_ids: tuple[int, ...]
    source: str  # what its acceptance is reported under


SELF = "self"  # source of what the target asked itself
_OPENING_TEMPERATURE = 1.0
_MARK = "\u2603"  # stands for the user's words in a template


class Job(NamedTuple):
    """One answer to be written.

    Its number is the same in every run: round * prompts + index of the prompt; for the target's
    own prompt k, -2k - 1 for writing it and -2k - 2 for answering it.
    """

    number: int
    prompt: Prompt
    temperature: float
    seed: int

    @property
    def is_opening(self) -> bool:
        """Whether its answer is a prompt."""
        return self.number < 0 and self.number % 2 == 1


class Start(NamedTuple):
    """First words of prompts that the target goes on with."""

    token_ids: tuple[int, ...] = ()
    source: str = SELF


class Frame(NamedTuple):
    """What the chat template puts around a user's words."""

    opening: tuple[int, ...]
    closing: tuple[int, ...]  # up to where the answer begins
    starts: tuple[Start, ...] = (Start(),)  # used in turn

    @classmethod
    def of(cls, tokenizer: Any, starts: Sequence[Start] = ()) -> Frame | None:
        """None where there is no template."""
        if not getattr(tokenizer, "chat_template", None):
            return None
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARK}], add_generation_prompt=True, tokenize=False
        )
        parts = text.split(_MARK)
        opening, closing = (tokenizer(p, add_special_tokens=False)["input_ids"] for p in parts)
        return cls(tuple(opening), tuple(closing), tuple(starts) or (Start(),))

    def opening_prompt(self, number: int) -> Prompt:
        """What the target's own prompt of this number is an answer to; see `Job`."""
        start = self.starts[(-number - 1) // 2 % len(self.starts)]
        return Prompt((*self.opening, *start.token_ids), start.source)

    def openings(self, count: int, seed: int) -> list[Job]:
        """Jobs whose answers are prompts."""
        return [
            Job(
                -2 * k - 1,
                self.opening_prompt(-2 * k - 1),
                _OPENING_TEMPERATURE,
                zlib.crc32(b"opening %d" % k, seed),
            )
            for k in range(count)
        ]

    def answer_to(self, text: Answer, *, temperature: float, seed: int) -> Job | None:
        """The job that answers a prompt of the target's own: every other one greedily.

        None where it was cut off before its end.
        """
        words = text.token_ids[len(self.opening) :].tolist()
        if words[-1] != self.closing[0]:
            return None
        prompt = Prompt((*self.opening, *words[:-1], *self.closing), text.source)
        number = text.number - 1
        is_greedy = number % 4 == 0
        seed = zlib.crc32(b"answer %d" % -number, seed)
        return Job(number, prompt, 0.0 if is_greedy else temperature, seed)


class Prompts:
    """Every prompt of some files, in order, and what frames those the target writes itself."""

    def __init__(self, prompts: Sequence[Prompt], frame: Frame | None = None) -> None:
        self.all, self.frame = list(prompts), frame

    @classmethod
    def read(
        cls,
        paths: Sequence[Path],
        tokenizer: Any,
        *,
        max_tokens: int,
        starts: Path | None = None,
    ) -> Prompts:
        """Read JSON lines: {"prompt": text} or {"messages": [...]}, and perhaps a "source".

        Args:
            tokenizer: transformers'; its chat template is used where it has one.
            max_tokens: longer prompts are left out.
            starts: JSON lines {"start": text} of prompts that the target goes on with.

        Raises `InvalidRequest` naming file and line.
        """
        prompts = [
            _prompt(line, tokenizer, where=where)
            for path in paths
            for where, line in _lines("--prompts", path)
        ]
        begun = [
            _start(line, tokenizer, where=where)
            for where, line in (_lines("--starts", starts) if starts else ())
        ]
        kept = [p for p in prompts if len(p.token_ids) <= max_tokens]
        if paths and not kept:
            raise InvalidRequest(
                f"no prompt of at most {max_tokens} tokens among the {len(prompts)} read"
            )
        return cls(kept, Frame.of(tokenizer, begun))

    @property
    def sha256(self) -> str:
        """Of every prompt's tokens: answers without prompts fit only these."""
        digest = hashlib.sha256()
        frame = (self.frame.opening, self.frame.closing) if self.frame else ()
        starts = [start.token_ids for start in self.frame.starts] if self.frame else []
        every = (*(prompt.token_ids for prompt in self.all), *frame, *filter(None, starts))
        for token_ids in every:
            digest.update(np.array([len(token_ids), *token_ids], "<i8").tobytes())
        return digest.hexdigest()

    def openings(self, count: int, *, seed: int) -> list[Job]:
        """Jobs whose answers are prompts. Raises `InvalidRequest`: there is no chat template."""
        if count and self.frame is None:
            raise InvalidRequest("--self-prompts needs a target with a chat template")
        return self.frame.openings(count, seed) if self.frame else []

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


def _lines(option: str, path: Path) -> list[tuple[str, str]]:
    """(file and number, line) of each line that is not empty."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InvalidRequest(f"{option} {path}: {error.strerror}") from None
    return [(f"{path}:{n}", line) for n, line in enumerate(lines, start=1) if line.strip()]


def _start(line: str, tokenizer: Any, *, where: str) -> Start:
    try:
        found = json.loads(line)
        text, source = str(found["start"]), str(found.get("source", SELF))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidRequest(f'{where}: expected {{"start": text}}, found {line[:80]!r}') from None
    return Start(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]), source)


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
