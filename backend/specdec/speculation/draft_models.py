"""The models a server drafts with, beside its target: which drafter calls which; do they fit?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specdec.artifact import Artifact
from specdec.config import SpeculativeConfig
from specdec.drafters import NONE, drafter_class, drafter_names
from specdec.drafters.base import Drafter
from specdec.errors import InvalidArtifact, InvalidConfig
from specdec.speculation.vocabulary import check_same_vocabulary


def artifact_dir(configured: str, repository: Path, model_name: str) -> Path:
    return Path(configured) if configured else repository / model_name / "1"


def head_dir(config: SpeculativeConfig, repository: Path) -> Path:
    return artifact_dir(config.head_artifact_dir, repository, config.head_model_name)


def with_models_inside(config: SpeculativeConfig, version: Path) -> SpeculativeConfig:
    """Name the target and the head that lie inside the version folder of the model that is to run
    them."""
    target, head = version / config.target_model_name, version / config.head_model_name
    if config.target_in_process and not config.target_artifact_dir and target.is_dir():
        config = replace(config, target_artifact_dir=str(target))
    has_head = config.head_model_name and config.head_in_process
    if has_head and not config.head_artifact_dir and head.is_dir():
        config = replace(config, head_artifact_dir=str(head))
    return config


def target_dir(config: SpeculativeConfig, repository: Path) -> Path:
    return artifact_dir(config.target_artifact_dir, repository, config.target_model_name)


def parameter_of(kind: type[Drafter]) -> str:
    """The parameter that names the model drafters of this kind call; empty: they call none."""
    return f"{kind.model}_model_name" if kind.model else ""


def model_of(kind: type[Drafter], config: SpeculativeConfig) -> str:
    """The model's name; empty: they call none, or this server has none."""
    parameter = parameter_of(kind)
    return getattr(config, parameter) if parameter else ""


def offered_drafters(config: SpeculativeConfig) -> tuple[str, ...]:
    """Those whose model there is. Raises `InvalidConfig`: the default is not among them."""
    names = []
    for name in drafter_names():
        kind = drafter_class(name) if name != NONE else None
        if kind is None or not kind.model or not kind.needs_model or model_of(kind, config):
            names.append(name)
    if config.drafter not in names:
        parameter = parameter_of(drafter_class(config.drafter))
        raise InvalidConfig(f"drafter {config.drafter!r} needs parameter {parameter}")
    return tuple(names)


def check_models(config: SpeculativeConfig, target_dir: Path, repository: Path) -> None:
    """Raises `InvalidArtifact`: a model is missing, or was made for another target."""
    if config.draft_model_name:
        draft_dir = artifact_dir(config.draft_artifact_dir, repository, config.draft_model_name)
        Artifact.read(draft_dir)
        check_same_vocabulary(target_dir, draft_dir)
    if config.head_model_name:
        directory = head_dir(config, repository)
        _check_head(Artifact.read(target_dir), Artifact.read_head(directory), directory)


def _check_head(target: Artifact, head: Artifact, directory: Path) -> None:
    if head.vocabulary_sha256 != target.vocabulary_sha256:
        raise InvalidArtifact(f"the head in {directory} was made for another target's tokens")
    if (head.feature_layers, head.hidden_size) != (target.feature_layers, target.hidden_size):
        wanted, given = (
            f"{a.hidden_size} numbers of layers {','.join(map(str, a.feature_layers)) or 'none'}"
            for a in (head, target)
        )
        raise InvalidArtifact(
            f"the head in {directory} reads {wanted}; the target gives out {given}: export it "
            f"with --features"
        )
