"""Models in their caller's process: their limits, and errors as of a model behind a wire."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.config import DecoderConfig
from specdec.decoder.local import LocalDecoder, LocalHead, load_local_decoder, load_local_head
from specdec.errors import DecoderFailed, InvalidArtifact, Overloaded
from specdec.types import Extend, HeadCall, SamplingParams
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


def test_a_target_is_of_the_size_that_is_asked_for(tiny_artifacts):
    sizes = DecoderConfig(max_sequences=2, max_sequence_length=64, num_threads=1)
    polls = []
    target = load_local_decoder(tiny_artifacts["fp32"], sizes, lambda: polls.append(len(polls)))
    info = target.describe()
    assert (info.max_sequences, info.max_sequence_length) == (2, 64)
    assert target.open(5, [3, 4, 5], SamplingParams(), 7) == 0
    assert not polls
    (found,) = target.extend([Extend(5, 0, [3, 4, 5], 1)]).sequences
    assert len(found.token_ids) == 1
    assert len(polls) == 1
    target.close([(5, 3)])
    assert target.open(6, [3, 4, 5], SamplingParams(), 7) == 2  # its salt came along
    target.reset()
    with pytest.raises(DecoderFailed, match="sequence 6 is not open"):
        target.extend([Extend(6, 2, [5], 1)])


class Broken:
    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        def fail(*_):
            raise self._error

        return fail


def calls_of(model):
    yield model.describe
    yield model.reset
    yield lambda: model.open(1, [3], SamplingParams())
    yield lambda: model.close([(1, 0)])
    yield lambda: model.draft([]) if isinstance(model, LocalHead) else model.extend([])


@pytest.mark.parametrize("kind", [LocalHead, LocalDecoder])
@pytest.mark.parametrize(
    ("error", "message", "num_logged"),
    [
        (ValueError("secret"), "internal error of a model, see", 5),
        (DecoderFailed("full"), "^full$", 0),
        (Overloaded("full"), "^full$", 0),
    ],
)
def test_whatever_fails_in_it_is_a_decoder_that_failed(caplog, kind, error, message, num_logged):
    for call in calls_of(kind(Broken(error))):
        with pytest.raises(DecoderFailed, match=message):
            call()
    assert len(caplog.records) == num_logged
