"""What a decoder call is refused for, before anything changes. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from specdec.decoder import tree
from specdec.errors import DecoderFailed
from specdec.types import DecoderInfo, Extend

MAX_CANDIDATES = 64  # of one row


class Limits(NamedTuple):
    """Of one decoder."""

    info: DecoderInfo
    num_input_ids: int  # ids that can be fed: [0, num_input_ids)
    max_rows: int | None  # tokens a pass can have; None: any


def refuse_calls(calls: Seq[Extend], limits: Limits) -> None:
    """Raise `DecoderFailed` unless all of `calls` can be done by their open sequences."""
    for call in calls:
        name = f"sequence {call.sequence_id}"
        _refuse_counts(name, call)
        if call.parents:
            _refuse_tree(name, call, limits)
        _refuse_wishes(name, call, limits.info)
        end = call.start + len(call.token_ids) + call.num_draft_steps
        end += tree.max_depth(call.parents) - len(call.parents)
        if end > limits.info.max_sequence_length:
            raise DecoderFailed(
                f"{name} would hold {end} tokens: allowed are {limits.info.max_sequence_length}"
            )
        refuse_ids(call.token_ids, limits)


def refuse_ids(token_ids: Seq[int], limits: Limits) -> None:
    """Raise `DecoderFailed` at an id that cannot be fed."""
    for wrong in (min(token_ids), max(token_ids)) if token_ids else ():
        if not 0 <= wrong < limits.num_input_ids:
            raise DecoderFailed(f"token id {wrong}: allowed are 0 to {limits.num_input_ids - 1}")


def _refuse_counts(name: str, call: Extend) -> None:
    num_tokens, steps = len(call.token_ids), call.num_draft_steps
    if not 0 <= call.num_outputs <= num_tokens or num_tokens == 0:
        raise DecoderFailed(f"{name}: {call.num_outputs} outputs of {num_tokens} tokens")
    if steps < 0 or (steps and not call.num_outputs):
        raise DecoderFailed(f"{name}: {steps} draft steps after {call.num_outputs} outputs")
    if steps and call.follows_draws:
        raise DecoderFailed(f"{name}: draft steps cannot follow a token that may not be drawn")
    if not call.least_logprob <= 0.0:  # NaN neither
        raise DecoderFailed(f"{name}: least_logprob {call.least_logprob}: allowed are -inf to 0")


def _refuse_tree(name: str, call: Extend, limits: Limits) -> None:
    if call.num_draft_steps:
        raise DecoderFailed(f"{name}: draft steps cannot follow a tree")
    try:
        tree.check(call.parents, num_outputs=call.num_outputs, max_rows=limits.max_rows)
    except DecoderFailed as error:
        raise DecoderFailed(f"{name}: {error}") from None


def _refuse_wishes(name: str, call: Extend, info: DecoderInfo) -> None:
    most = min(MAX_CANDIDATES, info.vocab_size)
    if not 0 <= call.num_candidates <= most:
        raise DecoderFailed(f"{name}: {call.num_candidates} candidates: allowed are 0 to {most}")
    if call.wants_features and not info.feature_size:
        raise DecoderFailed(
            f"{name} wants features, this model gives out none: export it with --features"
        )
