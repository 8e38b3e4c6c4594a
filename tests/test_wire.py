"""Decoder calls as arrays: there and back is the call, and plain calls carry nothing more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import wire
from specdec.types import Extend
from support.decoding import GREEDY
from support.fakes import FEATURE_SIZE, VOCAB_SIZE, ScriptedDecoder, features_after
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
    """Chains, trees and prefill chunks, with candidates and features or without."""
    tokens = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=4)
    chain = st.builds(
        lambda ids, draft_steps, least: Extend(
            0, 0, ids, len(ids), draft_steps, least_logprob=least
        ),
        tokens, st.integers(0, 3), st.sampled_from((-math.inf, -90.5, -30.0, 0.0)),
    )  # fmt: skip
    chunk = st.builds(lambda ids: Extend(0, 0, ids, 0), tokens)
    tree = st.builds(
        lambda ids, parents: Extend(
            0, 0, ids + [7] * len(parents), 1 + len(parents), 0, parents
        ),
        tokens, trees(6),
    )  # fmt: skip
    return st.builds(
        lambda call, n, wants, follows: call._replace(
            num_candidates=n,
            wants_features=wants,
            follows_draws=follows and not call.num_draft_steps,
        ),
        st.one_of(chain, chunk, tree), st.integers(0, 3), st.booleans(), st.booleans(),
    )  # fmt: skip


def plain(sequences):
    """With features as lists, which compare as the rest does."""
    return [
        s._replace(features=None if s.features is None else s.features.tolist()) for s in sequences
    ]


@given(st.lists(extends(), max_size=6))
def test_a_remote_decoder_is_the_local_one(some):
    link, local = Link(), ScriptedDecoder()
    calls = [call._replace(sequence_id=i) for i, call in enumerate(some)]
    for decoder in (link.remote, local):
        for i in range(len(calls)):
            decoder.open(i, PROMPT, GREEDY)
    found, expected = link.remote.extend(calls).sequences, local.extend(calls).sequences
    assert plain(found) == plain(expected)
    assert all(s.features is None or s.features.dtype == np.float16 for s in found)
    received = [c._replace(parents=tuple(c.parents)) for c in link.decoder.calls[-1]]
    assert received == calls
    assert ("parents" in link.sent) == any(c.parents for c in calls)
    assert ("candidate_ids" in link.wanted) == any(c.num_candidates for c in calls)
    assert ("features" in link.wanted) == any(c.wants_features for c in calls)
    assert ("num_drafted" in link.wanted) == any(c.least_logprob > -math.inf for c in calls)


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
    link.remote.extend([Extend(1, 0, PROMPT, 1, wants_features=True)])
    assert set(link.sent) == PLAIN | {"wants_features"}
    assert link.wanted == (*wire.RESULTS["extend"], "features")
    link.remote.extend([Extend(1, 0, PROMPT, 2, follows_draws=True)])
    assert set(link.sent) == PLAIN | {"follows_draws"}
    link.remote.extend([Extend(1, 0, PROMPT, 1, 2, least_logprob=-0.5)])
    assert set(link.sent) == PLAIN | {"least_logprobs"}
    assert link.wanted == (*wire.RESULTS["extend"], "num_drafted")


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


def test_drafts_that_stop_are_as_long_as_they_are():
    """Beside those that do not, and behind more than one output."""
    link = Link()
    calls = [
        Extend(1, 0, PROMPT, 3, 4, least_logprob=0.0),
        Extend(2, 0, PROMPT, 1, 4),
        Extend(3, 0, PROMPT, 0),
        Extend(4, 0, PROMPT, 2, 4, least_logprob=-1e9),
    ]
    for call in calls:
        link.remote.open(call.sequence_id, PROMPT, GREEDY)
    result = link.remote.extend(calls)
    assert link.sent["least_logprobs"].tolist() == [0.0, -math.inf, -math.inf, -1e9]
    assert [len(s.token_ids) for s in result.sequences] == [3, 5, 0, 6]
    assert [len(s.logprobs) for s in result.sequences] == [3, 5, 0, 6]


def test_a_threshold_that_is_none_crosses_to_be_refused():
    link = Link()
    link.remote.open(1, PROMPT, GREEDY)
    link.remote.extend([Extend(1, 0, PROMPT, 1, 2, least_logprob=math.nan)])
    assert math.isnan(link.decoder.calls[-1][0].least_logprob)


def test_arrays_that_do_not_add_up_are_our_fault():
    link = Link()
    link.remote.open(1, PROMPT, GREEDY)
    link.remote.extend([Extend(1, 0, [*PROMPT, 6, 7], 3, parents=(-1, -1))])
    with pytest.raises(AssertionError):
        wire.serve(link.decoder, {**link.sent, "parents": np.array([-1], np.int32)})
    with pytest.raises(AssertionError):
        wire.serve(link.decoder, {**link.sent, "token_ids": np.array([1, 2], np.int32)})


def test_features_go_to_who_wants_them():
    link = Link()
    calls = [
        Extend(1, 0, PROMPT, 0),
        Extend(2, 0, PROMPT, 1, 2, wants_features=True),
        Extend(3, 0, [*PROMPT, 6, 7], 3, parents=(-1, -1), wants_features=True),
    ]
    for call in calls:
        link.remote.open(call.sequence_id, PROMPT, GREEDY)
    none, chain, tree = (s.features for s in link.remote.extend(calls).sequences)
    assert none is None
    assert (chain.shape, tree.shape) == ((5, FEATURE_SIZE), (7, FEATURE_SIZE))
    for rows, texts in (
        (chain, [PROMPT[:i] for i in range(1, 6)]),
        (tree[5:], [[*PROMPT, 6], [*PROMPT, 7]]),
    ):
        assert np.array_equal(rows, [features_after(text) for text in texts])
    assert link.remote.describe().feature_size == FEATURE_SIZE


def test_a_salt_crosses_where_there_is_one():
    link = Link()
    link.remote.open(1, PROMPT, GREEDY)
    assert "cache_salt" not in link.sent
    link.remote.open(2, PROMPT, GREEDY, 2**61 + 1)
    assert link.decoder.salts == {1: 0, 2: 2**61 + 1}
