"""What `make test-gpu` checks beside texts and logits: trees, draws, candidates, features.

Every check takes loaded decoders and says what it found; `gpu_check` judges and prints.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from specdec.decoder import tree
from specdec.decoder.batch import Share, build
from specdec.decoder.cuda import DeviceLogits
from specdec.decoder.decoder import CachedDecoder
from specdec.decoder.runtimes import Draw, Place
from specdec.export.check import compare
from specdec.sampling import likeliest, sample
from specdec.types import SamplingParams
from support.trees import path, trunk

PARENTS = (-1, 0, 1, 0, 3, 1, -1, 6)  # a trunk of three, branches that branch
NUM_CANDIDATES = 8
LARGE_VOCABULARY = 128_256
# One request of every kind that is drawn on the card.
SAMPLINGS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=0.8),
    "min-p": SamplingParams(temperature=1.0, min_p=0.05),
    "top-k": SamplingParams(temperature=1.0, top_k=50),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9),
    "wide top-p": SamplingParams(temperature=5.0, top_p=0.99),
    "all": SamplingParams(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01),
}


def rows_of(decoder: CachedDecoder, share: Share) -> Any:
    """Logits of one share in a pass of its own, on the card until they are read."""
    runtime, info = decoder._runtime, decoder.info
    lengths = [share.start] * runtime.num_slots
    built = build(
        [share], lengths, length=runtime.length, min_rows=info.min_rows, max_position=4096
    )
    return runtime.forward(built)


class TreeFinding(NamedTuple):
    same_trunk: bool  # to the bit what a chain of those tokens gives
    divergence: float  # nats, of all its rows from those of chains along their paths


def check_tree(decoder: CachedDecoder, prompt: Sequence[int]) -> TreeFinding:
    root = len(prompt) - 1
    drafts = [int(token) for token in prompt[: len(PARENTS)]]
    decoder._runtime.resize(256, [0] * decoder._runtime.num_slots)
    for slot in (0, 1):
        rows_of(decoder, Share(slot, 0, prompt[:root], 1))

    def rows(slot: int, kept: Sequence[int], parents: Sequence[int] = ()) -> np.ndarray:
        tokens = [prompt[root], *(drafts[i] for i in kept)]
        share = Share(slot, root, tokens, len(tokens), parents)
        found: np.ndarray = rows_of(decoder, share)[0 : len(tokens)].copy()
        return found

    found = rows(0, range(len(PARENTS)), tree.branch_parents(PARENTS, root))
    along = [rows(1, path(PARENTS, i))[-1] for i in range(len(PARENTS))]
    kept = trunk(PARENTS)
    chain = rows(1, kept)
    expected = np.stack([chain[0], *along])
    return TreeFinding(
        same_trunk=bool(np.array_equal(found[: 1 + len(kept)], chain)),
        divergence=compare(expected, found).mean_divergence,
    )


def check_candidates(decoder: CachedDecoder, prompt: Sequence[int]) -> bool:
    """Whether the likeliest ids are those the host finds in the same rows."""
    num_tokens, some = decoder.info.vocab_size, slice(1, len(prompt))
    logits = rows_of(decoder, Share(0, 0, prompt, len(prompt)))
    found = decoder._runtime.likeliest(logits, some, num_tokens, NUM_CANDIDATES)
    rows = logits[some]
    return found == [likeliest(row[:num_tokens], NUM_CANDIDATES).tolist() for row in rows]


def check_draws(decoder: CachedDecoder, prompt: Sequence[int]) -> int:
    """How many draws of the model's own logits are not the host's, 7 kinds x 5 seeds a row."""
    logits = rows_of(decoder, Share(0, 0, prompt, len(prompt)))
    places = places_of(range(len(prompt)), num_seeds=5)
    found = decoder._runtime.draw(logits, places, decoder.info.vocab_size)
    assert found is not None
    rows = logits[0 : len(prompt)]
    return num_wrong(rows, places, found, decoder.info.vocab_size)


def check_large_draws(cuda: Any, *, num_rows: int = 48) -> int:
    """The same of random rows of a large vocabulary, steep and flat, with ties."""
    rows = large_rows(num_rows)
    logits = DeviceLogits(cuda, cuda.torch.from_numpy(rows).to(cuda.name))
    places = places_of(range(num_rows), num_seeds=1)
    return num_wrong(rows, places, logits.draw(places, LARGE_VOCABULARY), LARGE_VOCABULARY)


def time_draws(cuda: Any, *, num_rows: int = 16) -> dict[str, float]:
    """Milliseconds to draw at so many rows of a large vocabulary, by kind: the fastest of 10."""
    rows = cuda.torch.from_numpy(large_rows(num_rows)).to(cuda.name)
    found = {}
    for kind, sampling in SAMPLINGS.items():
        places, times = [Place(i, sampling, i) for i in range(num_rows)], []
        for _ in range(10):
            began = time.perf_counter()
            DeviceLogits(cuda, rows).draw(places, LARGE_VOCABULARY)
            times.append(time.perf_counter() - began)
        found[kind] = 1000 * min(times)
    return found


def draw_table(milliseconds: dict[str, float], num_wrong: int) -> Any:
    from rich.table import Table

    outcome = f"{num_wrong} are not the host's" if num_wrong else "all the host's"
    made = Table(title=f"ms: draws at 16 rows of {LARGE_VOCABULARY} logits; {outcome}")
    for kind in milliseconds:
        made.add_column(kind, justify="right")
    made.add_row(*(f"{found:.2f}" for found in milliseconds.values()))
    return made


def large_rows(num_rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((num_rows, LARGE_VOCABULARY)).astype(np.float32)
    rows *= np.linspace(0.5, 6, num_rows, dtype=np.float32)[:, None]
    rows[::5] = rows[::5].round()
    return rows


def places_of(rows: Sequence[int], *, num_seeds: int) -> list[Place]:
    """Every kind of request at every row, mixed."""
    kinds = itertools.product(rows, range(num_seeds), SAMPLINGS.values())
    return [
        Place(row, replace(sampling, seed=2**63 + 7919 * seed), 31 * row)
        for row, seed, sampling in kinds
    ]


def num_wrong(
    rows: np.ndarray, places: Sequence[Place], found: Sequence[Draw], num_tokens: int
) -> int:
    """Draws that are not `sample`'s: another token, or a log-probability 1e-5 away."""
    wrong = 0
    for place, draw in zip(places, found, strict=True):
        token_id, logprob = sample(
            rows[place.row],
            place.sampling,
            history=np.zeros(0, np.int32),
            num_prompt_tokens=0,
            position=place.position,
            vocab_limit=num_tokens,
        )
        wrong += draw.token_id != token_id or not abs(draw.logprob - logprob) < 1e-5
    return wrong


def check_features(
    reference: CachedDecoder, decoder: CachedDecoder, texts: Sequence[Sequence[int]]
) -> float:
    """Median relative error of a row, of what tells it from the mean row; NaN: no features."""
    errors = []
    for text in texts:
        expected, found = (_features(d, text) for d in (reference, decoder))
        apart = np.linalg.norm(expected - expected.mean(axis=0), axis=1)
        errors.append(np.linalg.norm(found - expected, axis=1) / apart)
    return float(np.median(np.concatenate(errors)))


def _features(decoder: CachedDecoder, text: Sequence[int]) -> np.ndarray:
    runtime, info = decoder._runtime, decoder.info
    share = Share(0, 0, text, 1)
    built = build(
        [share],
        [0] * runtime.num_slots,
        length=runtime.length,
        min_rows=info.min_rows,
        max_position=4096,
    )
    _, features = runtime.forward_with_features(built)
    return features[: len(text)].astype(np.float64)
