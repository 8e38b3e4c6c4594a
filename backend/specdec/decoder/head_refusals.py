"""What a call of a head is refused for, before anything changes. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from specdec.decoder.batch import MAX_SHARED_ROWS
from specdec.decoder.refusals import Limits, refuse_ids
from specdec.errors import DecoderFailed
from specdec.types import HeadCall

MAX_TREE_TOKENS = MAX_SHARED_ROWS  # what a target can verify
MAX_OWN_ROWS = 256  # rows behind the committed ones, of one sequence in one call


def refuse_calls(calls: Seq[HeadCall], limits: Limits) -> None:
    """Raise `DecoderFailed` unless all of `calls` can be done by their open sequences."""
    for call in calls:
        name = f"sequence {call.sequence_id}"
        wanted = (len(call.token_ids), limits.info.feature_size)
        if not call.token_ids or call.features.shape != wanted:
            raise DecoderFailed(f"{name}: features {call.features.shape}, expected {wanted}")
        end = call.start + len(call.token_ids)
        if end > limits.info.max_sequence_length:
            raise DecoderFailed(
                f"{name} would hold {end} rows: allowed are {limits.info.max_sequence_length}"
            )
        _refuse_tree(name, call)
        refuse_ids([*call.token_ids, *call.carry], limits)


def _refuse_tree(name: str, call: HeadCall) -> None:
    if not 0 <= call.max_tokens <= MAX_TREE_TOKENS:
        raise DecoderFailed(
            f"{name}: a tree of {call.max_tokens} tokens: allowed are 0 to {MAX_TREE_TOKENS}"
        )
    if call.max_depth < 1 or not 1 <= call.width <= MAX_TREE_TOKENS:
        raise DecoderFailed(
            f"{name}: depth {call.max_depth}, width {call.width}: allowed are 1 and more, and 1 "
            f"to {MAX_TREE_TOKENS}"
        )
    num_rows = len(call.carry) + (call.max_depth - 1) * call.width
    if call.max_tokens and num_rows > MAX_OWN_ROWS:
        raise DecoderFailed(
            f"{name}: {num_rows} rows behind the committed ones: allowed are {MAX_OWN_ROWS}"
        )
