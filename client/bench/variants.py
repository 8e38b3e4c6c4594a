"""Which variants are compared: `--variant ngram:8` and the two that always are."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.client.bench.records import Variant
from specdec.client.errors import RequestRejected
from specdec.drafters import NONE, drafter_names

PLAIN = Variant("K=0", {"num_draft_tokens": 0})
DEFAULT_NAME = "default"


def build_variants(asked: Sequence[str]) -> tuple[Variant, ...]:
    """K=0, the server's default, then what was asked for, each once.

    Args:
        asked: DRAFTER or DRAFTER:K each.

    Raises:
        RequestRejected: one is not of that form, or names a drafter there is not.
    """
    variants = [PLAIN, Variant(DEFAULT_NAME, {})]
    for text in asked:
        variant = parse_variant(text)
        if variant.name not in {v.name for v in variants}:
            variants.append(variant)
    return tuple(variants)


def parse_variant(text: str) -> Variant:
    """`ngram:8` is drafter ngram with 8 draft tokens, `ngram` leaves the length to the server."""
    drafter, colon, length = text.partition(":")
    if drafter not in drafter_names():
        raise RequestRejected(
            f"--variant {text!r}: no drafter {drafter!r}, known are {', '.join(drafter_names())}"
        )
    if colon and not (length.isascii() and length.isdigit()):
        raise RequestRejected(f"--variant {text!r}: expected DRAFTER or DRAFTER:K, as in ngram:8")
    if drafter == NONE or (colon and int(length) == 0):
        return PLAIN
    options = {"drafter": drafter, **({"num_draft_tokens": int(length)} if colon else {})}
    return Variant(text, options)
