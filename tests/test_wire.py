"""Decoder calls as arrays: there and back is the call, and plain calls carry nothing more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import wire
from specdec.types import Extend
from support.decoding import GREEDY
from support.fakes import VOCAB_SIZE, ScriptedDecoder
from support.trees import trees

PLAIN = {
    "operation",
    "sequence_ids",
    "starts",
    "num_tokens",
    "token_ids",
    "num_outputs",
    "num_draft_steps",
}
PROMPT = [3, 1, 4, 1, 5]


class Link:
    """Both ends, with everything that crosses."""

    def __init__(self) -> None:
        self.decoder = ScriptedDecoder()
        self.remote = wire.RemoteDecoder(self.transport)
        self.sent: dict[str, np.ndarray] = {}
        self.wanted: tuple[str, ...] = ()

    def transport(self, arrays, wanted):
        self.sent, self.wanted = arrays, tuple(wanted)
        assert all(a.ndim == 1 and a.dtype == wire.INPUTS[n] for n, a in arrays.items())
        results = wire.serve(self.decoder, arrays)
        assert set(results) == set(wanted)
        assert all(a.ndim == 1 and a.dtype == wire.OUTPUTS[n] for n, a in results.items())
        return results


def extends():
    """Chains, trees and prefill chunks, with candidates or without."""
    tokens = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=4)
    candidates = st.integers(0, 3)
    chain = st.builds(
        lambda ids, draft_steps, n: Extend(0, 0, ids, len(ids), draft_steps, num_candidates=n),
        tokens, st.integers(0, 3), candidates,
    )  # fmt: skip
    chunk = st.builds(lambda ids, n: Extend(0, 0, ids, 0, num_candidates=n), tokens, candidates)
    tree = st.builds(
        lambda ids, parents, n: Extend(
            0, 0, ids + [7] * len(parents), 1 + len(parents), 0, parents, n
        ),
        tokens, trees(6), candidates,
    )  # fmt: skip
    return st.one_of(chain, chunk, tree)


@given(st.lists(extends(), max_size=6))
def test_a_remote_decoder_is_the_local_one(some):
    link, local = Link(), ScriptedDecoder()
    calls = [call._replace(sequence_id=i) for i, call in enumerate(some)]
    for decoder in (link.remote, local):
        for i in range(len(calls)):
            decoder.open(i, PROMPT, GREEDY)
    assert link.remote.extend(calls).sequences == local.extend(calls).sequences
    received = [c._replace(parents=tuple(c.parents)) for c in link.decoder.calls[-1]]
    assert received == calls
    assert ("parents" in link.sent) == any(c.parents for c in calls)
    assert ("candidate_ids" in link.wanted) == any(c.num_candidates for c in calls)


def test_plain_calls_carry_nothing_more():
    link = Link()
    link.remote.open(1, PROMPT, GREEDY)
    link.remote.extend([Extend(1, 0, PROMPT, 3, 2)])
    assert set(link.sent) == PLAIN
    assert link.wanted == wire.RESULTS["extend"]


def test_only_what_a_call_needs_crosses():
    link = Link()
    link.remote.open(1, PROMPT, GREEDY)
    link.remote.extend([Extend(1, 0, [*PROMPT, 6, 7], 3, parents=(-1, -1))])
    assert set(link.sent) == PLAIN | {"num_parents", "parents"}
    assert link.wanted == wire.RESULTS["extend"]
    link.remote.extend([Extend(1, 0, PROMPT, 1, num_candidates=2)])
    assert set(link.sent) == PLAIN | {"num_candidates"}
    assert link.wanted == (*wire.RESULTS["extend"], "candidate_ids")


def test_a_chain_beside_a_tree_stays_a_chain():
    link = Link()
    calls = [
        Extend(1, 0, PROMPT, 3, 2),
        Extend(2, 0, [*PROMPT, 6, 7, 8], 4, parents=(-1, 0, 0), num_candidates=2),
    ]
    for call in calls:
        link.remote.open(call.sequence_id, PROMPT, GREEDY)
    result = link.remote.extend(calls)
    assert link.sent["num_parents"].tolist() == [0, 3]
    assert link.sent["parents"].tolist() == [-1, 0, 0]
    assert [len(s.token_ids) for s in result.sequences] == [5, 4]
    assert result.sequences[0].candidate_ids == ()
    assert [len(c) for c in result.sequences[1].candidate_ids] == [2, 2, 2, 2]


def test_arrays_that_do_not_add_up_are_our_fault():
    link = Link()
    link.remote.open(1, PROMPT, GREEDY)
    link.remote.extend([Extend(1, 0, [*PROMPT, 6, 7], 3, parents=(-1, -1))])
    with pytest.raises(AssertionError):
        wire.serve(link.decoder, {**link.sent, "parents": np.array([-1], np.int32)})
    with pytest.raises(AssertionError):
        wire.serve(link.decoder, {**link.sent, "token_ids": np.array([1, 2], np.int32)})
