"""Draws where the logits are, on CPU tensors: the sampler's choice, whatever stands beside."""

from __future__ import annotations

import numpy as np
import pytest

from specdec import noise
from specdec.decoder import device_sampling
from specdec.decoder.cuda import DeviceLogits
from specdec.decoder.runtimes import Place
from specdec.errors import DecoderFailed
from specdec.sampling import leaves_logits, likeliest, sample
from specdec.types import SamplingParams
from support.fake_tensorrt import FakeCuda, FakeTensorRT

torch = pytest.importorskip("torch")

NO_HISTORY = np.zeros(0, np.int32)
# Every filter alone and together, off in each of its ways, and beyond the first thousand tokens.
SAMPLINGS = [
    SamplingParams(**changes)
    for changes in (
        {},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 3.0},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 0.7, "min_p": 1.0},
        {"temperature": 0.9, "top_k": 2},
        {"temperature": 1.5, "top_k": 50},
        {"temperature": 2.0, "top_k": 1500},
        {"temperature": 2.0, "top_k": 9999},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.0, "top_p": 0.01},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 5.0, "top_p": 0.95},
        {"temperature": 1.0, "top_k": 40, "top_p": 0.8},
        {"temperature": 4.0, "top_k": 1400, "top_p": 0.99},
        {"temperature": 1.3, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    )
]


def on_host(row, place, num_tokens):
    return sample(
        row,
        place.sampling,
        history=NO_HISTORY,
        num_prompt_tokens=0,
        position=place.position,
        vocab_limit=num_tokens,
    )


def on_device(rows, places, num_tokens):
    return device_sampling.draw(torch, torch.from_numpy(rows), places, num_tokens)


def random_rows(rng, count, vocab=3000, spread=4.0):
    return (rng.standard_normal((count, vocab)) * spread).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 7, 130_000])
def test_the_noise_is_the_host_s(seed, position):
    ids = np.array([0, 1, 2, 77, 128_255, 2**19 - 1])
    place = Place(0, SamplingParams(temperature=1.0, seed=seed), position)
    tensor = torch.from_numpy(ids)
    found = device_sampling._gumbel(torch, device_sampling._keys(torch, tensor, [place]), tensor)
    np.testing.assert_allclose(found[0], noise.gumbel(seed, position, ids), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("word", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15])
@pytest.mark.parametrize("count", [11, 27, 30, 31])
def test_a_shift_brings_zeros(word, count):
    words = torch.tensor([device_sampling._signed(word)])
    assert device_sampling._shifted(words, count).tolist() == [word >> count]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draw_is_the_sampler_s(sampling):
    rng = np.random.default_rng(0)
    rows = random_rows(rng, 300)
    rows[100:200] = random_rows(rng, 100, spread=0.5)
    rows[3::7] = rows[3::7].round()  # ties: the lowest id wins, or stays
    rows[4] = 0
    rows[5] = np.where(rng.random(3000) < 0.5, np.float32(0), np.float32(-0.0))
    rows[6] *= np.float32(1e37)
    rows[:, 2990:] += 50  # padding columns, never drawn
    seeds = rng.integers(0, 2**64, 300, np.uint64).tolist()
    places = [
        Place(i, SamplingParams(**{**_fields(sampling), "seed": seeds[i]}), 13 * i)
        for i in range(300)
    ]
    for place, draw in zip(places, on_device(rows, places, 2990), strict=True):
        token_id, logprob = on_host(rows[place.row], place, 2990)
        assert draw.token_id == token_id, place
        assert draw.logprob == pytest.approx(logprob, abs=1e-6)


def _fields(sampling):
    return {name: getattr(sampling, name) for name in sampling.__dataclass_fields__}


def test_a_large_vocabulary_goes_through_every_width():
    rng = np.random.default_rng(1)
    rows = random_rows(rng, 4, vocab=128_256, spread=1.0)
    for sampling in SAMPLINGS:
        places = [Place(i, sampling, i) for i in range(4)]
        found = on_device(rows, places, 128_000)
        assert [d.token_id for d in found] == [on_host(rows[p.row], p, 128_000)[0] for p in places]


def test_a_row_s_draw_depends_on_nothing_beside_it():
    """Requests of every kind in one pass, in any order, twice at one row: the same bits."""
    rng = np.random.default_rng(2)
    rows = random_rows(rng, 50)
    places = [Place(i % 50, SAMPLINGS[i % len(SAMPLINGS)], i) for i in range(120)]
    together = on_device(rows, places, 3000)
    for i in rng.permutation(120)[:40]:
        assert on_device(rows, [places[i]], 3000) == [together[i]]
    order = rng.permutation(120)
    assert on_device(rows, [places[i] for i in order], 3000) == [together[i] for i in order]


def test_draws_follow_the_distribution():
    """Of the device's own, whatever the host does: 20000 positions of one row, top-k 4."""
    row = np.log(np.array([[0.1, 0.4, 0.3, 0.15, 0.05]], np.float32))
    sampling = SamplingParams(temperature=1.0, top_k=4, seed=3)
    found = on_device(row, [Place(0, sampling, i) for i in range(20_000)], 5)
    counts = np.bincount([d.token_id for d in found], minlength=5) / 20_000
    np.testing.assert_allclose(counts, np.array([0.1, 0.4, 0.3, 0.15, 0]) / 0.95, atol=0.015)


@pytest.mark.parametrize("count", [1, 8, 64])
def test_likeliest_is_the_host_s_choice(count):
    rng = np.random.default_rng(1)
    rows = random_rows(rng, 40, vocab=2990)
    rows[3] = rows[3].round()  # ties: the lowest id comes first
    rows[4] = 0
    rows[5] = np.where(rng.random(2990) < 0.5, np.float32(0), np.float32(-0.0))
    rows[6] = -np.abs(rows[6])
    rows[7] *= np.float32(1e37)
    found = device_sampling.likeliest(torch, torch.from_numpy(rows), count)
    assert found == [likeliest(row, count).tolist() for row in rows]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_logits_that_are_not_finite_are_an_error(wrong, sampling):
    rows = np.zeros((2, 10), np.float32)
    rows[1, 4] = wrong
    with pytest.raises(DecoderFailed, match="some logits of 1 rows are not finite"):
        on_device(rows, [Place(0, sampling, 0), Place(1, sampling, 0)], 10)
    rows[1] = wrong
    with pytest.raises(DecoderFailed, match="not finite"):
        on_device(rows, [Place(1, sampling, 0)], 10)


def test_a_fault_of_the_card_is_one_of_the_decoder(monkeypatch):
    cuda = FakeCuda(FakeTensorRT())
    logits = DeviceLogits(cuda, torch.zeros(2, 10))

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "isfinite", fail)
    with pytest.raises(DecoderFailed, match="behind the forward pass: CUDA out of memory"):
        logits.draw([Place(1, SAMPLINGS[2], 0)], 10)


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": ((3, 1.0),)},
        {"bad_words": ((3,),)},
        {"min_tokens": 1},
    ],
)
def test_what_needs_the_tokens_before_it_is_drawn_on_the_host(changes):
    assert all(leaves_logits(sampling) for sampling in SAMPLINGS)
    edited = SamplingParams(temperature=0.7, **changes)
    assert not leaves_logits(edited)
    with pytest.raises(AssertionError):
        on_device(np.zeros((1, 5), np.float32), [Place(0, edited, 0)], 5)
