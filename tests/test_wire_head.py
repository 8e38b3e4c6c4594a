"""A head's calls as arrays: there and back is the call, and so is what it answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import frame, wire
from specdec.types import DecoderInfo, HeadCall, HeadDraft, HeadResult, SamplingParams
from support.trees import trees

SIZE = 3
IDS = st.integers(0, 1 << 20)


class EchoHead:
    """Answers with what it was given to answer."""

    def __init__(self, drafts):
        self.drafts, self.calls = drafts, []

    def describe(self):
        return DecoderInfo(1, 16, 50, "distribution", 1, "fp32", feature_size=SIZE)

    def open(self, sequence_id, prompt_ids, sampling, cache_salt=0, first=0):
        self.opened = (sequence_id, list(prompt_ids), cache_salt, first)
        return first

    def draft(self, calls):
        self.calls = list(calls)
        return HeadResult(self.drafts, 0.25)


def remote_of(head):
    """Over frames, as Triton carries them."""

    def transport(arrays, wanted):
        sent = frame.unpack(frame.pack(arrays, wire.INPUTS), wire.INPUTS)
        results = frame.unpack(frame.pack(wire.serve(head, sent), wire.OUTPUTS), wire.OUTPUTS)
        assert set(results) == set(wanted)
        return results

    return wire.RemoteDecoder(transport)


@st.composite
def calls(draw):
    ids = draw(st.lists(IDS, min_size=1, max_size=5))
    features = np.arange(len(ids) * SIZE, dtype=np.float16).reshape(-1, SIZE)
    return HeadCall(
        draw(st.integers(0, 1 << 60)),
        draw(st.integers(0, 1000)),
        ids,
        features,
        tuple(draw(st.lists(IDS, max_size=3))),
        *(draw(st.integers(0, 64)) for _ in range(3)),
        draw(st.floats(0.0, 1.0)),
    )


@st.composite
def drafts(draw):
    parents = draw(st.one_of(st.just(()), trees()))
    logprobs = [-float(i) for i in range(len(parents))]
    return HeadDraft(tuple(draw(IDS) for _ in parents), tuple(parents), tuple(logprobs))


def plain(call):
    return call._replace(features=call.features.tolist())


@given(st.lists(st.tuples(calls(), drafts()), min_size=1, max_size=5))
def test_a_remote_head_is_the_local_one(pairs):
    sent, answers = [c for c, _ in pairs], [d for _, d in pairs]
    head = EchoHead(answers)
    assert remote_of(head).draft(sent) == HeadResult(answers, 0.25)
    assert [plain(c) for c in head.calls] == [plain(c) for c in sent]
    assert all(c.features.dtype == np.float16 for c in head.calls)


def test_it_describes_itself():
    assert remote_of(EchoHead([])).describe().feature_size == SIZE


def test_arrays_that_do_not_add_up_are_our_fault():
    arrays = {
        "operation": np.array([b"draft"], np.object_),
        **wire.wire_head.encode_calls([HeadCall(1, 0, [4], np.zeros((1, SIZE), np.float16))]),
    }
    with pytest.raises((AssertionError, ValueError)):
        wire.serve(EchoHead([]), {**arrays, "num_tokens": np.array([2], np.int32)})


@pytest.mark.parametrize(("salt", "first"), [(0, 0), (0, 7), (2**61 + 1, 0), (5, 7)])
def test_a_head_learns_where_its_rows_begin(salt, first):
    head = EchoHead([])
    assert remote_of(head).open(3, [1, 2], SamplingParams(), salt, first) == first
    assert head.opened == (3, [1, 2], salt, first)
