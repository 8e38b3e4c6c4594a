"""Do two models speak the same tokens? Draft ids go to the target as they are.

Compared by token and id, not by size: padded logits columns (151,936 against 152,064) do not
matter, a permuted vocabulary would show as an acceptance rate of 0.
"""

from __future__ import annotations

from pathlib import Path

from specdec.errors import InvalidArtifact
from specdec.speculation.tokenization import TextTokenizer


def check_same_vocabulary(target_dir: str | Path, draft_dir: str | Path) -> int:
    """Compare the tokens of two exported models; return how many ids both know, from 0 on.

    Raises `InvalidArtifact` with the first id at which they differ and both tokens.
    """
    target = TextTokenizer.from_directory(target_dir)
    draft = TextTokenizer.from_directory(draft_dir)
    pairs = zip(target.tokens(), draft.tokens(), strict=False)
    for token_id, (one, other) in enumerate(pairs):
        if one is None or other is None:  # unused on one side, and so never emitted there
            continue
        ours = _describe(one, token_id in target.special_ids())
        theirs = _describe(other, token_id in draft.special_ids())
        if ours != theirs:
            raise InvalidArtifact(
                f"the draft model's vocabulary differs: id {token_id} is {ours} in {target_dir}"
                f" and {theirs} in {draft_dir}"
            )
    num_shared = min(target.num_tokens, draft.num_tokens)
    if not num_shared:
        raise InvalidArtifact(f"no token in {target_dir} or {draft_dir}: nothing to share")
    return num_shared


def _describe(token: str, is_special: bool) -> str:
    return f"{token!r} (special)" if is_special else repr(token)
