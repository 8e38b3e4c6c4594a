"""Slots: who gets which, what is reused, when the cache grows, shrinks or is cut."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.decoder.cache import Cache, bucket, common_prefix
from specdec.errors import DecoderFailed
from support.runtimes import TokenRuntime, check_contents


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


class Table:
    """A cache whose prefill is one line."""

    def __init__(self, num_slots: int = 4, max_length: int = 600) -> None:
        self.runtime = TokenRuntime(num_slots)
        self.cache = Cache(self.runtime, max_length=max_length)

    def open(self, *tokens: int, salt: int = 0):
        """Open and evaluate the rest of the prompt; returns (slot, number of reused tokens)."""
        slot = self.cache.open(ids(*tokens), salt)
        reused = slot.length
        self.cache.make_room(slot.index, slot.index + 1, len(tokens) - reused)
        slot.tokens[: len(tokens)] = tokens
        self.runtime.keys[slot.index, reused : len(tokens)] = tokens[reused:]
        slot.length = len(tokens)
        self.check()
        return slot, reused

    def close(self, slot, committed: int = 10**6) -> None:
        self.cache.close(slot, committed)
        self.check()

    def check(self) -> None:
        check_contents(self.cache, self.runtime)


def test_common_prefix():
    assert common_prefix(ids(1, 2, 3), ids(1, 2, 4, 5)) == 2
    assert common_prefix(ids(1, 2), ids(1, 2, 3)) == 2
    assert common_prefix(ids(), ids(1)) == 0
    assert common_prefix(ids(9), ids(1)) == 0


def test_buckets_are_tight_and_split_sums_alike():
    for needed in range(1, 9000):
        length = bucket(needed)
        assert length >= needed
        assert length % 128 == 0
        assert length <= 512 or length - needed < length / 5, needed


def test_slots_are_taken_from_the_low_end_and_run_out():
    table = Table(3)
    slots = [table.open(i, 1, 2)[0] for i in range(5, 8)]
    assert [s.index for s in slots] == [0, 1, 2]
    with pytest.raises(DecoderFailed, match="all 3 slots are in use"):
        table.cache.open(ids(1, 2))
    table.close(slots[1])
    assert table.open(30, 31)[0] is slots[1]


def test_a_closed_sequence_lends_its_prefix_in_place():
    table = Table()
    slot, _ = table.open(1, 2, 3)
    table.close(slot)
    again, reused = table.open(1, 2, 3, 4, 5)
    assert (again, reused) == (slot, 3)
    assert table.runtime.num_copied == 0


def test_the_last_prompt_token_is_always_evaluated():
    table = Table()
    table.close(table.open(1, 2, 3)[0])
    assert table.open(1, 2, 3)[1] == 2


def test_a_prefix_is_lent_under_its_own_salt_alone():
    table = Table()
    for salt in (0, 7):
        table.close(table.open(1, 2, 3, 4, salt=salt)[0])
    assert table.open(1, 2, 3, 4, 5, salt=8)[1] == 0
    assert table.open(1, 2, 3, 4, 5, salt=7)[1] == 4
    assert table.open(1, 2, 3, 4, 5)[1] == 4


def test_a_slot_that_is_taken_over_has_its_new_owners_salt():
    table = Table(1)
    table.close(table.open(1, 2, 3, salt=7)[0])
    table.close(table.open(1, 2, 3, 4, salt=8)[0])  # nothing of it is lent, the slot is
    assert table.open(1, 2, 3, salt=7)[1] == 0
    table.close(table.cache.slots[0])
    assert table.open(1, 2, 3, salt=8)[1] == 0
    table.close(table.cache.slots[0])
    assert table.open(1, 2, 3, salt=8)[1] == 2


def test_content_that_is_moved_keeps_its_salt():
    table = Table(3)
    table.open(9, 9)
    near, _ = table.open(4, 5, 6, salt=8)
    far, _ = table.open(1, 2, 3, salt=7)
    table.close(far)
    table.close(near)
    assert table.open(7, 7)[0] is near  # what it held moves to where the older content was
    assert table.runtime.num_copied > 0
    assert (far.salt, far.tokens[: far.length].tolist()) == (8, [4, 5, 6])


def test_only_committed_tokens_are_kept():
    table = Table()
    table.close(table.open(1, 2, 3, 4)[0], committed=2)
    assert table.open(1, 2, 3, 4)[1] == 2


def test_a_longer_donor_is_copied_and_stays():
    table = Table()
    donor, _ = table.open(1, 2, 3, 4)
    table.close(donor)
    slot, reused = table.open(1, 2, 9)
    assert reused == 2
    assert slot is not donor
    assert donor.length == 4
    assert table.open(1, 2, 3, 4, 5)[:2] == (donor, 4)


def test_a_donor_in_use_is_copied_and_unharmed():
    table = Table()
    donor, _ = table.open(1, 2, 3, 4)
    slot, reused = table.open(1, 2, 3, 4)
    assert reused == 3
    assert slot is not donor
    assert donor.length == 4
    assert donor.in_use


def test_the_only_free_slot_is_cut_in_place():
    table = Table(2)
    table.open(7, 7)
    slot, _ = table.open(1, 2, 3, 4)
    table.close(slot)
    again, reused = table.open(1, 2, 9)
    assert (again, reused) == (slot, 2)
    assert table.runtime.num_copied == 0


def test_the_longest_prefix_wins():
    table = Table()
    slots = [table.open(*tokens)[0] for tokens in ((1, 5), (1, 2, 3, 9), (1, 2, 6))]
    for slot in slots:
        table.close(slot)
    assert table.open(1, 2, 3, 4)[1] == 3


def test_empty_slots_go_first_then_the_one_not_used_longest():
    table = Table(3)
    slots = [table.open(i, 0, 1)[0] for i in range(5, 7)]
    for slot in reversed(slots):
        table.close(slot)
    third, _ = table.open(30, 31)
    assert third.index == 2  # was empty
    table.close(third)
    assert table.open(40, 41)[0] is slots[1]  # closed before slots[0]


def test_sequences_in_use_stay_together_and_no_content_is_lost():
    """A pass pays for every slot between the first and the last one in use."""
    table = Table(6)
    texts = [(10 + i, 1, 2, 3) for i in range(6)]
    slots = [table.open(*t)[0] for t in texts]
    for slot in slots[:2] + slots[3:]:
        table.close(slot)  # slot 2 stays in use; the oldest content is in slot 0
    new, _ = table.open(50, 51)
    assert new.index in (1, 3)
    kept = [t for t in texts if table.cache._donor(ids(*t), 0)[0] == 4]
    assert kept == texts[1:]  # the oldest went, its neighbour's content moved there
    assert table.runtime.num_copied == 4


def test_a_distant_prefix_is_copied_next_to_the_others():
    table = Table(6)
    slots = [table.open(10 + i, 1, 2, 3)[0] for i in range(6)]
    for slot in slots[1:]:
        table.close(slot)
    new, reused = table.open(15, 1, 2, 3, 4)
    assert (new.index, reused) == (1, 4)
    assert slots[5].length == 0  # all of it is in the copy now


def test_the_cache_grows_in_buckets_and_keeps_contents():
    table = Table(max_length=1600)
    short, _ = table.open(1, 2, 3)
    lengths = []
    for size in (256, 257, 385, 513, 700, 1000, 1025, 1290, 1600):
        table.close(table.open(*range(5, 5 + size))[0], committed=0)
        lengths.append(table.runtime.length)
    # The last: 1600 and room for padding.
    assert lengths == [256, 384, 512, 640, 768, 1024, 1280, 1536, 1664]
    assert short.length == 3


def test_a_lone_sequence_finds_a_cache_of_its_size():
    """Attention pays for all positions: one long prompt of the past must not slow every step."""
    table = Table(max_length=600)
    table.close(table.open(*range(600))[0])
    assert table.runtime.length == 640
    table.close(table.open(900, 1)[0])
    assert table.runtime.length == 256
    table.close(table.open(*range(700, 1000))[0])
    assert table.runtime.length == 384


def test_a_content_that_the_cache_is_too_short_for_outlasts_it():
    table = Table(max_length=600)
    long = range(600)
    table.close(table.open(*long)[0])
    for i in range(2):
        table.close(table.open(900 + i, 1)[0])
    table.cache.make_room(0, 4, 9)  # a pass over its slot too
    slot, reused = table.open(*long)
    assert (table.runtime.length, reused) == (640, 599)
    other, reused = table.open(*long[:300], 7)  # of one in use
    assert reused == 300
    assert {slot.aside, other.aside} == {None}


def test_part_of_a_content_aside_is_lent_and_the_whole_stays():
    table = Table(max_length=600)
    table.close(table.open(*range(600))[0])
    table.close(table.open(900, 1)[0])
    part, reused = table.open(*range(100), 7)
    assert (table.runtime.length, reused) == (256, 100)
    table.close(part)
    assert table.open(*range(600))[1] == 599


def test_a_content_aside_moves_to_where_an_older_one_was():
    table = Table(3, max_length=600)
    table.open(50, 51)
    long, far = table.open(*range(600), salt=7)[0], table.open(800, 1)[0]
    table.close(far)
    table.close(long)
    table.cache.make_room(0, 1, 2)
    assert long.aside is not None
    assert table.open(902, 1)[0] is long  # next to the one in use
    assert (far.length, far.salt, long.aside) == (600, 7, None)
    assert table.open(*range(600), salt=7)[1] == 599


def test_a_content_aside_is_lent_under_its_own_salt_alone():
    table = Table(max_length=600)
    table.close(table.open(*range(600), salt=7)[0])
    table.close(table.open(900, 1)[0])
    assert any(slot.aside for slot in table.cache.slots)
    assert table.open(*range(600))[1] == 0
    assert table.open(*range(600), salt=7)[1] == 599


def test_a_content_aside_that_is_wholly_lent_from_afar_is_there_once():
    table = Table(6, max_length=600)
    table.open(50, 51)
    long, far = table.open(*range(600))[0], table.open(800, 1, 2, 3)[0]
    table.close(long)
    table.close(far)
    table.cache.make_room(0, 1, 2)
    assert table.open(800, 1, 2, 3, 4) == (long, 4)  # next to the one in use
    assert (far.length, far.aside) == (0, None)
    assert table.open(*range(600))[1] == 599


@pytest.mark.parametrize("size", [100, 600])
def test_the_cache_shrinks_when_that_has_paid(size):
    """Where a move costs 4 of what attention over a position does in one pass."""
    table = Table(max_length=1500)
    long, _ = table.open(*range(1500))
    short, _ = table.open(*range(2000, 2000 + size))
    table.close(long)
    assert table.runtime.length == 1536
    target = table.cache._bucket(size + 5 + 64)
    patience = 4 * size // (1536 - target)
    for _ in range(patience):
        table.cache.make_room(1, 2, 5)
    table.cache.make_room(1, 2, 1400 - size)  # a pass that needs it
    for _ in range(patience + 1):
        assert table.runtime.length == 1536
        table.cache.make_room(1, 2, 5)
        table.check()
    assert table.runtime.length == target
    assert short.length == size
    assert table.open(*range(1500))[1] == 1499


def test_the_cache_grows_with_what_is_read_of_a_prompt():
    """The first chunks of a long prompt see few positions, and pay for no more."""
    table = Table(max_length=1500)
    table.close(table.open(*range(1500))[0], committed=0)
    slot = table.cache.open(ids(*range(1500)))
    lengths = []
    for _ in range(6):
        table.cache.make_room(slot.index, slot.index + 1, 256)
        lengths.append(table.runtime.length)
        slot.length += 250
    assert lengths == [256, 512, 768, 1024, 1280, 1536]


def test_a_cache_of_fixed_length_never_shrinks():
    """Its graph pays for all of it anyway: contents stay where they are."""
    table = Table(max_length=600)
    table.runtime.max_length = 704
    table.close(table.open(*range(600))[0], committed=599)
    table.close(table.open(900, 1)[0])
    for _ in range(20):
        table.cache.make_room(0, 4, 2)
    assert table.runtime.length == 640
    assert all(slot.aside is None for slot in table.cache.slots)
    table.runtime.num_copied = 0
    assert table.open(*range(600))[1] == 599
    assert table.runtime.num_copied == 0


def test_a_pass_cuts_what_closed_sequences_left_but_not_those_in_use():
    table = Table(3, max_length=600)
    left, _ = table.open(*range(250))
    used, _ = table.open(*range(300, 540))
    table.close(left)
    assert table.runtime.length == 256
    table.cache.make_room(0, 2, 16)  # 240 + 16 fit
    assert table.runtime.length == 256
    assert (left.length, used.length) == (240, 240)
    table.cache.make_room(0, 2, 17)
    assert table.runtime.length == 384
    assert used.length == 240


def test_integrity_check_finds_damage():
    for damage in (
        lambda c: setattr(c.slots[1], "length", 257),
        lambda c: setattr(c.slots[1], "length", -1),
        lambda c: setattr(c.slots[1], "index", 0),
        lambda c: setattr(c.slots[1], "tokens", c.slots[0].tokens),
        lambda c: [setattr(c.slots[1], name, [ids(1)]) for name in ("in_use", "aside")],
    ):
        table = Table()
        damage(table.cache)
        with pytest.raises(AssertionError):
            table.cache.check_integrity()
