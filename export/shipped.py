"""The heads and drafts that the project ships, and which of them was trained for a target.

    weights/MODEL/eagle/, .../draft/            in a checkout
    specdec/weights/MODEL/eagle/, .../draft/    in an installed wheel

Each is a folder that `specdec train` wrote; its config.json records the target.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specdec.artifact import HEAD, Artifact, head_source, why_unfit
from specdec.errors import InvalidArtifact
from specdec.export.head_source import CONFIG

WEIGHTS = Path(__file__).resolve().parent.parent / "weights"  # beside export/, in both layouts

DRAFT = "draft"  # beside HEAD: the folder of a stand-alone draft


def shipped_for(target: Artifact, kind: str = HEAD) -> Path | None:
    """The trained folder for this target, None where none is shipped. `kind`: HEAD or DRAFT."""
    for path in sorted(WEIGHTS.glob(f"*/{kind}/{CONFIG}")):
        if _is_of(target, json.loads(path.read_bytes()).get("target", {})):
            return path.parent
    return None


def label_of(trained: Path) -> str:
    """How what was trained is called in its artifact: one of ours by its model too."""
    trained = trained.resolve()
    is_ours = trained.is_relative_to(WEIGHTS.resolve())
    return f"{trained.parent.name}/{trained.name}" if is_ours else trained.name


def own_head(directory: Path, target: Artifact, ours: Path) -> Artifact | None:
    """The artifact in `directory` if it is a head of this target, but not `ours`."""
    found = _other(directory, target, ours)
    return found if found is not None and not why_unfit(found, target) else None


def own_draft(directory: Path, target: Artifact, ours: Path) -> Artifact | None:
    """The artifact in `directory` if it can draft for this target, but is not `ours`."""
    found = _other(directory, target, ours)
    fits = found is not None and found.vocabulary_sha256 == target.vocabulary_sha256
    return found if fits else None


def _other(directory: Path, target: Artifact, ours: Path) -> Artifact | None:
    """The artifact in `directory`, None where there is none or it was made of `ours`."""
    try:
        found = Artifact.read(directory)
    except InvalidArtifact:
        return None
    return None if found.source == head_source(label_of(ours), target) else found


def _is_of(target: Artifact, recorded: dict[str, Any]) -> bool:
    """The weights' hash finds the same file under any name; the source, other precisions."""
    same_weights = recorded.get("weights_sha256") == target.weights_sha256
    same_source = recorded.get("source") == target.source
    same_tokens = recorded.get("vocabulary_sha256") == target.vocabulary_sha256
    return same_tokens and (same_weights or same_source)
