"""What is learned of acceptance: from the server's history, from one text, and how fast."""

import random
from itertools import pairwise

import numpy as np
import pytest

from specdec.speculation.levels import POSITIONS
from specdec.speculation.outlook import Outlook
from specdec.types import Proposal


def chain(token_ids=(1,) * 8, omen=0):
    return Proposal(tuple(token_ids), (omen,) * len(token_ids))


def survive(outlook, sequence_ids, num_tokens, omens=None, **options):
    """Of chains."""
    omens = omens or [0] * len(sequence_ids)
    return outlook.survival(sequence_ids, [chain((1,) * num_tokens, o) for o in omens], **options)


def outputs(rng, alpha, num_drafts=8):
    """The target's tokens: 1 where it agrees with the draft."""
    found = []
    while len(found) < num_drafts and rng.random() < alpha:
        found.append(1)
    return [*found, 0] if len(found) < num_drafts else found


def taught(alphas, num_steps=100, seed=0, omen=0):
    """Sequence i's draft tokens hold with probability alphas[i], all looked at."""
    outlook, rng = Outlook(), random.Random(seed)
    for _ in range(num_steps):
        for sequence_id, alpha in enumerate(alphas):
            outlook.observe(sequence_id, chain(omen=omen), outputs(rng, alpha))
        survive(outlook, [0], 1)
    return outlook


def first(outlook, sequence_id=0, omen=0, **options):
    return float(survive(outlook, [sequence_id], 1, [omen], **options)[0, 0])


def test_before_anything_was_seen_half_of_them():
    survival = survive(Outlook(), [7, 8], 4, [0, 3])
    assert survival.tolist() == [pytest.approx([0.5, 0.25, 0.125, 0.0625])] * 2


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("batch", [1, 16])
def test_it_learns_the_rate(alpha, batch):
    found = [first(taught([alpha] * batch, seed=seed)) for seed in range(4)]
    assert np.mean(found) == pytest.approx(alpha, abs=0.07)


def test_survival_is_the_product_of_the_positions():
    """The first token holds nearly always, the second hardly ever."""
    outlook = Outlook()
    for step in range(200):
        outlook.observe(0, chain(), [1, 1, 0] if step % 10 == 0 else [1, 0])
    one, two = survive(outlook, [0], 2)[0]
    assert one > 0.93
    assert two == pytest.approx(0.1, abs=0.08)


def test_survival_falls_and_stays_within_bounds():
    for alpha in (0.0, 0.5, 1.0):
        survival = survive(taught([alpha] * 3), [0, 1, 99], 20)
        assert survival.shape == (3, 20)
        assert (np.diff(survival, axis=1) < 0).all()
        assert ((survival > 0) & (survival < 1)).all()


def test_a_position_never_reached_is_like_the_one_before_it():
    outlook = Outlook()
    for _ in range(100):
        outlook.observe(0, chain((1,)), (1,))
    one, two = survive(outlook, [0], 2)[0]
    assert two / one == pytest.approx(one, abs=0.05)


def test_later_positions_share_the_last_level():
    outlook = taught([0.9], num_steps=400)
    rates = np.exp(np.diff(np.log(survive(outlook, [0], POSITIONS + 3)[0])))
    assert rates[POSITIONS - 1] == pytest.approx(rates[-1])


def test_omens_are_judged_apart():
    outlook, rng = Outlook(), random.Random(0)
    for _ in range(150):
        outlook.observe(0, chain(omen=1), outputs(rng, 0.1))
        outlook.observe(0, chain(omen=5), outputs(rng, 0.9))
    assert first(outlook, omen=1) < 0.25
    assert first(outlook, omen=5) > 0.75


def test_a_new_sequence_starts_from_the_servers_history():
    assert first(taught([0.9] * 4), 99) == pytest.approx(0.9, abs=0.05)
    assert first(taught([0.1] * 4), 99) == pytest.approx(0.1, abs=0.05)


def test_unlike_sequences_are_told_apart():
    outlook = taught([0.9, 0.1] * 4)
    assert first(outlook, 0) == pytest.approx(0.9, abs=0.12)
    assert first(outlook, 1) == pytest.approx(0.1, abs=0.12)
    assert outlook.spread > 1.0


def test_alike_sequences_are_not_told_apart_by_chance():
    """A winner among 64 equal texts is a matter of luck: it must not look better for long."""
    outlook = taught([0.5] * 64, num_steps=40)
    odds = survive(outlook, list(range(64)), 1)[:, 0]
    assert odds.std() < 0.06
    assert outlook.spread < 0.2


def test_a_survivors_bias_is_not_taken_for_a_position():
    """Only the good texts reach position 3: it is they who are better, not the position."""
    outlook = taught([0.9, 0.3] * 8, num_steps=150)
    survival = survive(outlook, [1], 3)[0]
    assert survival[2] / survival[1] == pytest.approx(0.3, abs=0.15)


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.0), (0.0, 0.9)])
def test_a_text_that_turns_is_noticed_in_a_dozen_looks(before, after):
    outlook, rng = taught([before] * 4, num_steps=200), random.Random(1)
    for _ in range(15):
        outlook.observe(0, chain(), outputs(rng, after))
    assert abs(first(outlook, 0) - after) < 0.25
    assert abs(first(outlook, 1) - before) < 0.1  # the others go on


def test_a_run_of_failures_is_news_to_the_end():
    """As a rate is estimated by counting: one in n, not one in the root of n."""
    outlook = taught([0.6] * 4, num_steps=200)  # what the server is used to
    found = []
    for number in range(1, 101):
        outlook.observe(9, chain((1,)), (0,))
        if number in (12, 25, 50, 100):
            found.append(first(outlook, 9))
    assert found[0] < 0.25
    assert all(after < 0.72 * before for before, after in pairwise(found[:3]))
    assert found[3] < 0.05


def test_optimism_is_large_while_little_is_known():
    outlook = Outlook()
    assert first(outlook, optimism=1.0) > 0.8
    outlook = taught([0.5], num_steps=300)
    assert first(outlook) < first(outlook, optimism=1.0) < 0.75


def test_what_was_cut_off_is_judged_as_far_as_the_text_reaches():
    """Offered three, one verified: the target's second token says whether the second was right."""
    outlook = Outlook()
    outlook.observe(0, chain((1, 2, 3)), (1, 9))
    assert outlook.levels().keys() == {(0, 0), (0, 1)}
    outlook.observe(0, chain((1, 2, 3)), (1, 2, 4))
    assert outlook.levels().keys() == {(0, 0), (0, 1), (0, 2)}
    outlook.observe(1, Proposal(), (1,))
    outlook.observe(1, chain((5,), 1), ())
    assert outlook.levels().keys() == {(0, 0), (0, 1), (0, 2)}


def test_many_looks_at_once_do_not_overshoot():
    """All 256 sequences of the first step say the same."""
    for output, low, high in ((0, 0.0, 0.3), (1, 0.7, 1.0)):
        outlook = Outlook()
        for sequence_id in range(256):
            outlook.observe(sequence_id, chain((1,)), (output,))
        assert low < first(outlook, 999) < high


def test_a_sequence_that_ended_is_forgotten_and_the_server_remembers():
    outlook = taught([0.9, 0.9, 0.05])
    before = first(outlook, 2)
    outlook.end(2)
    outlook.end(12345)
    assert first(outlook, 2) > before + 0.3


#   root - 0 - 1 - 2      omens 1 1 2
#        \   \ 4          omen 5
#         3 - 5           omens 4 1
TREE = Proposal((10, 11, 12, 13, 14, 15), (1, 1, 2, 4, 5, 1), (-1, 0, 1, -1, 0, 3))
KINDS = (1, 2, 4, 5)


def taught_by_omen(rates, num_steps=150, sequence_id=0):
    """Draft tokens of an omen hold at their rate, whatever their depth."""
    outlook, rng = Outlook(), random.Random(0)
    for _ in range(num_steps):
        for omen, rate in rates.items():
            outlook.observe(sequence_id, chain(omen=omen), outputs(rng, rate))
    return outlook


def test_a_trees_survival_is_the_product_along_each_path():
    outlook = taught_by_omen({1: 0.9, 2: 0.6, 4: 0.3, 5: 0.1})
    odds = outlook.judge(0)
    a, b, c = odds(1, 0), odds(1, 1), odds(2, 2)
    expected = [a, a * b, a * b * c, odds(4, 0), a * odds(5, 1), odds(4, 0) * odds(1, 1)]
    assert outlook.survival([0], [TREE])[0].tolist() == pytest.approx(expected)
    assert expected == sorted({*expected}, key=expected.index)  # all differ


def test_a_batch_of_trees_and_chains_is_each_alone():
    outlook = taught_by_omen({1: 0.9, 2: 0.6, 4: 0.3, 5: 0.1})
    batch = [TREE, chain((1, 2, 3), 2), Proposal(), TREE.first(2), chain((1,) * 8, 4)]
    together = outlook.survival([0, 0, 0, 0, 99], batch)
    assert together.shape == (5, 8)
    for row, proposal, sequence_id in zip(together, batch, [0, 0, 0, 0, 99], strict=True):
        size = len(proposal.token_ids)
        alone = outlook.survival([sequence_id], [proposal])[0]
        assert row[:size].tolist() == pytest.approx(alone.tolist())
        assert not row[size:].any()


@pytest.mark.parametrize("sequence_id", [0, 99])
def test_a_drafter_is_told_the_odds_that_survival_multiplies(sequence_id):
    outlook = taught_by_omen({1: 0.9, 2: 0.6, 4: 0.3, 5: 0.1})
    odds = outlook.judge(sequence_id)
    for omen in (*KINDS, 77):  # 77 was never seen
        survival = outlook.survival([sequence_id], [chain((1,) * 12, omen)])[0]
        conditional = survival / np.array([1.0, *survival[:-1]])
        found = [odds(omen, depth) for depth in range(12)]
        assert found == pytest.approx(conditional.tolist())


def test_every_sequence_has_its_own_judge():
    outlook = taught([0.9, 0.5, 0.1])
    judged = [outlook.judge(i) for i in (2, 0, 1, 99)]
    odds = [odds(0, 0) for odds in judged]
    assert odds == pytest.approx([first(outlook, i) for i in (2, 0, 1, 99)])
    assert odds[0] < odds[2] < odds[1]


def test_a_judge_knows_what_the_step_before_showed():
    outlook = Outlook()
    before = outlook.judge(0)(3, 0)
    for _ in range(3):
        outlook.observe(0, Proposal((1,), (3,)), (1,))
    assert outlook.judge(0)(3, 0) > before + 0.1


def test_siblings_are_learned_apart():
    """Of two tokens at one place the first holds in 60 of 100 steps, the second in 30."""
    outlook, rng = Outlook(), random.Random(0)
    pair = Proposal((1, 2), (1, 2), (-1, -1))
    for _ in range(400):
        draw = rng.random()
        outlook.observe(0, pair, (1 if draw < 0.6 else 2 if draw < 0.9 else 3,))
    assert outlook.survival([0], [pair])[0].tolist() == pytest.approx([0.6, 0.3], abs=0.1)


def test_a_branch_is_judged_only_where_the_text_went_its_way():
    outlook = Outlook()
    outlook.observe(0, TREE, (13, 99, 5))  # 13 holds, 15 behind it does not; 10 does not
    assert outlook.levels().keys() == {(1, 0), (4, 0), (1, 1)}
    odds = outlook.judge(0)
    assert odds(4, 0) > 0.5 > odds(1, 0)


@pytest.mark.parametrize("first_odds", [0.05, 0.2, 0.8, 0.95])
def test_a_server_starts_from_the_first_odds(first_odds):
    """Any rate is still possible, so that the odds lie between those and a half."""
    odds = Outlook({7: first_odds}).judge(0)
    assert min(first_odds, 0.5) < odds(7, 0) < max(first_odds, 0.5)
    assert abs(odds(7, 0) - 0.5) > 0.5 * abs(first_odds - 0.5)
    assert odds(8, 0) == pytest.approx(0.5)  # there are none for it


def test_first_odds_are_kept_in_order():
    rates = (0.05, 0.1, 0.3, 0.5, 0.6, 0.9)
    odds = Outlook(dict(enumerate(rates))).judge(0)
    found = [odds(omen, 0) for omen in range(len(rates))]
    assert found == sorted({*found})


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_first_odds_are_forgotten_with_evidence(rate):
    found = []
    for first_odds in (0.05, 0.95):
        outlook, rng = Outlook({1: first_odds}), random.Random(0)
        for _ in range(400):
            outlook.observe(0, chain(omen=1), outputs(rng, rate))
        found.append(first(outlook, omen=1))
    assert found[0] == pytest.approx(found[1], abs=0.03)
    assert found[0] == pytest.approx(rate, abs=0.1)
