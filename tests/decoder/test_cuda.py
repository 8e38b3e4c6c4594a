"""Draws where the logits are, on CPU tensors: the sampler's choice, whatever stands beside."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.decoder.cuda import DeviceLogits
from specdec.errors import DecoderFailed
from specdec.sampling import is_plain_greedy, likeliest, sample
from specdec.types import SamplingParams
from support.fake_tensorrt import FakeCuda, FakeTensorRT


def draws(rows, num_tokens):
    cuda = FakeCuda(FakeTensorRT())
    tensor = cuda.torch.from_numpy(rows)
    return DeviceLogits(cuda, tensor).most_likely(slice(0, len(rows)), num_tokens)


def test_most_likely_is_the_sampler_s_choice():
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((40, 3000)) * 4).astype(np.float32)
    rows[3] = rows[3].round()  # ties: the lowest id wins
    rows[4] = 0
    rows[:, 2990:] += 50  # padding columns, never drawn
    found = draws(rows, 2990)
    for row, draw in zip(rows, found, strict=True):
        token_id, logprob = sample(
            row,
            SamplingParams(),
            history=np.zeros(0, np.int32),
            num_prompt_tokens=0,
            position=0,
            vocab_limit=2990,
        )
        assert draw.token_id == token_id
        assert draw.logprob == pytest.approx(logprob, abs=1e-6)
    for i in (0, 3, 17, 39):  # alone or beside others: the same bits
        assert draws(rows[i : i + 1], 2990) == [found[i]]


@pytest.mark.parametrize("count", [1, 8, 64])
def test_likeliest_is_the_host_s_choice(count):
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((40, 3000)) * 4).astype(np.float32)
    rows[3] = rows[3].round()  # ties: the lowest id comes first
    rows[4] = 0
    rows[5] = np.where(rng.random(3000) < 0.5, np.float32(0), np.float32(-0.0))
    rows[6] = -np.abs(rows[6])
    rows[7] *= np.float32(1e37)
    rows[:, 2990:] += 50  # padding columns
    cuda = FakeCuda(FakeTensorRT())
    logits = DeviceLogits(cuda, cuda.torch.from_numpy(rows))
    found = logits.likeliest(slice(1, 40), 2990, count)
    assert found == [likeliest(row[:2990], count).tolist() for row in rows[1:]]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_an_error(wrong):
    rows = np.zeros((2, 10), np.float32)
    rows[1, 4] = wrong
    with pytest.raises(DecoderFailed, match="not finite"):
        draws(rows, 10)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.7},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": ((3, 1.0),)},
        {"bad_words": ((3,),)},
        {"min_tokens": 1},
    ],
)
def test_only_plain_greedy_requests_are_drawn_on_the_card(changes):
    assert is_plain_greedy(SamplingParams())
    assert is_plain_greedy(SamplingParams(temperature=1.0, top_k=1, seed=9))
    assert not is_plain_greedy(SamplingParams(**changes))
