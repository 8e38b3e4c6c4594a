"""Bitwise equality on a real exported model: ids and log-probabilities, at every precision.

The reference is plain decoding of one sequence alone in a fresh decoder.
"""

from __future__ import annotations

import math
import random

import pytest

from specdec.config import DecoderConfig
from specdec.decoder.decoder import CachedDecoder, load_decoder
from specdec.types import Extend, SamplingParams
from support.decoding import GREEDY, drafts_from, generate, no_drafts, run_together, steps

SAMPLED = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    seed=123,
    min_tokens=5,
    end_ids=(2,),
)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED}
NUM_TOKENS = 20


def load(directory, **config) -> CachedDecoder:
    return load_decoder(DecoderConfig(max_sequences=8, num_threads=2, **config), directory)


def text(seed: int, size: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 300) for _ in range(size)]


PROMPT = text(0, 37)


@pytest.fixture
def decoder(artifact_dir) -> CachedDecoder:
    return load(artifact_dir)


@pytest.fixture(params=SAMPLINGS)
def case(request, artifact_dir):
    """(sampling, reference) of PROMPT."""
    sampling = SAMPLINGS[request.param]
    return sampling, generate(load(artifact_dir), PROMPT, sampling, NUM_TOKENS)


def test_the_probe_proves_it(decoder):
    info = decoder.describe()
    assert (info.exactness, info.vocab_size) == ("bitwise", 320)
    assert info.min_rows in (1, 2, 4, 8, 16)
    assert info.max_sequence_length == 2048


def test_drafts(decoder, case):
    sampling, reference = case
    for num_drafts in range(17):
        for wrong_at in {None, 0, num_drafts // 2, num_drafts - 1}:
            drafter = drafts_from(PROMPT + reference[0], num_drafts, wrong_at)
            found = generate(decoder, PROMPT, sampling, NUM_TOKENS, drafter=drafter)
            assert found == reference, (num_drafts, wrong_at)
            decoder.reset()


WIDTHS = [*range(60, 70), *range(124, 134), *range(188, 196), *range(252, 262), 321, 385]


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "int8", "w8a8", "int4"])
def test_a_row_in_a_pass_of_any_width(tiny_artifacts, precision, num_threads):
    """As the pass's first row and as its last, which a thread may have by itself."""
    config = DecoderConfig(max_sequences=8, num_threads=num_threads)
    decoder = load_decoder(config, tiny_artifacts[precision])
    end = len(PROMPT) - 1

    def last_row(width: int, place: int):
        """Beside chunks of seven sequences."""
        decoder.reset()
        decoder.open(0, PROMPT, GREEDY)
        decoder.extend([Extend(0, 0, PROMPT[:end], 0)])
        sizes = [(width - 1 + i) // 7 for i in range(7)]
        calls = []
        for i, size in enumerate(sizes, start=1):
            decoder.open(i, text(width + i, size + 1), GREEDY)
            calls.append(Extend(i, 0, text(width + i, size), 0))
        calls.insert(place, Extend(0, end, PROMPT[end:], 1))
        found = decoder.extend(calls).sequences[place]
        return found.token_ids, found.logprobs

    decoder.open(0, PROMPT, GREEDY)
    decoder.extend([Extend(0, 0, PROMPT[:end], 0)])
    alone = decoder.extend([Extend(0, end, PROMPT[end:], 1)]).sequences[0]
    expected = alone.token_ids, alone.logprobs
    assert [(w, p) for w in WIDTHS for p in (0, 7) if last_row(w, p) != expected] == []


def test_draft_steps(artifact_dir, case):
    """The same tokens as a decoder of its own, several a call."""
    sampling, reference = case
    decoder = load(artifact_dir)
    decoder.open(1, PROMPT, sampling)
    found = decoder.extend([Extend(1, 0, PROMPT, 1, NUM_TOKENS - 1)]).sequences[0]
    assert (list(found.token_ids), list(found.logprobs)) == reference


def test_draft_steps_that_stop(artifact_dir, case):
    """Wherever each ends, alone or as its neighbours come to an end before or behind it."""
    sampling, reference = case
    decoder = load(artifact_dir)
    for i in range(5):
        decoder.open(i, PROMPT, sampling)
    for turn in range(0, NUM_TOKENS, 5):
        sizes = [1 + (turn + 3 * i) % NUM_TOKENS for i in range(5)]
        calls = [
            Extend(i, 0, PROMPT, 1, 20, least_logprob=math.nextafter(sum(reference[1][:size]), 1.0))
            for i, size in enumerate(sizes)
        ]
        found = decoder.extend(calls).sequences
        for size, each in zip(sizes, found, strict=True):
            expected = reference[0][:size], reference[1][:size]
            assert (list(each.token_ids), list(each.logprobs)) == expected


def test_chunks(artifact_dir, case):
    sampling, reference = case
    for chunk in (1, 3, 8, 32):
        found = generate(load(artifact_dir), PROMPT, sampling, NUM_TOKENS, chunk=chunk)
        assert found == reference, chunk


@pytest.mark.parametrize("place", [0, 3, 7])
def test_neighbours_and_slot(decoder, case, place):
    """Others of other lengths, chunks and drafts come and go beside it, in any slot."""
    sampling, reference = case
    sequences = []
    for i in range(8):
        if i == place:
            drafter = drafts_from(PROMPT + reference[0], 4, 2)
            sequences.append(
                steps(decoder, i, PROMPT, sampling, NUM_TOKENS, drafter=drafter, chunk=10)
            )
        else:
            drafter = drafts_from(text(i, 200), i) if i % 2 else no_drafts
            prompt, count = text(i + 50, 3 + 11 * i), 5 + 4 * i
            sequences.append(
                steps(decoder, i, prompt, GREEDY, count, drafter=drafter, chunk=16 + i)
            )
    assert run_together(decoder, sequences)[place] == reference
    decoder._cache.check_integrity()


def test_cached_prefix_in_place(decoder, case):
    sampling, reference = case
    generate(decoder, PROMPT[:20], num_tokens=1)
    assert decoder.open(5, PROMPT, sampling) == 20
    decoder.close([(5, 20)])
    assert generate(decoder, PROMPT, sampling, NUM_TOKENS) == reference


def test_cached_prefix_copied_from_a_sequence_in_use(decoder, case):
    sampling, reference = case
    other = PROMPT[:25] + text(9, 30)
    decoder.open(1, other, GREEDY)
    decoder.extend([Extend(1, 0, other, 1, 3)])
    assert decoder.open(2, PROMPT, sampling) == 25
    decoder.close([(2, 25)])
    assert generate(decoder, PROMPT, sampling, NUM_TOKENS, sequence_id=2) == reference


def test_a_cache_that_grows_meanwhile(decoder, case):
    sampling, reference = case
    long = text(3, 520)
    both = [
        steps(decoder, 1, PROMPT, sampling, NUM_TOKENS),
        steps(decoder, 2, long, GREEDY, 2, chunk=50),
    ]
    lengths = {decoder._runtime.length}
    forward = decoder._runtime.forward

    def note(batch):
        lengths.add(decoder._runtime.length)
        return forward(batch)

    decoder._runtime.forward = note
    assert run_together(decoder, both)[0] == reference
    assert lengths == {256, 384, 512, 640}


def test_a_cache_that_shrinks_meanwhile(decoder, case):
    """Behind a long sequence that ends, whose content is read again later."""
    sampling, reference = case
    long = text(3, 520)
    first = generate(decoder, long, sampling, 5, sequence_id=1)
    running = steps(decoder, 2, PROMPT, sampling, NUM_TOKENS)
    decoder.open(1, text(5, 600), GREEDY)
    decoder.extend([Extend(1, 0, text(5, 600), 1)])
    lengths = [decoder._runtime.length]
    decoder.close([(1, 600)])
    forward = decoder._runtime.forward

    def note(batch):
        lengths.append(decoder._runtime.length)
        return forward(batch)

    decoder._runtime.forward = note
    assert run_together(decoder, [running])[0] == reference
    assert sorted({*lengths}) == [256, 640]
    assert decoder.open(1, long, sampling) >= 519  # what was put aside is back
    decoder.close([(1, 519)])
    assert generate(decoder, long, sampling, 5, sequence_id=1) == first
    decoder._cache.check_integrity()


def test_a_bucket_below_the_first(artifact_dir, case):
    """Of a decoder for short sequences."""
    sampling, reference = case
    decoder = load(artifact_dir, max_sequence_length=100)
    assert decoder._runtime.length == 192
    assert generate(decoder, PROMPT, sampling, NUM_TOKENS) == reference


def test_random_traffic_equals_fresh_decoders(artifact_dir):
    """Waves of requests that share prefixes, over what earlier waves left in the cache or aside."""
    rng = random.Random(1)
    decoder = load(artifact_dir)
    fresh = load(artifact_dir)
    every = [text(s, n) for s, n in ((20, 30), (21, 90), (22, 200), (23, 500))]
    for stems in (every[:3], every, every[:2], every):
        wave = rng.randrange(1000)
        prompts = [rng.choice(stems) + text(100 * wave + i, rng.randint(1, 9)) for i in range(6)]
        sequences, references = [], []
        for i, prompt in enumerate(prompts):
            sampling = rng.choice([GREEDY, SAMPLED])
            references.append(generate(fresh, prompt, sampling, 10))
            fresh._cache.close(fresh._cache.slots[0], 0)  # nothing to reuse
            drafter = drafts_from(prompt + references[-1][0], rng.randint(0, 8), rng.randint(0, 8))
            chunk = rng.choice([7, 64])
            sequences.append(steps(decoder, i, prompt, sampling, 10, drafter=drafter, chunk=chunk))
        assert run_together(decoder, sequences) == references
        decoder._cache.check_integrity()


def test_fewer_rows_than_the_probe_found_would_not_be_exact(artifact_dir):
    """The reason for the padding, and that these tests can tell."""
    decoder = load(artifact_dir)
    if decoder.describe().min_rows == 1:
        pytest.skip("every shape is stable on this processor")
    reference = generate(decoder, PROMPT, GREEDY, 60)
    careless = load(artifact_dir)
    careless.info = careless.info._replace(min_rows=1)
    assert generate(careless, PROMPT, GREEDY, 60) != reference
