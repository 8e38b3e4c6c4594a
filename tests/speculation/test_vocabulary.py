"""Two vocabularies fit by their ids, not by their sizes."""

import pytest
from tokenizers import Tokenizer, models

from specdec.errors import InvalidArtifact
from specdec.speculation.vocabulary import check_same_vocabulary


def write(directory, tokens, special=()):
    directory.mkdir()
    library = Tokenizer(models.WordLevel(dict(tokens), unk_token="a"))
    library.add_special_tokens(list(special))
    library.save(str(directory / "tokenizer.json"))
    return directory


def numbered(text):
    return [(token, i) for i, token in enumerate(text)]


def test_equal_vocabularies_fit(tmp_path):
    one = write(tmp_path / "one", numbered("abcd"), ["<end>"])
    other = write(tmp_path / "two", numbered("abcd"), ["<end>"])
    assert check_same_vocabulary(one, other) == 5


@pytest.mark.parametrize(("target", "draft"), [("abcd", "abcdef"), ("abcdef", "abcd")])
def test_one_may_know_more_tokens(tmp_path, target, draft):
    one = write(tmp_path / "one", numbered(target))
    assert check_same_vocabulary(one, write(tmp_path / "two", numbered(draft))) == 4


def test_an_id_unused_on_one_side_does_not_matter(tmp_path):
    one = write(tmp_path / "one", [("a", 0), ("b", 1), ("c", 2)])
    assert check_same_vocabulary(one, write(tmp_path / "two", [("a", 0), ("c", 2)])) == 3


def test_a_permuted_vocabulary_of_the_same_size_is_refused(tmp_path):
    one = write(tmp_path / "one", numbered("abcd"))
    other = write(tmp_path / "two", numbered("acbd"))
    with pytest.raises(InvalidArtifact, match=r"id 1 is 'b' in .*one and 'c' in .*two"):
        check_same_vocabulary(one, other)


def test_a_token_that_is_special_on_one_side_only_is_refused(tmp_path):
    one = write(tmp_path / "one", numbered("ab"), ["<end>"])
    other = write(tmp_path / "two", [*numbered("ab"), ("<end>", 2)])
    with pytest.raises(InvalidArtifact, match=r"id 2 is '<end>' \(special\) in .* and '<end>' in"):
        check_same_vocabulary(one, other)


def test_a_missing_tokenizer_is_named(tmp_path):
    one = write(tmp_path / "one", numbered("ab"))
    with pytest.raises(InvalidArtifact, match=r"no tokenizer\.json in"):
        check_same_vocabulary(one, tmp_path)
