"""A head in its caller's process: its limits, and errors that cost drafts alone."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.decoder.local import LocalHead, load_local_head
from specdec.errors import DecoderFailed, InvalidArtifact
from specdec.types import HeadCall, SamplingParams
from support.heads import export_tiny_head, random_head


@pytest.fixture(scope="module")
def head_dir(tiny_artifacts, tmp_path_factory):
    target = tiny_artifacts["fp32"]
    head, _ = random_head(target.parents[1] / "model")
    return export_tiny_head(tmp_path_factory.mktemp("head"), target, head)


def test_it_takes_as_many_sequences_as_run_and_all_that_the_model_can(head_dir):
    head = load_local_head(head_dir, max_sequences=3, num_threads=1)
    info = head.describe()
    assert (info.max_sequences, info.max_sequence_length) == (3, 4096)
    assert info.costs
    assert head.open(5, [3, 4], SamplingParams()) == 0
    features = np.zeros((1, info.feature_size), np.float16)
    call = HeadCall(5, 0, [4], features, max_tokens=4, max_depth=2, width=2)
    (draft,) = head.draft([call]).drafts
    assert draft.token_ids
    head.close([(5, 1)])
    head.reset()
    with pytest.raises(DecoderFailed, match="sequence 5 is not open"):
        head.draft([call])


def test_no_other_model_is_taken_for_a_head(tiny_artifacts):
    with pytest.raises(InvalidArtifact, match="is a llama: expected a head"):
        load_local_head(tiny_artifacts["fp32"], max_sequences=1, num_threads=1)


class Broken:
    def __getattr__(self, name):
        def fail(*_):
            raise ValueError("secret")

        return fail


def test_whatever_fails_in_it_is_a_decoder_that_failed(caplog):
    head = LocalHead(Broken())
    for call in (
        head.describe,
        head.reset,
        lambda: head.open(1, [3], SamplingParams()),
        lambda: head.draft([]),
        lambda: head.close([(1, 0)]),
    ):
        with pytest.raises(DecoderFailed, match="internal error of the head, see"):
            call()
    assert len(caplog.records) == 5
