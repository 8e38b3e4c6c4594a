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
from collections.abc import Iterator, Sequence
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


def passages(prompts: Path, tokenizer: Any) -> Iterator[Passage]:
    """In the order of the two answer files."""
    first = Prompts.read([prompts], tokenizer, max_tokens=256)
    second = Prompts.read([], tokenizer, max_tokens=384, starts=HERE.parent / "starts.jsonl")
    found = [
        *answers.load(HERE / "answers.npz", first),
        *answers.load(HERE / "answers-starts.npz", second),
    ]
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
        parts = choose.sample(pool, choose.randint(2, 5))
        text = "\n\n".join(part.text for part in parts)
        yield "summary", choose.choice(SUMMARY).format(text=text)
    for _ in range(COUNTS["context"]):
        parts = choose.sample(pool, choose.randint(2, 5))
        form, question = choose.choice(PASSAGE), choose.choice(parts).question
        listed = "\n\n".join(form.format(n=n, text=p.text) for n, p in enumerate(parts, start=1))
        yield "context", choose.choice(CONTEXT).format(passages=listed, question=question)
    for _ in range(COUNTS["rewrite"]):
        parts = choose.sample(pool, choose.randint(1, 3))
        text = "\n\n".join(part.text for part in parts)
        yield "rewrite", choose.choice(REWRITE).format(text=text)


def unanswered(prompts: Path, tokenizer: Any) -> Iterator[tuple[str, str]]:
    """Of the first set, gsm8k and MBPP aside."""
    read = Prompts.read([prompts], tokenizer, max_tokens=256)
    old = answers.load(HERE / "answers.npz", read)
    done = {tuple(a.token_ids[: a.num_prompt_tokens].tolist()) for a in old}
    for line in prompts.read_text().splitlines():
        found = json.loads(line)
        if found["source"] in {"arena", "si"}:
            ids = tokenizer.apply_chat_template(
                [{"role": "user", "content": found["prompt"]}], add_generation_prompt=True
            )
            ids = ids if isinstance(ids, list) else ids["input_ids"]
            if tuple(ids) not in done:
                yield found["source"], found["prompt"]


def main(prompts: str, output: str) -> None:
    with Progress(disable=True) as progress:
        source = resolve("smollm2", progress)
    source.prepare()
    pool = list(passages(Path(prompts), source.tokenizer))
    with Path(output).open("w") as file:
        for name, prompt in (
            *documents(pool, random.Random(0)),
            *unanswered(Path(prompts), source.tokenizer),
        ):
            file.write(json.dumps({"prompt": prompt, "source": name}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
