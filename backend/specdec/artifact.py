"""An exported model on disk: what `specdec export` writes and every process reads.

    DIR/model.onnx  model.onnx.data   the graph and its weights
    DIR/specdec.json                  this description
    DIR/tokenizer.json, chat_template.jinja, ...   the tokenizer's own files

Knows nothing of runtimes: `runtime` names the module under decoder/runtimes that can run it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specdec.errors import InvalidArtifact

FORMAT = 2
FILE = "specdec.json"
GRAPH = "model.onnx"
HEAD = "eagle"  # the architecture of a head, which is no decoder
STATIC_IDS = "specdec.static_ids"  # metadata of its graph: JSON, the ids it always may propose


@dataclass(frozen=True, slots=True)
class Artifact:
    """Shapes and identity of one exported model; all from the model's own config."""

    architecture: str  # model_type of the Hugging Face config, or HEAD
    runtime: str  # "onnxruntime"
    precision: str  # fp32, int8, w8a8, int4
    num_layers: int
    num_key_value_heads: int
    head_size: int
    hidden_size: int  # of a row between layers
    # Layers whose inputs the graph gives out for a trained head, rising; `num_layers` stands for
    # the final norm's. Empty: it gives out none. Of a head: those of its target that it reads.
    feature_layers: tuple[int, ...]
    vocab_size: int  # columns of the logits, padding included
    num_tokens: int  # ids the tokenizer knows; larger ids are never emitted
    max_position_embeddings: int
    end_ids: tuple[int, ...]  # any of these ends a sequence
    vocabulary_sha256: str  # of the tokenizer's tokens in id order, see `vocabulary_hash`
    weights_sha256: str
    source: str  # what was exported, for people
    format: int = FORMAT

    @property
    def feature_size(self) -> int:
        """Features of one row: the layers' inputs side by side."""
        return len(self.feature_layers) * self.hidden_size

    def write(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read_head(cls, directory: Path) -> Artifact:
        """`read` a head; raises `InvalidArtifact` of any other model too."""
        found = cls.read(directory)
        if found.architecture != HEAD:
            raise InvalidArtifact(
                f"{directory} is a {found.architecture}: expected a head ({HEAD})"
            )
        return found

    @classmethod
    def read(cls, directory: Path) -> Artifact:
        """Raises `InvalidArtifact` with the path and the reason."""
        path = directory / FILE
        if not path.is_file():
            raise InvalidArtifact(
                f"no exported model in {directory} ({FILE} is missing): run `specdec export` first"
            )
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except ValueError as error:
            raise InvalidArtifact(f"{path} is not JSON: {error}") from None
        if isinstance(found, dict) and found.get("format", FORMAT) != FORMAT:
            raise InvalidArtifact(
                f"{path}: format {found['format']}, this version reads {FORMAT}: export again"
            )
        names = {f.name for f in fields(cls)}
        if not isinstance(found, dict) or set(found) != names:
            wrong = (
                sorted(set(found) ^ names) if isinstance(found, dict) else [type(found).__name__]
            )
            raise InvalidArtifact(f"{path}: unexpected or missing fields {wrong}: export again")
        for name in ("end_ids", "feature_layers"):
            found[name] = tuple(found[name])
        return cls(**found)


def head_source(head: str, target: Artifact) -> str:
    """`Artifact.source` of a head."""
    return f"{head} for {target.source}"


def why_unfit(head: Artifact, target: Artifact) -> str:
    """Why a head is not one of this target's; empty: it is, at whichever precision of the target.

    Shapes alone would not tell: a family's models share sizes and tokens.
    """
    if head.architecture != HEAD:
        return f"it is a {head.architecture}, not a head"
    if not head.source.endswith(head_source("", target)):
        return f"it is {head.source}, the target is {target.source}"
    if head.vocabulary_sha256 != target.vocabulary_sha256:
        return f"the tokens of {target.source} have changed since"
    if (head.feature_layers, head.hidden_size) != (target.feature_layers, target.hidden_size):
        wanted, given = (
            f"{a.hidden_size} numbers of layers {','.join(map(str, a.feature_layers)) or 'none'}"
            for a in (head, target)
        )
        return f"it reads {wanted}, the target gives out {given}"
    return ""


def vocabulary_hash(tokens: list[str | None]) -> str:
    """Hash of the tokens in id order (None where an id is unused)."""
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
