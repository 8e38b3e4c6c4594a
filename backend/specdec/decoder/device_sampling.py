"""The sampler's draws where the logits are: `specdec.sampling`, many rows at once, in torch.

The noise is the same to the bit, so a token is the one the host would draw, unless two things
that should differ agree to the last digits:

    noise, scaled logits   float64 here and there; a logarithm may round otherwise, 1e-16 of it
    top-p                  the host adds up probabilities in float32, 1e-7 of their sum: a token
                           whose end of the nucleus lies that near to `top_p` may stay or go

What a row draws depends on that row alone, whatever stands beside it: everything is elementwise
or a maximum, but for sums of probabilities, which are of integers, whose order cannot matter.

Knows nothing of TensorRT, streams or sequences, and not which device its tensors are on. Penalties,
bias and masks are the host's: they need what came before a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from specdec.decoder.runtimes import Draw, Place
from specdec.errors import DecoderFailed
from specdec.noise import GOLDEN, MIX_1, MIX_2, noise_key
from specdec.sampling import is_greedy, leaves_logits
from specdec.types import SamplingParams

_ROWS_AT_ONCE = 16  # temporaries of some 60 bytes for each of their logits
_FIRST = 1024  # likeliest tokens that top-k and top-p look at before they order all
_SCALE = 1 << 43
_MAX_TOKENS = 1 << 19  # so many shares of at most _SCALE fit 63 bits
_Ids = Callable[[Any, Any, Seq[Place]], Any]


def draw(torch: Any, logits: Any, places: Seq[Place], num_tokens: int) -> list[Draw]:
    """What `specdec.sampling.sample` draws at each of `places` (one at least) from ids below
    `num_tokens`.

    `logits`: float32 [R, V]. Log-probabilities are of float64 sums: those of the host may differ
    in the seventh digit. Raises `DecoderFailed`: a logit is NaN or infinite.
    """
    assert num_tokens <= _MAX_TOKENS, num_tokens
    order: list[int] = []
    parts: list[tuple[Any, Any]] = []  # they are read when all are queued
    for ids_of in (_greedy, _whole, _filtered):
        chosen = [i for i, place in enumerate(places) if _method(place.sampling) is ids_of]
        for start in range(0, len(chosen), _ROWS_AT_ONCE):
            some = chosen[start : start + _ROWS_AT_ONCE]
            rows = _rows(logits, [places[i].row for i in some])[:, :num_tokens]
            ids = ids_of(torch, rows, [places[i] for i in some])
            order += some
            parts.append(_measure(torch, rows, ids))
    numbers = torch.cat([numbers for numbers, _ in parts]).tolist()
    below = torch.cat([below for _, below in parts]).tolist()
    wrong = sum(not finite for _, _, finite in numbers)
    if wrong:
        raise DecoderFailed(f"some logits of {wrong} rows are not finite")
    found = {
        i: Draw(token_id, apart - math.log(mass / _SCALE))
        for i, (token_id, mass, _), apart in zip(order, numbers, below, strict=True)
    }
    return [found[i] for i in range(len(places))]


def likeliest(torch: Any, logits: Any, count: int) -> list[list[int]]:
    """What `specdec.sampling.likeliest` finds in each row of logits, float32 [R, V], finite."""
    parts = logits.split(_ROWS_AT_ONCE)
    return [ids for part in parts for ids in _ordered(torch, part, count).tolist()]


def _method(sampling: SamplingParams) -> _Ids:
    assert leaves_logits(sampling), sampling
    if is_greedy(sampling):
        return _greedy
    return _filtered if sampling.top_k > 0 or sampling.top_p < 1 else _whole


def _rows(logits: Any, rows: list[int]) -> Any:
    """A view where they follow one another, as those of one kind of request mostly do."""
    first, end = rows[0], rows[-1] + 1
    return logits[first:end] if rows == list(range(first, end)) else logits[rows]


def _measure(torch: Any, logits: Any, ids: Any) -> tuple[Any, Any]:
    """What is to be known of `ids` [R] under the raw logits: the id, the row's mass and whether
    all of it is finite, int64 [R, 3]; how far the id's logit is below the largest, float64 [R]."""
    peaks = logits.amax(dim=1, keepdim=True)
    masses = _shares((logits - peaks).double()).sum(dim=1)
    finite = torch.isfinite(logits).all(dim=1)
    below = logits.gather(1, ids[:, None]).double() - peaks.double()
    return torch.stack([ids, masses, finite.long()], dim=1), below[:, 0]


def _shares(scaled: Any) -> Any:
    """exp(scaled), at most 1 each, in integers of 2^-43: their sums are exact."""
    return (scaled.exp() * _SCALE).round().long()


def _greedy(torch: Any, logits: Any, places: Seq[Place]) -> Any:
    ids = torch.arange(logits.shape[1], device=logits.device)
    return _lowest(torch, logits, ids)


def _whole(torch: Any, logits: Any, places: Seq[Place]) -> Any:
    """Ids drawn from all tokens, or from those that min-p keeps."""
    temperatures, _, _, min_ps = _columns(torch, logits, places)
    peaks = logits.amax(dim=1, keepdim=True)
    ids = torch.arange(logits.shape[1], device=logits.device)
    scaled = (logits.double() - peaks.double()) / temperatures
    noisy = scaled + _gumbel(torch, _keys(torch, logits, places), ids)
    return _lowest(torch, noisy.where(logits >= _least(torch, peaks, min_ps), -math.inf), ids)


def _filtered(torch: Any, logits: Any, places: Seq[Place]) -> Any:
    """Ids drawn from those that top-k, then top-p, then min-p keep.

        mass   40 30 20 10 | top_p 0.6 of 100: tokens stay whose mass before them is below 60
        before  0 40 70 90 |

    A nucleus that goes beyond the likeliest `_FIRST` is rare: all tokens are then ordered.
    """
    temperatures, top_ks, top_ps, min_ps = _columns(torch, logits, places)
    peaks = logits.amax(dim=1, keepdim=True)
    all_shares = _shares((logits.double() - peaks.double()) / temperatures).sum(1, keepdim=True)
    for width in (min(_FIRST, logits.shape[1]), logits.shape[1]):
        ids = _ordered(torch, logits, width)
        values = logits.gather(1, ids)
        scaled = (values.double() - peaks.double()) / temperatures
        kept = torch.arange(width, device=logits.device) < top_ks
        shares = _shares(scaled) * kept
        sums = shares.cumsum(1)
        totals = all_shares.where(top_ks >= logits.shape[1], sums[:, -1:])
        needed = totals.double() * top_ps
        fits = (top_ks >= logits.shape[1]) & (sums[:, -1:].double() >= needed)
        if width == logits.shape[1] or bool(((top_ks <= width) | fits).all()):
            break
    kept &= (sums - shares).double() < needed
    kept[:, 0] = True
    kept &= values >= _least(torch, peaks, min_ps)
    noisy = scaled + _gumbel(torch, _keys(torch, logits, places), ids)
    return _lowest(torch, noisy.where(kept, -math.inf), ids)


def _columns(torch: Any, logits: Any, places: Seq[Place]) -> list[Any]:
    """Temperature, top_k, top_p and what min_p takes from the largest logit: float64 [R, 1] each.

    Filters that are off are values that keep all.
    """
    numbers = [
        (
            s.temperature,
            s.top_k if s.top_k > 0 else math.inf,
            s.top_p if s.top_p < 1 else math.inf,
            s.temperature * math.log(s.min_p) if s.min_p > 0 else -math.inf,
        )
        for s in (place.sampling for place in places)
    ]
    table = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
    return list(table.split(1, dim=1))


def _least(torch: Any, peaks: Any, apart: Any) -> Any:
    """The smallest logit that min-p keeps, rounded to float32 as the host's is: [R, 1]."""
    return torch.minimum(peaks.double() + apart, peaks.double()).float()


def _keys(torch: Any, logits: Any, places: Seq[Place]) -> Any:
    keys = [[_signed(noise_key(place.sampling.seed, place.position))] for place in places]
    return torch.tensor(keys, dtype=torch.int64, device=logits.device)


def _gumbel(torch: Any, keys: Any, ids: Any) -> Any:
    """`specdec.sampling.gumbel` of `ids`, int64 [V] or [R, V], under `keys` [R, 1].

    torch has no arithmetic of unsigned words: products and sums of signed ones wrap to the same
    bits, and `>>` copies the sign into bits that are then cleared.
    """
    words = (ids + 1) * _signed(GOLDEN) + keys
    words = (words ^ _shifted(words, 30)) * _signed(MIX_1)
    words = (words ^ _shifted(words, 27)) * _signed(MIX_2)
    words = words ^ _shifted(words, 31)
    uniform = (_shifted(words, 11) + 1).double() * 2.0**-53
    return -(-uniform.log()).clamp(min=2.0**-54).log()


def _signed(word: int) -> int:
    """The same 64 bits as a signed integer."""
    return word - (1 << 64) if word >> 63 else word


def _shifted(words: Any, count: int) -> Any:
    """`words >> count` as unsigned 64 bit."""
    return (words >> count) & ((1 << (64 - count)) - 1)


def _lowest(torch: Any, values: Any, ids: Any) -> Any:
    """The lowest of `ids`, [V] or [R, V], where `values` [R, V] are largest: [R].

    Where a NaN is, some id: an index out of range would break the card's context.
    """
    largest = values.amax(dim=1, keepdim=True)
    return torch.where(values == largest, ids, ids.amax()).amin(1)


def _ordered(torch: Any, logits: Any, count: int) -> Any:
    """Ids of the `count` largest of each row, in falling order; of equal ones the lowest first.

    A float's bits, those below the sign flipped where it is set, order as the float does. The id
    goes below them: `topk` chooses among equal values as it likes, and no two of these are equal.
    """
    bits = (logits + 0.0).view(torch.int32).long()  # -0.0 becomes 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(logits.shape[1], device=logits.device)
    return ((ordered << 32) - ids).topk(count, dim=1).indices
