"""Where an accepted block is cut, and what of its text may be shown."""

import codecs
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec.speculation.stream import StopMatcher, TextStream
from specdec.types import Request, SamplingParams
from support.text import literal_tokenizer, tiny_tokenizer

UNHURRIED = settings(deadline=None)  # other tests may have the processor
PIECES = ["a", "b", "ab", "aab", "STOP", "ST", "OP", " ", "x", "\n", "日", b"\xf0\x9f", b"\x98\x80"]
LITERAL = literal_tokenizer(PIECES)
EOS = len(PIECES)
STOP = PIECES.index("STOP")


def ids_of(*pieces):
    return [EOS if piece == "<eos>" else PIECES.index(piece) for piece in pieces]


def stream(*, max_tokens=1000, min_tokens=0, stop_words=(), end_ids=(EOS,), tokenizer=LITERAL):
    sampling = SamplingParams(min_tokens=min_tokens, end_ids=end_ids)
    request = Request((0,), max_tokens, sampling, tuple(stop_words))
    return TextStream(tokenizer, request, end_ids)


def push(text_stream, ids):
    """One block whose logprobs are recognisable by position."""
    start = text_stream.num_output_tokens
    return text_stream.push(
        ids, [-float(start + i) for i in range(len(ids))], [i % 2 == 0 for i in range(len(ids))]
    )


def run(text_stream, blocks):
    """Push blocks until the stream ends; return the chunks."""
    chunks = []
    for block in blocks:
        chunks.append(push(text_stream, block))
        if chunks[-1].finish_reason:
            break
    return chunks


def joined(chunks):
    text = "".join(chunk.text for chunk in chunks)
    ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
    return text, ids, chunks[-1].finish_reason if chunks else None


# ---- stops inside a block ------------------------------------------------------------------


def test_everything_ends_at_the_stop_word():
    chunk = push(stream(stop_words=["STOP"]), ids_of("a", "b", "STOP", "x", "x"))
    assert chunk.text == "ab"
    assert chunk.token_ids == tuple(ids_of("a", "b", "STOP"))
    assert chunk.logprobs == (-0.0, -1.0, -2.0)
    assert chunk.from_draft == (True, False, True)
    assert chunk.finish_reason == "stop"


def test_a_stop_within_the_budget_wins_over_the_cap():
    # Accepted [10, 11, STOP, 20, 21, 22], max_tokens 5: "stop" at 3, not "length" at 5.
    chunk = push(stream(max_tokens=5, stop_words=["STOP"]), ids_of("a", "b", "STOP", *"xxx"))
    assert (len(chunk.token_ids), chunk.finish_reason) == (3, "stop")


@pytest.mark.parametrize("ending", ["<eos>", "STOP"])
def test_a_stop_that_fits_exactly_is_a_stop(ending):
    chunk = push(stream(max_tokens=3, stop_words=["STOP"]), ids_of("a", "b", ending, "x"))
    assert (len(chunk.token_ids), chunk.text, chunk.finish_reason) == (3, "ab", "stop")


@pytest.mark.parametrize("ending", ["<eos>", "STOP"])
def test_a_stop_just_past_the_cap_is_not_seen(ending):
    chunk = push(stream(max_tokens=2, stop_words=["STOP"]), ids_of("a", "b", ending))
    assert (len(chunk.token_ids), chunk.text, chunk.finish_reason) == (2, "ab", "length")


def test_a_stop_at_the_start_of_a_long_block():
    chunk = push(stream(stop_words=["x"]), ids_of("x", *"a" * 15))
    assert (chunk.text, len(chunk.token_ids), chunk.finish_reason) == ("", 1, "stop")


@pytest.mark.parametrize("index", range(5))
def test_an_end_id_anywhere_in_a_block_ends_it_there(index):
    block = ["a"] * 5
    block[index] = "<eos>"
    chunk = push(stream(), ids_of(*block))
    assert chunk.token_ids == tuple(ids_of(*block[: index + 1]))
    assert (chunk.text, chunk.finish_reason) == ("a" * index, "stop")


def test_nothing_may_follow_the_end():
    ended = stream()
    push(ended, ids_of("<eos>", "a"))
    with pytest.raises(AssertionError):
        push(ended, ids_of("a"))
    with pytest.raises(AssertionError):
        ended.finish("cancelled")


def test_whichever_of_stop_word_and_end_id_comes_first_wins():
    assert joined([push(stream(stop_words=["STOP"]), ids_of("a", "STOP", "<eos>"))]) == (
        "a",
        ids_of("a", "STOP"),
        "stop",
    )
    assert joined([push(stream(stop_words=["STOP"]), ids_of("a", "<eos>", "STOP"))]) == (
        "a",
        ids_of("a", "<eos>"),
        "stop",
    )


def test_an_end_id_without_special_flag_has_no_text_either():
    chunk = push(stream(end_ids=(STOP,)), ids_of("a", "STOP", "b"))
    assert (chunk.text, chunk.token_ids) == ("a", tuple(ids_of("a", "STOP")))


def test_without_end_ids_generation_goes_on():
    chunk = push(stream(end_ids=(), max_tokens=4), ids_of("a", "<eos>", "b", "x"))
    assert (chunk.text, len(chunk.token_ids), chunk.finish_reason) == ("abx", 4, "length")


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9])
def test_the_budget_is_used_up_exactly(length):
    chunks = run(stream(max_tokens=length), [ids_of(*"xxxxxxxxx")])
    assert joined(chunks) == ("x" * length, ids_of(*"x" * length), "length")


# ---- stop words are text ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "blocks",
    [
        [["ab"]],
        [["a", "b"]],
        [["a"], ["b"]],
        [["x", "a"], ["b", "x"]],
        [["x", "a", "ab", "x"]],
    ],
)
def test_a_stop_word_matches_however_it_was_tokenised(blocks):
    chunks = run(stream(stop_words=["ab"]), [ids_of(*block) for block in blocks])
    text, _, reason = joined(chunks)
    assert reason == "stop"
    assert "ab" not in text


def test_the_beginning_of_a_stop_word_is_held_back_and_released():
    held = stream(stop_words=["STOP"])
    assert push(held, ids_of("x", "ST")).text == "x"
    assert push(held, ids_of("x")).text == "STx"
    assert push(held, ids_of("ST")).text == ""
    chunk = push(held, ids_of("OP"))
    assert (chunk.text, chunk.token_ids, chunk.finish_reason) == ("", tuple(ids_of("OP")), "stop")


def test_only_as_much_is_held_back_as_may_still_match():
    held = stream(stop_words=["aab"])
    assert [push(held, ids_of("a")).text for _ in range(4)] == ["", "", "a", "a"]
    assert push(held, ids_of("b")).finish_reason == "stop"


@pytest.mark.parametrize("ending", ["length", "stop", "cancelled"])
def test_held_text_is_released_at_the_end(ending):
    held = stream(stop_words=["STOP"], max_tokens=2)
    if ending == "length":
        chunk = push(held, ids_of("x", "ST"))
    elif ending == "stop":
        chunk = push(held, ids_of("ST", "<eos>"))
    else:
        push(held, ids_of("ST"))
        chunk = held.finish("cancelled")
        assert chunk.token_ids == ()
    assert chunk.text.endswith("ST")
    assert chunk.finish_reason == ending


def test_the_stop_word_completed_first_wins_and_of_two_at_once_the_longer():
    assert push(stream(stop_words=["aab", "a"]), ids_of("x", "aab")).text == "x"
    assert push(stream(stop_words=["b", "aab"]), ids_of("x", "aab")).text == "x"
    assert push(stream(stop_words=["STOP", "T"]), ids_of("x", "STOP")).text == "xS"


def test_one_token_may_hold_text_before_and_behind_the_stop():
    pieces = literal_tokenizer(["one STOP two", "x"])
    chunk = push(stream(stop_words=["STOP"], tokenizer=pieces), [0, 1])
    assert (chunk.text, chunk.token_ids) == ("one ", (0,))


# ---- min_tokens --------------------------------------------------------------------------------


@pytest.mark.parametrize("min_tokens", range(7))
@pytest.mark.parametrize("block", range(1, 5))
def test_min_tokens_lets_early_stops_pass(min_tokens, block):
    # Stops stand at output tokens 3 and 6 (counted from 1): one is allowed once min_tokens
    # tokens stand before it.
    ids = ids_of("x", "x", "<eos>", "x", "x", "STOP", "x", "<eos>")
    blocks = [ids[i : i + block] for i in range(0, len(ids), block)]
    chunks = run(stream(min_tokens=min_tokens, stop_words=["STOP"]), blocks)
    expected = next(place for place in (3, 6, 8) if place > min_tokens)
    assert len(joined(chunks)[1]) == expected


def test_a_stop_word_completed_behind_min_tokens_counts():
    assert push(stream(min_tokens=1, stop_words=["ab"]), ids_of("a", "b")).finish_reason == "stop"
    assert push(stream(min_tokens=2, stop_words=["ab"]), ids_of("a", "b")).finish_reason is None


def test_a_word_that_was_let_pass_does_not_match_later():
    late = stream(min_tokens=1, stop_words=["b", "abx"])
    chunk = push(late, ids_of("ab", "a"))
    assert (chunk.text, chunk.finish_reason) == ("ab", None)  # the "a" is held for "abx"


def test_a_word_that_was_let_pass_may_overlap_the_next():
    late = stream(min_tokens=2, stop_words=["aa"])
    chunk = push(late, ids_of("a", "a", "a"))
    assert (chunk.text, chunk.finish_reason) == ("a", "stop")


# ---- characters --------------------------------------------------------------------------------


def test_a_character_over_two_blocks_is_never_cut():
    split = stream()
    assert push(split, [PIECES.index(b"\xf0\x9f")]).text == ""
    assert push(split, [PIECES.index(b"\x98\x80")]).text == "😀"


def test_a_character_that_is_never_finished_is_one_replacement():
    chunk = push(stream(max_tokens=2), ids_of("a", b"\xf0\x9f"))
    assert (chunk.text, chunk.finish_reason) == ("a\ufffd", "length")
    assert push(stream(), ids_of(b"\xf0\x9f", "<eos>")).text == "\ufffd"


def test_a_stop_word_may_be_an_emoji_over_tokens():
    chunks = run(stream(stop_words=["😀"]), [[0, 11], [12, 0]])
    assert joined(chunks) == ("a", [0, 11, 12], "stop")


# ---- any grouping gives the same ------------------------------------------------------------


def reference(tokenizer, ids, *, max_tokens, min_tokens, stop_words, end_ids):
    """The plain rule, by brute force over every prefix."""

    def decoded(count):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces = (
            tokenizer._token_bytes.get(i, first=False, skip_special=True) for i in ids[:count]
        )
        return decoder.decode(b"".join(piece or b"" for piece in pieces))

    for count in range(1, len(ids) + 1):
        may_stop = count > min_tokens
        if may_stop and ids[count - 1] in end_ids:
            return tokenizer.decode(ids[: count - 1]), ids[:count], "stop"
        before, text = decoded(count - 1), decoded(count)
        for end in range(len(before) + 1, len(text) + 1) if may_stop else ():
            matches = [word for word in stop_words if text[:end].endswith(word)]
            if matches:
                return text[: end - max(map(len, matches))], ids[:count], "stop"
        if count == max_tokens:
            return tokenizer.decode(ids[:count]), ids[:count], "length"
    return tokenizer.decode(ids), ids, "cancelled"


WORDS = st.lists(
    st.sampled_from(["a", "ab", "aab", "aabab", "STOP", "OPx", " ", "日a", "😀", "ba😀", "xxxx"]),
    max_size=4,
    unique=True,
)


def check_all_groupings(tokenizer, ids, cuts, options):
    expected = reference(tokenizer, ids, **options)
    points = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    for edges in (points, [0, len(ids)], list(range(len(ids) + 1))):
        text_stream = stream(tokenizer=tokenizer, **options)
        chunks = run(text_stream, [ids[a:b] for a, b in pairwise(edges)])
        if text_stream.finish_reason is None:
            chunks.append(text_stream.finish("cancelled"))
        assert joined(chunks) == expected
        assert [p for c in chunks for p in c.logprobs] == [
            -float(i) for i in range(len(expected[1]))
        ]
        assert text_stream.num_output_tokens == len(expected[1])
        for chunk in chunks:
            assert len(chunk.token_ids) == len(chunk.logprobs) == len(chunk.from_draft)
            if chunk.token_ids:
                assert len(chunk.text_lengths) == len(chunk.token_ids)
                assert sum(chunk.text_lengths) == len(chunk.text)
        assert all(chunk.finish_reason is None for chunk in chunks[:-1])


@UNHURRIED
@given(
    ids=st.lists(st.integers(0, EOS), max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=6),
    max_tokens=st.integers(1, 26),
    min_tokens=st.integers(0, 8),
    stop_words=WORDS,
    end_ids=st.sampled_from([(EOS,), (), (EOS, 8)]),
)
@example(
    ids=[2, 1, 0, 0, 1],
    cuts=[1],
    max_tokens=26,
    min_tokens=2,
    stop_words=["ab", "aab"],
    end_ids=(EOS,),
)
def test_any_grouping_gives_the_same_over_readable_tokens(ids, cuts, **options):
    check_all_groupings(LITERAL, ids, cuts, options)


@UNHURRIED
@given(
    ids=st.lists(st.integers(0, 319), max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=6),
    max_tokens=st.integers(1, 26),
    min_tokens=st.integers(0, 8),
    stop_words=st.lists(st.text(min_size=1, max_size=2), max_size=3, unique=True),
    end_ids=st.sampled_from([(2,), (0, 2), ()]),
)
def test_any_grouping_gives_the_same_over_a_trained_vocabulary(ids, cuts, **options):
    check_all_groupings(tiny_tokenizer(), ids, cuts, options)


@UNHURRIED
@given(st.text(alphabet="日本語😀é👩‍🚀 abc\n", max_size=20), st.integers(1, 5))
def test_streamed_text_is_the_encoded_text(text, block):
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode(text)
    text_stream = stream(tokenizer=tokenizer, end_ids=())
    chunks = run(text_stream, [ids[i : i + block] for i in range(0, len(ids), block)])
    assert "".join(chunk.text for chunk in chunks) == text
    assert text_stream.finish("cancelled").text == ""


# ---- the matcher -------------------------------------------------------------------------------


@UNHURRIED
@given(
    words=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4, unique=True),
    text=st.text("ab", max_size=30),
)
def test_the_matcher_holds_exactly_what_may_match(words, text):
    matcher = StopMatcher(words)
    for end, character in enumerate(text, start=1):
        match = matcher.push(character)
        complete = [word for word in words if text[:end].endswith(word)]
        assert (match is not None) == bool(complete)
        if match is not None:
            assert match.length == max(map(len, complete))
            return
        prefixes = [n for w in words for n in range(1, len(w)) if text[:end].endswith(w[:n])]
        assert matcher.num_pending == max(prefixes, default=0)


def test_the_matcher_is_linear_on_a_hostile_word():
    word = "a" * 4000 + "b"
    matcher = StopMatcher([word])
    advances = []
    original = matcher._advance
    matcher._advance = lambda i, character: advances.append(1) or original(i, character)
    assert matcher.push("a" * 20_000) is None
    assert len(advances) == 20_000
    assert matcher.push("b") == (1, 4001)
