"""Indexed noise: one fixed number for (seed, position, token id), in whatever order it is asked.

A token drawn with it depends on no other draw. On a card: `specdec.decoder.device_sampling`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]
Bits = np.ndarray[Any, np.dtype[np.uint64]]

_WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment: 2^64 / golden ratio, odd
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix(word: int) -> int:
    """SplitMix64's finalizer on one 64-bit word."""
    word = ((word ^ (word >> 30)) * MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * MIX_2) & _WORD
    return word ^ (word >> 31)


def noise_key(seed: int, position: int) -> int:
    """Where the stream of random words for (seed, position) starts, unsigned 64 bit."""
    return _mix((_mix((seed + GOLDEN) & _WORD) + (position + 1) * GOLDEN) & _WORD)


def bits(seed: int, position: int, token_ids: Ints) -> Bits:
    """Random words [len(token_ids)], a pure function of (seed, position, token id).

    SplitMix64 (Steele, Lea, Flood 2014) as a counter-based hash: seed and position are mixed
    into the key, token `i` is element `i` of the stream that starts there.
    """
    words = token_ids.astype(np.uint64)
    words += np.uint64(1)
    words *= np.uint64(GOLDEN)
    words += np.uint64(noise_key(seed, position))
    words ^= words >> np.uint64(30)
    words *= np.uint64(MIX_1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(MIX_2)
    words ^= words >> np.uint64(31)
    return words


def _gumbel_of(words: Bits) -> Floats:
    """Standard Gumbel noise, float64, from the upper 53 bits: within [-3.7, 37.5], never inf."""
    uniform = ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # (0, 1]
    noise: Floats = -np.log(np.maximum(-np.log(uniform), 2.0**-54))
    return noise


def gumbel(seed: int, position: int, token_ids: Ints) -> Floats:
    """Gumbel noise [len(token_ids)] for these ids; any subset equals the full row's entries."""
    return _gumbel_of(bits(seed, position, token_ids))
