"""Writes the long prompts of this head's third set: texts that its target wrote before, to work on.

    python documents.py prompts.jsonl documents.jsonl

`prompts.jsonl` is what `prompts.py` wrote. Old answers stand for passages and articles: some to be
summarised, some beside others to answer from, where one of them answers the question that it once
was the answer to. A head that has read no long input never learns to copy from one. What is left
unanswered of Arena-Hard and Self-Instruct follows. The same files give the same prompts.
"""

import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from specdec.export.sources import resolve
from specdec.export.training import answers
from specdec.export.training.corpus import Answer
from specdec.export.training.prompts import Prompts

HERE = Path(__file__).parent
COUNTS = {"summary": 200, "context": 220, "rewrite": 80}
PROSE = ("arena", "si", "self", "chat", "qa", "context", "summary")
MIN_TOKENS = 70  # of an answer that can stand for a passage
MIN_DISTINCT = 0.85  # share of its threes of tokens that are said once
SUMMARY = (
    "Summarize: {text}",
    "Summarize the following article:\n\n{text}",
    "{text}\n\nGive a summary of the text above.",
    "Write a short summary of this text.\n\n{text}",
    "{text}\n\nTL;DR",
    "What are the main points of this article?\n\n{text}",
    "Read the news story and sum it up in two or three sentences.\n\nStory: {text}\n\nSummary:",
)
CONTEXT = (
    "Answer the question with the help of these passages.\n\n{passages}\n\nQuestion: {question}",
    "{passages}\n\nUsing the documents above, answer: {question}",
    "Context:\n{passages}\n\nQuestion: {question}\nAnswer:",
    "Here is what a search has found:\n\n{passages}\n\nFrom this, {question}",
    "Question: {question}\n\n{passages}\n\nAnswer the question from the text.",
)
REWRITE = (
    "Rewrite this text for a ten-year-old.\n\n{text}",
    "Correct the mistakes in the text below.\n\n{text}",
    "List the facts that this text states.\n\n{text}",
    "Ask three questions that the text answers, and answer them.\n\n{text}",
    "What is this text about, and who would read it?\n\n{text}",
)
PASSAGE = ("Passage {n}: {text}", "[{n}] {text}", "Document {n}\n{text}", "{text}")


class Passage:
    """An old answer as plain text, and what had been asked."""

    def __init__(self, answer: Answer, tokenizer: Any) -> None:
        words = answer.token_ids.tolist()
        prompt, text = words[: answer.num_prompt_tokens], words[answer.num_prompt_tokens :]
        self.text = tokenizer.decode(text, skip_special_tokens=True).strip()
        user = tokenizer.decode(prompt).rsplit("<|im_start|>user\n", 1)[-1]
        self.question = user.split("<|im_end|>")[0].strip()


def passages(found: Iterable[Answer], tokenizer: Any) -> Iterator[Passage]:
    """Of old answers, prompts that the target wrote itself left out."""
    for answer in found:
        is_prompt = answer.number < 0 and answer.number % 2
        if not is_prompt and answer.source in PROSE and is_prose(answer):
            yield Passage(answer, tokenizer)


def is_prose(answer: Answer) -> bool:
    """Long enough, and no loop: a small target often ends in one."""
    words = answer.token_ids[answer.num_prompt_tokens :].tolist()
    threes = list(zip(words, words[1:], words[2:], strict=False))
    return len(words) >= MIN_TOKENS and len(set(threes)) >= MIN_DISTINCT * len(threes)


def documents(pool: Sequence[Passage], choose: random.Random) -> Iterator[tuple[str, str]]:
    """(source, prompt) of every kind in turn."""
    for _ in range(COUNTS["summary"]):
        text = joined(choose.sample(pool, choose.randint(2, 5)))
        yield "summary", choose.choice(SUMMARY).format(text=text)
    for _ in range(COUNTS["context"]):
        parts = choose.sample(pool, choose.randint(2, 5))
        form, question = choose.choice(PASSAGE), choose.choice(parts).question
        yield (
            "context",
            choose.choice(CONTEXT).format(passages=joined(parts, form), question=question),
        )
    for _ in range(COUNTS["rewrite"]):
        text = joined(choose.sample(pool, choose.randint(1, 3)))
        yield "rewrite", choose.choice(REWRITE).format(text=text)


def joined(parts: Sequence[Passage], form: str = "{text}") -> str:
    return "\n\n".join(form.format(n=n, text=part.text) for n, part in enumerate(parts, start=1))


def unanswered(prompts: Path, tokenizer: Any, found: Iterable[Answer]) -> Iterator[tuple[str, str]]:
    """Of the first set, gsm8k and MBPP aside."""
    done = {tuple(a.token_ids[: a.num_prompt_tokens].tolist()) for a in found}
    lines = [json.loads(line) for line in prompts.read_text().splitlines()]
    read = Prompts.read([prompts], tokenizer, max_tokens=sys.maxsize)
    for line, prompt in zip(lines, read.all, strict=True):
        if prompt.source in {"arena", "si"} and prompt.token_ids not in done:
            yield prompt.source, line["prompt"]


def main(prompts: Path, output: Path) -> None:
    with Progress(disable=True) as progress:
        source = resolve("smollm2", progress)
    source.prepare()
    tokenizer, starts = source.tokenizer, HERE.parent / "starts.jsonl"
    first = answers.load(HERE / "answers.npz", Prompts.read([prompts], tokenizer, max_tokens=256))
    second = answers.load(
        HERE / "answers-starts.npz", Prompts.read([], tokenizer, max_tokens=384, starts=starts)
    )
    pool = list(passages([*first, *second], tokenizer))
    written = [*documents(pool, random.Random(0)), *unanswered(prompts, tokenizer, first)]
    lines = (json.dumps({"prompt": prompt, "source": name}) for name, prompt in written)
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
