"""Token bytes against the library's own decoder, over every supported kind and random ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from specdec.errors import InvalidArtifact
from specdec.speculation.token_bytes import DecoderRules, TextDecoder
from specdec.speculation.tokenization import TextTokenizer
from support.text import literal_tokenizer, metaspace_library, tiny_tokenizer, to_alphabet

UNHURRIED = settings(deadline=None)  # other tests may have the processor
BYTES = literal_tokenizer([bytes([byte]) for byte in range(256)])
STYLES = ["sequence", "unstripped", "metaspace"]


@UNHURRIED
@given(st.lists(st.integers(0, 319), max_size=40))
def test_byte_level_equals_the_library_even_on_broken_utf8(ids):
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(ids) == tokenizer._tokenizer.decode(ids)
    whole = tokenizer._tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == whole


@UNHURRIED
@given(st.binary(max_size=24))
def test_any_bytes_read_as_a_lossy_utf8_decoder_reads_them(data):
    assert BYTES.decode(data) == data.decode("utf-8", "replace")
    assert BYTES.decode(data) == BYTES._tokenizer.decode(list(data))


@pytest.mark.parametrize("style", STYLES)
@UNHURRIED
@given(text=st.text(alphabet="hello world  é日€😀\n", max_size=30))
def test_metaspace_equals_the_library_on_text(style, text):
    library = metaspace_library(style)
    tokenizer = TextTokenizer(library)
    ids = library.encode(text).ids
    if style == "metaspace":  # its library decoder leaves byte tokens as they are spelt
        ids = [i for i in ids if not 3 <= i < 259]
    assert tokenizer.decode(ids) == library.decode(ids)


@pytest.mark.parametrize("style", STYLES)
@UNHURRIED
@given(ids=st.lists(st.integers(259, 280) | st.integers(0, 2), max_size=20))
def test_metaspace_equals_the_library_on_random_pieces(style, ids):
    library = metaspace_library(style)
    assert TextTokenizer(library).decode(ids) == library.decode(ids)


def test_the_space_after_a_skipped_special_token_is_kept():
    library = metaspace_library("sequence")
    hello, end = library.token_to_id("▁hello"), library.token_to_id("</s>")
    assert TextTokenizer(library).decode([1, hello, end, hello]) == "hello hello"


def test_a_byte_fallback_run_keeps_what_was_complete():
    # The library turns the whole run into U+FFFD while one byte is missing; a stream cannot.
    library = metaspace_library("sequence")
    ids = [library.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode() + b"\xe2"]
    assert TextTokenizer(library).decode(ids) == "é\ufffd"


@pytest.mark.parametrize("character", ["😀", "日", "é", "👩‍👩‍👧"])
def test_a_character_split_over_tokens_waits_until_it_is_complete(character):
    decoder = BYTES.text_decoder()
    pushed = [decoder.push(byte) for byte in character.encode()]
    assert all("\ufffd" not in text for text in pushed)
    assert "".join(pushed) == character
    assert decoder.flush() == ""


def test_an_unfinished_character_becomes_one_replacement_at_the_end():
    assert BYTES.decode("a😀".encode()[:-1]) == "a\ufffd"


def test_unknown_ids_have_no_text():
    assert literal_tokenizer(["a", "b"]).decode([0, 99, 1]) == "ab"


def test_added_tokens_that_are_not_byte_spelt_read_as_written():
    library = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    library.decoder = decoders.ByteLevel()
    library.add_tokens(["<tool call>", "日本"])
    ids = [1, 0, 2]
    assert TextTokenizer(library).decode(ids) == library.decode(ids) == "<tool call>a日本"


def test_without_a_decoder_tokens_are_joined_by_spaces():
    library = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert TextTokenizer(library).decode([0, 1, 1]) == library.decode([0, 1, 1]) == "a b b"


@pytest.mark.parametrize("pieces", ["a", " a", "  a", "   a", "    "])
def test_as_many_leading_spaces_go_as_the_decoder_says(pieces):
    library = Tokenizer(models.WordLevel({" ": 0, "a": 1}, unk_token="a"))
    library.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)])
    ids = [0 if piece == " " else 1 for piece in pieces]
    assert TextTokenizer(library).decode(ids) == library.decode(ids)


def test_a_token_that_only_looks_like_a_byte_is_text():
    rules = DecoderRules(byte_fallback=True)
    assert rules.to_bytes("<0xZZ>", first=False) == b"<0xZZ>"
    assert rules.to_bytes("<0xE2>", first=False) == b"\xe2"


def test_the_alphabet_is_the_librarys():
    from tokenizers import pre_tokenizers

    assert sorted(to_alphabet(bytes(range(256)))) == sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.parametrize("prepends", [True, False])
def test_older_metaspace_files_say_add_prefix_space(prepends):
    step = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": prepends}
    rules = DecoderRules.parse(step)
    assert rules.to_bytes("▁a", first=True) == (b"a" if prepends else b" a")
    assert rules.to_bytes("▁a", first=False) == b" a"


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Replace", "pattern": {"Regex": "x+"}, "content": " "},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},  # of each token: no Fuse before
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 0, "stop": 1},
            ],
        },
    ],
)
def test_a_decoder_that_is_no_concatenation_is_refused(decoder):
    with pytest.raises(InvalidArtifact, match=r"is not supported: ByteLevel, Metaspace"):
        DecoderRules.parse(decoder)


def test_a_decoder_costs_the_same_for_every_token():
    # The work of a push must not depend on how much was pushed before.
    tokenizer = literal_tokenizer(["a", "b"])
    decoder = tokenizer.text_decoder()
    seen = []
    original = tokenizer._token_bytes.get
    tokenizer._token_bytes.get = lambda token_id, **rest: (
        seen.append(token_id) or original(token_id, **rest)
    )
    for _ in range(500):
        decoder.push(1)
    assert len(seen) == 500
    assert isinstance(decoder, TextDecoder)
