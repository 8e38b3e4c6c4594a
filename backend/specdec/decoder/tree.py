"""Draft trees in a cache: what stays, what hangs where, and who came before. Pure functions.

    token     0   1   2   3   4   5      of the tree; its root is the last committed token
    parents  -1   0   1   0   3   1

    root - 0 - 1 - 2                     the trunk: 0 1 2, each follows the token before it
           |   +-- 5
           +-- 3 - 4                     branches: 3 4 5

    place      7   8   9  10  11  12  13
    token   root   0   1   2   3   4   5
    position   7   8   9  10   9  10  10
    follows                    8  11   9

The trunk lies in the cache as a chain would, so its rows are those of a chain to the last bit.
Branches stand behind it for one pass: nothing after that looks there.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from specdec.decoder.batch import MAX_SHARED_ROWS, Share
from specdec.errors import DecoderFailed

Ints = np.ndarray[Any, np.dtype[np.int32]]

# A branch stands behind its trunk, where a cache has room for padding: so many rows and no more.
MAX_TOKENS = MAX_SHARED_ROWS


def check(parents: Seq[int], *, num_outputs: int, max_rows: int | None) -> None:
    """Raise `DecoderFailed` unless `parents` describes a tree behind the first output.

    `max_rows`: tokens a pass can have; the branches of a tree share one.
    """
    limit = MAX_TOKENS if max_rows is None else min(MAX_TOKENS, max_rows)
    if len(parents) > limit:
        raise DecoderFailed(f"a tree of {len(parents)} tokens: allowed are 1 to {limit}")
    if len(parents) != num_outputs - 1:
        raise DecoderFailed(
            f"{len(parents)} parents with {num_outputs} outputs: a tree has one output more"
        )
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise DecoderFailed(
                f"token {index} of a tree follows {parent}: allowed are -1 to {index - 1}"
            )


def num_trunk_tokens(parents: Seq[int]) -> int:
    """How many tokens of the tree, from the first, follow the one before them."""
    return next((i for i, p in enumerate(parents) if p != i - 1), len(parents))


def max_depth(parents: Seq[int]) -> int:
    """Tokens on the longest path."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


def branch_parents(parents: Seq[int], root: int) -> list[int]:
    """Cache place that each branch token follows; the root stands at place `root`."""
    return [root + 1 + parent for parent in parents[num_trunk_tokens(parents) :]]


def histories(share: Share, tokens: Ints) -> list[Ints]:
    """The tokens up to and with each output row: [share.num_outputs] of [length] each.

    `tokens`: [at least share.end], those in the cache after the pass.
    """
    num_outputs = share.num_outputs - len(share.parents)  # before the branches
    found = [tokens[: share.end - i] for i in reversed(range(num_outputs))]
    branches: list[Ints] = []
    first = len(share.token_ids) - len(share.parents)
    for token_id, parent in zip(share.token_ids[first:], share.parents, strict=True):
        kept = parent < share.end
        before = tokens[: parent + 1] if kept else branches[parent - share.end]
        branches.append(np.append(before, np.int32(token_id)))
    return found + branches
