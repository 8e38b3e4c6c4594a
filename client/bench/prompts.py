"""Prompt files in the formats of well-known evaluation sets, and an even pick from them.

format           fields of a line                           category
our own          prompt, category                           as written
Spec-Bench       turns (the first is used), category        as written; MT-bench's eight: mt_bench
HumanEval        prompt, task_id                            humaneval
GSM8K            question                                   gsm8k

A file may be compressed (.gz).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from specdec.client.bench.records import Prompt
from specdec.client.errors import RequestRejected

_MT_BENCH = {
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
}
_MT_BENCH_IDS = range(81, 161)  # other sets use the same names for categories of their own
_CODE = "Complete this Python function.\n\n```python\n{}\n```"
_FORMATS = "prompt, turns or question"


def read_prompts(paths: Sequence[Path]) -> list[Prompt]:
    """All prompts of the files, in their order.

    Raises:
        RequestRejected: a file is missing, empty, or has a line in none of the known formats.
    """
    counts: dict[str, int] = {}
    prompts: list[Prompt] = []
    for path in paths:
        before = len(prompts)
        for where, line in _lines(path):
            category, text = _parse(line, where)
            counts[category] = counts.get(category, 0) + 1
            prompts.append(Prompt(f"{category}/{counts[category]}", category, text))
        if len(prompts) == before:
            raise RequestRejected(f"{path} holds no prompts")
    return prompts


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}, line {number}", _json(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RequestRejected(f"{path} cannot be read: {reason}") from None


def _json(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise RequestRejected(f"{where} is not JSON: {error}") from None


def _parse(line: Any, where: str) -> tuple[str, str]:
    """(category, text) of one line."""
    if not isinstance(line, dict):
        raise RequestRejected(f"{where} is {type(line).__name__}: expected an object")
    if "turns" in line:
        turns = line["turns"]
        text = turns[0] if isinstance(turns, list) and turns else None
        category = line.get("category", "prompts")
        if category in _MT_BENCH and line.get("question_id") in _MT_BENCH_IDS:
            category = "mt_bench"
    elif "prompt" in line and "category" not in line and "task_id" in line:
        category, text = "humaneval", line["prompt"]
        text = _CODE.format(text.strip()) if isinstance(text, str) else text
    elif "prompt" in line:
        category, text = line.get("category", "prompts"), line["prompt"]
    elif "question" in line:
        category, text = line.get("category", "gsm8k"), line["question"]
    else:
        found = ", ".join(map(str, line)) or "nothing"
        raise RequestRejected(f"{where} has {found[:80]}: expected one of {_FORMATS}")
    if not isinstance(text, str) or not text.strip() or not isinstance(category, str):
        raise RequestRejected(f"{where}: prompt and category must be non-empty text")
    return category, text


def pick(prompts: Sequence[Prompt], per_category: int | None) -> list[Prompt]:
    """At most that many of every category, evenly spaced over it; all if None.

    The result goes round the categories, so that a run that is cut short has seen them all.
    """
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    chosen = [spread(group, per_category) for group in groups.values()]
    return [p for p in chain.from_iterable(zip_longest(*chosen)) if p is not None]


def spread(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """`count` of them, evenly spaced: the middle ones of `count` equal parts."""
    if count is None or count >= len(prompts):
        return list(prompts)
    return [prompts[(2 * i + 1) * len(prompts) // (2 * count)] for i in range(count)]
