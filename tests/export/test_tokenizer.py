"""The written files serve without transformers, and every end id is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.progress import Progress

from specdec.artifact import Artifact, vocabulary_hash
from specdec.errors import UnsupportedModel
from specdec.export.exporter import export
from specdec.export.quantize import Precision
from specdec.export.sources import HuggingFaceSource
from support.tiny import export_tiny, write_tiny_llama

TEXTS = ("plain words", "two  spaces\n\ttabs", "naïve 東京 🙂", "<|im_start|>user\nhi<|im_end|>")
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def rewrite(path: Path, **fields: object) -> None:
    found = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**found, **fields}))


def end_ids(model: Path, output: Path, progress: Progress) -> tuple[int, ...]:
    source = HuggingFaceSource(model)
    made = export(source, output, precision=Precision.fp32, progress=progress)
    return made.artifact.end_ids


def test_ids_and_chat_text_equal_transformers(tiny: Path) -> None:
    from jinja2 import Environment
    from tokenizers import Tokenizer

    artifact = tiny / "artifact/1"
    theirs = HuggingFaceSource(tiny / "model").tokenizer
    ours = Tokenizer.from_file(str(artifact / "tokenizer.json"))
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text
    special = json.loads((artifact / "tokenizer_config.json").read_text())
    assert (special["bos_token"], special["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    template = Environment().from_string((artifact / "chat_template.jinja").read_text())
    text = template.render(messages=MESSAGES, add_generation_prompt=True, **special)
    assert text == theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)


def test_vocabulary_hash_is_over_the_tokens_in_id_order(tiny: Path) -> None:
    vocabulary = json.loads((tiny / "model/tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    described = Artifact.read(tiny / "artifact/1")
    assert described.vocabulary_sha256 == vocabulary_hash(tokens)
    tokens[7], tokens[8] = tokens[8], tokens[7]
    assert described.vocabulary_sha256 != vocabulary_hash(tokens)


def test_padding_and_truncation_are_switched_off(tmp_path: Path, progress: Progress) -> None:
    from tokenizers import Tokenizer

    model = write_tiny_llama(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4, pad_id=0, pad_token="<|endoftext|>")
    tokenizer.save(str(model / "tokenizer.json"))
    end_ids(model, tmp_path / "out", progress)
    written = Tokenizer.from_file(str(tmp_path / "out/1/tokenizer.json"))
    assert len(written.encode("many words that are more than four tokens").ids) > 4
    assert len(written.encode("a").ids) == 1


def test_end_ids_are_the_union_of_every_place_that_names_one(
    tmp_path: Path, progress: Progress
) -> None:
    model = write_tiny_llama(tmp_path / "model", eos_token_id=[5, 6])
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert end_ids(model, tmp_path / "out", progress) == (2, 5, 6, 7)  # 2: the tokenizer's


def test_the_chat_turn_s_own_end_is_added(tmp_path: Path, progress: Progress) -> None:
    """A base model's eos is <|endoftext|>, but its chat template ends turns otherwise."""
    model = write_tiny_llama(tmp_path / "model", eos_token_id=0)
    rewrite(model / "tokenizer_config.json", eos_token="<|endoftext|>")
    assert end_ids(model, tmp_path / "out", progress) == (0, 2)


def test_without_a_template_only_the_named_ones_count(tmp_path: Path, progress: Progress) -> None:
    model = write_tiny_llama(tmp_path / "model", eos_token_id=0)
    rewrite(model / "tokenizer_config.json", eos_token="<|endoftext|>")
    (model / "chat_template.jinja").unlink()
    assert end_ids(model, tmp_path / "out", progress) == (0,)


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused(
    tmp_path: Path, progress: Progress
) -> None:
    from tokenizers import Tokenizer

    model = write_tiny_llama(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|pad|>"])
    tokenizer.save(str(model / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match=r"id 320 \('<\|pad\|>'\).*320 embeddings"):
        end_ids(model, tmp_path / "out", progress)


def test_added_tokens_count(tmp_path: Path, progress: Progress) -> None:
    from tokenizers import Tokenizer

    model = write_tiny_llama(tmp_path / "model", vocab_size=384)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|tool|>"])
    tokenizer.save(str(model / "tokenizer.json"))
    end_ids(model, tmp_path / "out", progress)
    plain = Artifact.read(export_tiny(tmp_path / "plain"))
    found = Artifact.read(tmp_path / "out/1")
    assert found.num_tokens == plain.num_tokens + 1
    assert found.vocabulary_sha256 != plain.vocabulary_sha256
