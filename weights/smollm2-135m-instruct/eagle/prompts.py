"""Writes the prompts that this head's answers were made for, from the data sets' own files.

    python prompts.py DATA prompts.jsonl

DATA holds mbpp/mbpp.jsonl, selfinstruct/{seed_tasks,user_oriented_instructions}.jsonl,
arena_hard/question.jsonl and gsm8k/train.jsonl. Training goes on from `answers.npz` only with
exactly this file: answers are stored by the prompt's number.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TRAINING_IDS = (*range(1, 11), *range(511, 975))  # of MBPP: the rest is for evaluation


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def prompts(data: Path) -> Iterator[tuple[str, str]]:
    """(source, prompt) in order."""
    for task in read(data / "mbpp/mbpp.jsonl"):
        if task["task_id"] in TRAINING_IDS:
            yield "mbpp", task["text"]
            head = re.search(r"^def .*?:\s*$", task["code"].replace("\r", ""), re.MULTILINE)
            if head:
                yield "mbppdef", f'{head[0].strip()}\n    """{task["text"]}\n    """\n'
    for name in ("seed_tasks", "user_oriented_instructions"):
        for task in read(data / f"selfinstruct/{name}.jsonl"):
            given = task["instances"][0]["input"]
            yield "si", task["instruction"] + (f"\n\n{given}" if given else "")
    for question in read(data / "arena_hard/question.jsonl"):
        yield "arena", question["prompt"]
    for question in read(data / "gsm8k/train.jsonl"):
        yield "gsm8k", question["question"]


def main(data: str, output: str) -> None:
    with Path(output).open("w") as file:
        for source, prompt in prompts(Path(data)):
            file.write(json.dumps({"prompt": prompt, "source": source}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
