import pytest

from specdec.client.bench.variants import PLAIN, build_variants, parse_variant
from specdec.client.errors import RequestRejected


def test_plain_and_default_come_first_and_nothing_twice():
    found = build_variants(["ngram:8", "draft_model:4", "ngram", "ngram:8", "none"])
    assert [(v.name, v.options) for v in found] == [
        ("K=0", {"num_draft_tokens": 0}),
        ("default", {}),
        ("ngram:8", {"drafter": "ngram", "num_draft_tokens": 8}),
        ("draft_model:4", {"drafter": "draft_model", "num_draft_tokens": 4}),
        ("ngram", {"drafter": "ngram"}),
    ]
    assert [v.is_plain for v in found] == [True, False, False, False, False]


def test_no_drafts_is_plain_whatever_the_drafter():
    assert parse_variant("ngram:0") == parse_variant("none") == PLAIN


@pytest.mark.parametrize("text", ["ngram:", "ngram:x", "ngram:-1", "ngram:4:4", "ngram:²"])
def test_a_length_must_be_a_number(text):
    with pytest.raises(RequestRejected, match="expected DRAFTER or DRAFTER:K"):
        parse_variant(text)


def test_an_unknown_drafter_is_told_which_there_are():
    with pytest.raises(RequestRejected, match=r"no drafter 'eagles', known are none, .*ngram"):
        parse_variant("eagles:4")
