"""What is learned from which verdict, and the trees one can then write down by hand."""

import pytest

from specdec.drafters._memory import WIDTH
from specdec.drafters.auto import AutoDrafter
from specdec.drafters.base import DraftView, Judge
from specdec.drafters.recycle import FIRST_ODDS, PAIR, SINGLE, RecycleDrafter, last_two
from specdec.types import Proposal, SamplingParams, Verdict
from support.engine import Harness
from support.fakes import hash_text, reference_text


def view_of(token_ids, carry=()):
    return DraftView(1, token_ids, 1, SamplingParams(), carry)


def observe(drafter, text, output_ids, candidate_ids):
    """`text` ends with the outputs."""
    size = len(output_ids)
    assert tuple(text[-size:]) == tuple(output_ids)
    verdict = Verdict(tuple(output_ids), (0.0,) * size, 9, (), tuple(candidate_ids))
    drafter.observe(view_of(list(text)), verdict)


def propose(drafter, token_ids, limit=8, carry=(), odds=None):
    judge = Judge(lambda _: lambda omen, depth: (odds or FIRST_ODDS)[omen], 0.02)
    (proposal,) = drafter.propose([view_of(token_ids, carry)], [limit], judge).proposals
    return proposal


class Lessons:
    """Stands in for the memory."""

    def __init__(self):
        self.found = []

    def learn(self, before, last, candidate_ids, salt=0):
        self.found.append((before, last, tuple(candidate_ids)))


@pytest.fixture
def pupil():
    drafter = RecycleDrafter()
    drafter._memory = Lessons()
    return drafter


def test_the_prompts_pass_teaches_what_follows_its_last_token(pupil):
    observe(pupil, [1, 2, 3, 7], [7], [(7, 8, 9)])
    assert pupil._memory.found == [(2, 3, (7, 8, 9))]


def test_a_prompt_of_one_token_has_nothing_before_it(pupil):
    observe(pupil, [3, 7], [7], [(7, 8, 9)])
    assert pupil._memory.found == [(-1, 3, (7, 8, 9))]


def test_every_emitted_token_teaches_once(pupil):
    """Two accepted and the recovered token: the rows behind the mismatch are not in the verdict."""
    observe(pupil, [1, 2, 5, 6, 7], [5, 6, 7], [(5, 9), (6, 9), (7, 9)])
    assert pupil._memory.found == [(1, 2, (5, 9)), (2, 5, (6, 9)), (5, 6, (7, 9))]


def test_a_sampled_token_need_not_be_among_the_candidates(pupil):
    observe(pupil, [1, 2, 40], [40], [(7, 8, 9)])
    assert pupil._memory.found == [(1, 2, (7, 8, 9))]


def test_a_verdict_without_candidates_teaches_nothing(pupil):
    observe(pupil, [1, 2, 5, 6], [5, 6], [])
    assert pupil._memory.found == []


@pytest.mark.parametrize("name", ["end id", "stop word", "length"])
def test_in_the_engine_nothing_behind_the_end_is_learned(name):
    """Every lesson is one of the target's own at a token that was emitted, and there is one for
    each but those of the last block, whose sequence has ended."""
    text = reference_text([5], 40, hash_text)
    options = {
        "end id": {"end_ids": (text[20],)},
        "stop word": {"stop_words": [f" {text[20]} "]},
        "length": {"max_tokens": text.index(text[20]) + 1},
    }[name]
    harness, drafter = Harness(), RecycleDrafter()
    for _ in range(2):  # the second one has something to accept
        lessons, learn = [], drafter._memory.learn

        def record(*lesson, lessons=lessons, learn=learn):
            lessons.append(lesson[:3])
            learn(*lesson)

        drafter._memory.learn = record
        sink = harness.submit(
            [5], **{"max_tokens": 40} | options, drafter=drafter, num_draft_tokens=6
        )
        harness.run()
        whole = [5, *sink.token_ids]
        num_taught = len(sink.token_ids) - len(sink.chunks[-1].token_ids)
        assert lessons == [
            (
                whole[i - 1] if i else -1,
                whole[i],
                harness.target.candidates(whole[: i + 1], WIDTH),
            )
            for i in range(num_taught)
        ]
    assert max(len(chunk.token_ids) for chunk in sink.chunks) > 3


@pytest.mark.parametrize(
    ("token_ids", "carry", "expected"),
    [
        ([], (), (-1, -1)),
        ([4], (), (-1, 4)),
        ([4, 5, 6], (), (5, 6)),
        ([4, 5], (6,), (5, 6)),
        ([4], (6,), (4, 6)),
        ([4, 5], (6, 7, 8), (7, 8)),
    ],
)
def test_the_last_two_of_text_and_carry(token_ids, carry, expected):
    assert last_two(view_of(token_ids, carry)) == expected


def test_a_seen_continuation_is_proposed():
    drafter = RecycleDrafter()
    observe(drafter, [1, 2, 3, 4, 5], [3, 4, 5], [(3, 30, 31), (4, 40, 41), (5, 50, 51)])
    #  1 2 - 3 - 4 - 5     path odds  0.5  0.25  0.125
    #      \ 30  \ 40                 0.2  0.1
    odds = FIRST_ODDS | {PAIR: 0.5, PAIR + 1: 0.2}
    assert propose(drafter, [1, 2], limit=5, odds=odds) == Proposal(
        (3, 4, 30, 5, 40), (PAIR, PAIR, PAIR + 1, PAIR, PAIR + 1), (-1, 0, -1, 1, 0)
    )


def test_a_token_known_in_another_pair_is_a_weaker_omen():
    drafter = RecycleDrafter()
    observe(drafter, [1, 2, 3], [3], [(3, 30, 31)])
    assert propose(drafter, [9, 2]).omens == (SINGLE, SINGLE + 1, SINGLE + 2)
    assert propose(drafter, [1, 2]).omens == (PAIR, PAIR + 1, PAIR + 2)
    assert propose(drafter, [9, 2]).token_ids == propose(drafter, [1, 2]).token_ids == (3, 30, 31)


def test_what_the_target_finds_likely_now_replaces_what_it_found():
    drafter = RecycleDrafter()
    observe(drafter, [1, 2, 3], [3], [(3, 30, 31)])
    observe(drafter, [1, 2, 8], [8], [(8, 3)])
    assert propose(drafter, [1, 2]).token_ids == (8, 3)


def test_it_learns_from_one_request_for_another():
    harness, drafter = Harness(), RecycleDrafter()
    first = harness.submit([5, 6], 30, drafter=drafter, num_draft_tokens=8)
    harness.run()
    second = harness.submit([5, 6], 30, drafter=drafter, num_draft_tokens=8)
    harness.run()
    assert first.token_ids == second.token_ids
    assert len(second.chunks) < 0.5 * len(first.chunks)


def test_unlikely_branches_are_left_out():
    drafter = RecycleDrafter()
    observe(drafter, [1, 2, 3], [3], [(3, 30, 31)])
    poor = FIRST_ODDS | {PAIR + 1: 0.019}
    assert propose(drafter, [1, 2], odds=poor).token_ids == (3, 31)


def test_first_odds_cover_every_omen():
    assert FIRST_ODDS.keys() == {*range(PAIR, SINGLE + WIDTH)}
    assert RecycleDrafter.first_odds is FIRST_ODDS
    assert 0 not in FIRST_ODDS  # an omen of a token without one: a carried one
    assert all(0 < odds < 1 for odds in FIRST_ODDS.values())


@pytest.mark.parametrize("kind", [RecycleDrafter, AutoDrafter])
def test_nothing_is_recycled_across_salts(kind):
    """Of the same salt it is; how fast an answer comes must not tell what others were told."""
    drafter, text = kind(), [1, 2, 7]
    verdict = Verdict((7,), (0.0,), 9, (), ((7, 8, 9),))
    drafter.observe(view_of(text)._replace(cache_salt=5), verdict)
    asked = [view_of([1, 2])._replace(cache_salt=salt) for salt in (5, 6, 0)]
    found = drafter.propose(asked, [4] * 3).proposals
    assert [set(p.token_ids) >= {7, 8, 9} for p in found] == [True, False, False]
    assert not found[1].token_ids
