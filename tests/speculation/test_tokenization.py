"""A tokenizer directory: raw prompts, chat, ids in order, and what a damaged one says."""

import json

import pytest
from tokenizers import Tokenizer, models, processors

from specdec.errors import InvalidArtifact, InvalidRequest
from specdec.speculation.tokenization import TextTokenizer, special_tokens
from support.text import metaspace_library, tiny_tokenizer
from support.tiny import SPECIAL, write_tiny_tokenizer

USER = {"role": "user", "content": "Hello"}


def with_begin_token():
    library = metaspace_library("sequence")
    library = Tokenizer.from_str(library.to_str())
    library.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return TextTokenizer(library)


def test_raw_prompts_get_what_the_tokenizer_adds():
    tokenizer = with_begin_token()
    plain = tokenizer.encode_plain("hello")
    assert tokenizer.encode("hello") == (1, *plain)
    assert 1 not in plain


def test_special_tokens_in_the_text_are_read_as_tokens():
    tokenizer = tiny_tokenizer()
    assert tokenizer.encode("a<|im_end|>") == (*tokenizer.encode_plain("a"), 2)


def test_special_tokens_have_no_text_unless_asked_for():
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("<|im_start|>a<|im_end|>")
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>a<|im_end|>"
    assert {0, 1, 2} == tokenizer.special_ids()


@pytest.mark.parametrize("text", ["", "hello", " two  spaces ", "日本語 😀\n\ttab", "\x00\x7f"])
def test_text_survives_the_round_trip(text):
    assert tiny_tokenizer().decode(tiny_tokenizer().encode(text)) == text


def test_tokens_stand_in_id_order():
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.tokens()
    assert len(tokens) == tokenizer.num_tokens
    assert tuple(tokens[:3]) == SPECIAL
    assert [tokenizer._tokenizer.id_to_token(i) for i in range(len(tokens))] == tokens


def test_unused_ids_are_none():
    tokenizer = TextTokenizer(Tokenizer(models.WordLevel({"a": 0, "b": 3}, unk_token="a")))
    assert tokenizer.tokens() == ["a", None, None, "b"]
    assert tokenizer.num_tokens == 4


def test_a_truncation_left_in_the_file_is_switched_off():
    library = Tokenizer.from_str(tiny_tokenizer()._tokenizer.to_str())
    library.enable_truncation(2)
    library.enable_padding(length=64)
    assert TextTokenizer(library).encode("a b c d") == tiny_tokenizer().encode("a b c d")


def test_chat_is_the_template_without_a_second_begin_token():
    tokenizer = tiny_tokenizer()
    text = tokenizer.render_chat([USER])
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode_chat([USER]) == tokenizer.encode_plain(text)
    assert tokenizer.encode_chat([USER])[0] == 1


def test_chat_messages_are_checked():
    with pytest.raises(InvalidRequest, match="role is 'robot'"):
        tiny_tokenizer().render_chat([{"role": "robot", "content": "x"}])


def test_a_model_without_template_says_so():
    with pytest.raises(InvalidRequest, match="no chat template: send text_input"):
        with_begin_token().encode_chat([USER])


def test_special_tokens_come_as_strings_or_objects():
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None, "x": "y"}
    assert special_tokens(config) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_directory_without_config_or_template_works(tmp_path):
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").unlink()
    tokenizer = TextTokenizer.from_directory(tmp_path)
    assert tokenizer.encode("hello") == tiny_tokenizer().encode("hello")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, "no tokenizer.json in"),
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json is not a JSON object"),
        ("chat_template.jinja", "{% if %}", "the chat template does not compile"),
    ],
)
def test_a_damaged_directory_stops_loading(tmp_path, file, content, message):
    write_tiny_tokenizer(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(InvalidArtifact, match=message):
        TextTokenizer.from_directory(tmp_path)


def test_an_unsupported_decoder_stops_loading(tmp_path):
    write_tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["decoder"] = {"type": "CTC", "pad_token": "p", "word_delimiter_token": "|"}
    file.write_text(json.dumps(content | {"decoder": content["decoder"] | {"cleanup": True}}))
    with pytest.raises(InvalidArtifact, match=r"CTC.* is not supported"):
        TextTokenizer.from_directory(tmp_path)
