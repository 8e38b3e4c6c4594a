import gzip
import json
from collections import Counter

import pytest

from specdec.client.bench.builtin import BUILTIN
from specdec.client.bench.prompts import pick, read_prompts, spread
from specdec.client.bench.records import Prompt
from specdec.client.errors import RequestRejected


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_reads_every_format_in_the_order_of_the_files(tmp_path):
    own = write(tmp_path / "own.jsonl", {"category": "chat", "prompt": "Hello"}, {"prompt": "Hi"})
    spec = write(
        tmp_path / "spec.jsonl",
        {"question_id": 241, "category": "rag", "turns": ["Who?", "And why?"]},
    )
    grade = write(tmp_path / "grade.jsonl", {"question": "1 + 1?", "answer": "2"})
    human = tmp_path / "human.jsonl.gz"
    with gzip.open(human, "wt") as file:
        file.write(json.dumps({"task_id": "HumanEval/0", "prompt": "def f():\n"}) + "\n")
    found = read_prompts([own, spec, grade, human])
    assert [(p.name, p.text) for p in found[:4]] == [
        ("chat/1", "Hello"),
        ("prompts/1", "Hi"),
        ("rag/1", "Who?"),
        ("gsm8k/1", "1 + 1?"),
    ]
    assert found[4].category == "humaneval"
    assert "```python\ndef f():\n```" in found[4].text


def test_names_stay_unique_over_files(tmp_path):
    first = write(tmp_path / "a.jsonl", {"category": "chat", "prompt": "Hello"})
    second = write(tmp_path / "b.jsonl", {"category": "chat", "prompt": "Hi"})
    assert [p.name for p in read_prompts([first, second])] == ["chat/1", "chat/2"]


def test_groups_mt_bench_but_not_other_sets_with_the_same_names(tmp_path):
    path = write(
        tmp_path / "q.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["a"]},
        {"question_id": 160, "category": "humanities", "turns": ["b"]},
        {"question_id": 71, "category": "writing", "turns": ["c"]},
        {"question_id": 161, "category": "translation", "turns": ["d"]},
    )
    assert [p.category for p in read_prompts([path])] == [
        "mt_bench",
        "mt_bench",
        "writing",
        "translation",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is list: expected an object"),
        ('{"text": "a"}', "line 2 has text: expected one of prompt, turns or question"),
        ("{}", "line 2 has nothing"),
        ('{"prompt": " "}', "line 2: prompt and category must be non-empty text"),
        ('{"prompt": "a", "category": 3}', "line 2: prompt and category"),
        ('{"turns": []}', "line 2: prompt and category"),
        ('{"task_id": 3, "prompt": 4}', "line 2: prompt and category"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "q.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(RequestRejected, match=message):
        read_prompts([path])


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(RequestRejected, match=r"none\.jsonl cannot be read: No such file"):
        read_prompts([tmp_path / "none.jsonl"])
    (tmp_path / "bad.gz").write_bytes(b"not compressed")
    with pytest.raises(RequestRejected, match=r"bad\.gz cannot be read"):
        read_prompts([tmp_path / "bad.gz"])
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(RequestRejected, match="holds no prompts"):
        read_prompts([tmp_path / "empty.jsonl"])
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(RequestRejected, match=r"latin\.jsonl cannot be read"):
        read_prompts([tmp_path / "latin.jsonl"])


def test_spread_takes_the_middles_of_equal_parts():
    prompts = [Prompt(str(i), "c", "t") for i in range(10)]
    assert [p.name for p in spread(prompts, 2)] == ["2", "7"]
    assert [p.name for p in spread(prompts, 1)] == ["5"]
    assert spread(prompts, 10) == spread(prompts, 99) == spread(prompts, None) == prompts


def test_pick_goes_round_the_categories():
    prompts = [Prompt(f"{c}{i}", c, "t") for c in "ab" for i in range(4)]
    prompts.append(Prompt("c0", "c", "t"))
    assert [p.name for p in pick(prompts, 2)] == ["a1", "b1", "c0", "a3", "b3"]
    assert Counter(p.category for p in pick(prompts, None)) == {"a": 4, "b": 4, "c": 1}


def test_the_builtin_prompts_are_distinct_and_cover_what_drafters_differ_in():
    assert len({p.name for p in BUILTIN}) == len({p.text for p in BUILTIN}) == len(BUILTIN) == 12
    assert {p.category for p in BUILTIN} == {"chat", "code", "summarise", "rag", "creative"}
    # Answers over a given text must have that text in front of them.
    assert all(len(p.text) > 500 for p in BUILTIN if p.category in ("summarise", "rag"))
