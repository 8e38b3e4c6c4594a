"""From prompts to a folder: stages resume, features are the target's, answers travel alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from specdec.client.cli import app
from specdec.errors import InvalidArtifact, InvalidRequest
from specdec.export.sources import HuggingFaceSource
from specdec.export.training import answers, result
from specdec.export.training.checkpoint import Checkpoint
from specdec.export.training.corpus import Corpus, CorpusWriter
from specdec.export.training.evaluation import evaluate
from specdec.export.training.options import Writing
from specdec.export.training.pipeline import CHECKPOINT, Pipeline
from specdec.export.training.prompts import Prompts
from specdec.export.training.schedule import Schedule
from specdec.export.training.target import Target
from specdec.export.training.vocabulary import DraftVocabulary
from support.heads import random_head
from support.tiny import write_tiny_llama

PROMPTS = ("the quick brown fox", "def add(a, b):", "talk about the weather", "the lazy dog and")
WRITING = Writing(rounds=2, temperature=1.0, max_new_tokens=12, batch=3, threads=1)


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"prompt": text, "source": text.split()[0]} for text in PROMPTS]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.fixture(scope="module")
def source(tiny: Path) -> HuggingFaceSource:
    return HuggingFaceSource(tiny / "model")


@pytest.fixture
def pipeline(tiny: Path, source: HuggingFaceSource, prompts_file: Path, tmp_path: Path) -> Pipeline:
    prompts = Prompts.read([prompts_file], source.tokenizer, max_tokens=64)
    return Pipeline(source, tiny / "artifact" / "1", prompts, tmp_path / "out")


def written(pipeline: Pipeline, tmp_path: Path) -> Corpus:
    pipeline.write(pipeline.jobs_left(WRITING), WRITING, lambda text: None)
    return Corpus.read(tmp_path / "out" / "corpus")


def test_texts_are_the_targets_own(
    pipeline: Pipeline, source: HuggingFaceSource, tmp_path: Path
) -> None:
    corpus = written(pipeline, tmp_path)
    assert len(corpus.texts) == 2 * len(PROMPTS)
    for text in corpus.texts:
        ids = torch.tensor(text.token_ids)[None]
        with torch.inference_mode():
            found = source.reference(ids, output_hidden_states=True)
        likeliest = found.logits[0, text.num_prompt_tokens - 1 : -1].argmax(-1)
        assert text.likeliest.tolist() == likeliest.tolist()
        if not text.temperature:
            assert np.array_equal(text.likeliest, text.token_ids[text.num_prompt_tokens :])
        of_layer_1 = text.features.reshape(len(text) - 1, len(corpus.feature_layers), -1)[:, 1]
        expected = found.hidden_states[1][0, :-1].numpy()
        assert np.allclose(of_layer_1, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_writing_goes_on_where_it_stopped(
    pipeline: Pipeline, tmp_path: Path, number: signal.Signals
) -> None:
    """In the background too: there shells turn Ctrl-C off."""
    whole = len(pipeline.jobs_left(WRITING))

    def stop(text: Any) -> None:
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            pipeline.write(pipeline.jobs_left(WRITING), WRITING, stop)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as it was
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(pipeline.jobs_left(WRITING)) == whole - 1  # what had ended is kept
    corpus = written(pipeline, tmp_path)
    assert sorted(text.number for text in corpus.texts) == list(range(whole))
    assert not pipeline.jobs_left(WRITING)


def test_answers_travel_without_prompts_and_features(
    pipeline: Pipeline, source: HuggingFaceSource, prompts_file: Path, tmp_path: Path
) -> None:
    corpus = written(pipeline, tmp_path)
    prompts = Prompts.read([prompts_file], source.tokenizer, max_tokens=64)
    path = tmp_path / answers.FILE
    answers.save(path, corpus.texts, prompts)
    again = answers.load(path, prompts)
    ordered = sorted(corpus.texts, key=lambda text: -text.number)
    for before, after in zip(ordered, again, strict=True):
        assert np.array_equal(before.token_ids, after.token_ids)
        assert np.array_equal(before.likeliest, after.likeliest)
        assert (before.source, before.temperature) == (after.source, after.temperature)
    elsewhere = Pipeline(source, pipeline._target_dir, prompts, tmp_path / "elsewhere")
    elsewhere.recall(path, WRITING, lambda text: None)
    recalled = Corpus.read(tmp_path / "elsewhere" / "corpus")
    for before, after in zip(ordered, recalled.texts, strict=True):
        assert np.allclose(before.features, after.features, rtol=2e-3, atol=2e-3)
    assert not elsewhere.jobs_left(WRITING)
    fewer = Prompts(prompts.all[1:])
    with pytest.raises(InvalidArtifact, match="answers other prompts"):
        answers.load(path, fewer)


def test_prompts_of_the_targets_own(
    pipeline: Pipeline, source: HuggingFaceSource, tmp_path: Path
) -> None:
    """Written behind the template's opening, then answered behind its closing, with no file."""
    prompts = Prompts.read([], source.tokenizer, max_tokens=64)
    writing = Writing(num_self_prompts=8, max_new_tokens=80, batch=4, threads=1)
    alone = Pipeline(source, pipeline._target_dir, prompts, tmp_path / "alone")
    openings = alone.jobs_left(writing)
    assert [job.number for job in openings[:3]] == [-1, -3, -5]
    alone.write(openings, writing, lambda text: None)
    answers_left = alone.jobs_left(writing)
    ended = {t.number for t in Corpus.read(tmp_path / "alone" / "corpus").texts if 2 in t.token_ids}
    assert ended
    assert {job.number for job in answers_left} == {number - 1 for number in ended}
    alone.write(answers_left, writing, lambda text: None)
    corpus = Corpus.read(tmp_path / "alone" / "corpus")
    by_number = {text.number: text for text in corpus.texts}
    for number in ended:
        asked = source.tokenizer.decode(by_number[number].token_ids)
        prompt = by_number[number - 1].token_ids[: by_number[number - 1].num_prompt_tokens]
        assert source.tokenizer.decode(prompt) == asked + "\n<|im_start|>assistant\n"
    answers.save(tmp_path / answers.FILE, corpus.texts, prompts)
    again = {a.number: a for a in answers.load(tmp_path / answers.FILE, prompts)}
    assert all(np.array_equal(again[n].token_ids, t.token_ids) for n, t in by_number.items())


def test_prompts_of_a_kind_begin_with_the_words_of_their_start(
    pipeline: Pipeline, source: HuggingFaceSource, tmp_path: Path
) -> None:
    """Starts are used in turn; an answers file fits only the starts it was made with."""
    starts = tmp_path / "starts.jsonl"
    words = {"code": "def", "words": "Who was"}
    lines = [json.dumps({"start": text, "source": name}) for name, text in words.items()]
    starts.write_text("\n".join(lines) + "\n")
    prompts = Prompts.read([], source.tokenizer, max_tokens=64, starts=starts)
    writing = Writing(num_self_prompts=3, max_new_tokens=8, batch=4, threads=1)
    mine = Pipeline(source, pipeline._target_dir, prompts, tmp_path / "begun")
    openings = mine.jobs_left(writing)
    assert [job.prompt.source for job in openings] == ["code", "words", "code"]
    mine.write(openings, writing, lambda text: None)
    texts = Corpus.read(tmp_path / "begun" / "corpus").texts
    for text in texts:
        begin = source.tokenizer.decode(text.token_ids[: text.num_prompt_tokens])
        assert begin.endswith(words[text.source]), begin
    answers.save(tmp_path / answers.FILE, texts, prompts)
    again = {a.number: a for a in answers.load(tmp_path / answers.FILE, prompts)}
    assert all(np.array_equal(again[t.number].token_ids, t.token_ids) for t in texts)
    with pytest.raises(InvalidArtifact, match="answers other prompts"):
        answers.load(tmp_path / answers.FILE, Prompts.read([], source.tokenizer, max_tokens=64))
    starts.write_text('{"prompt": "def"}')
    with pytest.raises(InvalidRequest, match=r'starts.jsonl:1: expected \{"start": text\}'):
        Prompts.read([], source.tokenizer, max_tokens=64, starts=starts)


def test_a_prompt_is_on_one_side_of_the_split(pipeline: Pipeline, tmp_path: Path) -> None:
    train, held = written(pipeline, tmp_path).split(0.5)
    assert len(train.texts) + len(held.texts) == 2 * len(PROMPTS)
    assert not {t.prompt_key for t in train.texts} & {t.prompt_key for t in held.texts}


def test_the_command_trains_and_goes_on(tiny: Path, prompts_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    options = ["train", "--model", str(tiny / "model"), "--target", str(tiny / "artifact" / "1")]
    options += ["--prompts", str(prompts_file), "--output", str(output), "--steps", "6"]
    options += ["--max-new-tokens", "12", "--vocabulary", "64", "--precision", "fp32"]
    first = CliRunner().invoke(app, options)
    assert first.exit_code == 0, first.output
    assert "overall" in first.output
    tensors = load_file(output / result.WEIGHTS)
    found = DraftVocabulary.of_maps(tensors["d2t"].numpy(), tensors["t2d"].numpy())
    assert len(found) == 64
    assert {0, 1, 2} <= set(found.ids.tolist())  # special tokens
    assert tensors["fc.weight"].dtype == torch.float16
    assert json.loads((output / result.EVALUATION).read_text())["static_vocabulary"]["overall"]
    before = (output / result.WEIGHTS).read_bytes()
    again = CliRunner().invoke(app, options)  # nothing is left to do
    assert again.exit_code == 0, again.output
    assert (output / result.WEIGHTS).read_bytes() == before
    other = CliRunner().invoke(app, [*options, "--learning-rate", "0.1"])
    assert other.exit_code == 2
    assert "another schedule" in other.output
    options[options.index(str(output))] = str(tmp_path / "on")
    options += ["--start-from", str(output), "--answers", str(output / answers.FILE)]
    options[options.index("64")] = "48"
    on = CliRunner().invoke(app, options)  # other folders: the answers are read, not written again
    assert on.exit_code == 0, on.output
    assert "write answers" not in on.output
    gone_on = load_file(tmp_path / "on" / result.WEIGHTS)
    assert len(gone_on["d2t"]) == 48, "no weight belongs to an id: they are chosen anew"
    schedules = [
        Checkpoint.read(tmp_path / n / CHECKPOINT).settings["schedule"] for n in ("out", "on")
    ]
    assert [Schedule(**s).steps_unrolled(0.0) for s in schedules] == [1, 3]
    options[options.index(str(tmp_path / "on"))] = str(tmp_path / "both")
    i = options.index("--steps")
    options[i : i + 2] = ["--minutes", "0"]
    both = CliRunner().invoke(app, [*options, "--also", str(tmp_path / "on")])
    assert both.exit_code == 0, both.output
    made = [
        json.loads((tmp_path / n / result.CONFIG).read_text())["training"] for n in ("on", "both")
    ]
    assert made[1]["steps"] == 0
    assert made[1]["texts"] == 2 * made[0]["texts"]
    assert made[1]["answer_tokens"] == 2 * made[0]["answer_tokens"]
    kept = [np.load(tmp_path / n / answers.FILE)["number"].size for n in ("on", "both")]
    assert kept[0] == kept[1], "the others' answers are in their own file"


def test_what_was_trained_is_evaluated_on_other_prompts(
    tiny: Path, prompts_file: Path, tmp_path: Path
) -> None:
    trained, output, target = tmp_path / "out", tmp_path / "evaluation", tiny / "artifact" / "1"
    of = ["--model", str(tiny / "model"), "--target", str(target)]
    options = ["--prompts", str(prompts_file), "--output", str(trained), "--steps", "2"]
    assert CliRunner().invoke(app, ["train", *of, *options]).exit_code == 0
    others = tmp_path / "others.jsonl"
    others.write_text('{"prompt": "assistant", "source": "chat"}\n{"prompt": "a time"}\n')
    command = ["evaluate", str(trained), *of, "--prompts", str(others), "--output", str(output)]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "chat" in shown.stdout
    again = CliRunner().invoke(app, [*command, "--json"])
    assert "write answers" in shown.stderr
    assert "write answers" not in again.stderr
    head, vocabulary = result.read_trained(trained)
    source = HuggingFaceSource(tiny / "model")
    target_ = Target.read(source.config, source.weights)
    (answered,) = output.glob("*/corpus")
    corpus = Corpus.read(answered)
    assert [t.temperature for t in corpus.texts] == [0.0, 0.0]
    expected = result.plain(evaluate(head, target_, vocabulary, corpus))
    assert (
        json.loads(again.stdout) == expected == json.loads((output / "evaluation.json").read_text())
    )
    assert expected["with_request_vocabulary"].keys() == {"overall", "chat", "others"}
    others.write_text('{"prompt": "quite another", "source": "new"}\n')
    changed = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(changed.stdout)["static_vocabulary"].keys() == {"overall", "new"}
    (trained / result.WEIGHTS).write_bytes(b"cut")
    cut = CliRunner().invoke(app, command)
    assert (cut.exit_code, cut.exception.__class__) == (2, SystemExit)
    nothing = CliRunner().invoke(app, [command[0], str(tmp_path), *command[2:]])
    assert nothing.exit_code == 2
    assert "holds nothing trained" in nothing.stderr


def test_a_target_of_another_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    """`--model` has a default; its tokenizer would give the target nonsense to answer."""
    other = HuggingFaceSource(write_tiny_llama(tmp_path / "other", num_layers=3))
    with pytest.raises(InvalidRequest, match=r"3 layers of 64 .* from .* \(2 layers of 64"):
        Pipeline(other, tiny / "artifact" / "1", Prompts([]), tmp_path / "out")


def test_what_reads_other_layers_is_not_evaluated(pipeline: Pipeline, tiny: Path) -> None:
    head, _ = random_head(tiny / "model", feature_layers=(3, 4))
    with pytest.raises(InvalidRequest, match=r"reads layers \[3, 4\], .* with --features 2,3,4"):
        pipeline.refuse_misfit(head, DraftVocabulary([3], vocab_size=320))
    with pytest.raises(InvalidRequest, match=r"a hidden size of 64 and 300 ids, .* has 64 and 320"):
        pipeline.refuse_misfit(head, DraftVocabulary([3], vocab_size=300))


def test_bad_prompts_name_their_line(tmp_path: Path, source: HuggingFaceSource) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "fine"}\n{"text": "not"}\n')
    with pytest.raises(InvalidRequest, match=r"bad\.jsonl:2"):
        Prompts.read([path], source.tokenizer, max_tokens=64)
    path.write_text('{"prompt": "fine"}\n')
    with pytest.raises(InvalidRequest, match="no prompt of at most 1"):
        Prompts.read([path], source.tokenizer, max_tokens=1)


def test_a_corpus_of_other_layers_is_refused(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, feature_layers=(1, 2), hidden_size=8)
    with pytest.raises(InvalidArtifact, match="another corpus"):
        CorpusWriter(tmp_path, feature_layers=(0, 2), hidden_size=8)
    mine, theirs = Corpus([], (1, 2), 8), Corpus([], (0, 2), 8)
    with pytest.raises(InvalidArtifact, match="there holds 8 numbers of layers 0,2: expected 8 of"):
        mine.joined(theirs, Path("there"))
