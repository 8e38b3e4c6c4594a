"""The served model repository: configs from the project's, weights from exported artifacts.

models/speculative/{config.pbtxt, 1/model.py}     copied
models/ensemble/{config.pbtxt, 1/}
models/target/{config.pbtxt, 1/model.onnx ...}    linked to the artifact's files
models/draft/...                                  a draft, where there is one
models/eagle/...                                  a trained head that fits the target, the same

Target and head may run inside `speculative`, as a head does by default: models/speculative/1/eagle.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec.artifact import FILE, Artifact, why_unfit
from specdec.config import DecoderConfig, SpeculativeConfig, from_parameters
from specdec.errors import InvalidArtifact, InvalidConfig

CONFIG = "config.pbtxt"
SPECULATIVE, ENSEMBLE, TARGET = "speculative", "ensemble", "target"
DRAFT, HEAD = "draft", "eagle"

_NAMED_BY = {DRAFT: "draft_model_name", HEAD: "head_model_name"}  # parameters of `speculative`
# What to export when nothing is: its kind and a model.
_EXAMPLE = {TARGET: ("target", "smollm2"), DRAFT: ("draft", "DIRECTORY"), HEAD: ("head", "TRAINED")}

Parameters = Mapping[str, Mapping[str, str]]  # model name -> parameter -> value


@dataclass(frozen=True, slots=True)
class Models:
    """What to serve. Directories are those `specdec export` writes: DIR/1/specdec.json."""

    source: Path  # the project's model_repository
    target: Path | None = None  # default: source/target
    draft: Path | None = None  # default: source/draft when it holds an artifact
    head: Path | None = None  # default: source/eagle when it holds one of this target
    parameters: Parameters = field(default_factory=dict)  # overrides by model
    # Of all models that decode; a head inside `speculative` is none.
    decoder_parameters: Mapping[str, str] = field(default_factory=dict)
    no_head: bool = False  # serve none, wherever one is


@dataclass(frozen=True, slots=True)
class Composed:
    """What is served; configs are read as the models will read them, to fail early."""

    target: Artifact
    draft: Artifact | None
    head: Artifact | None
    config: SpeculativeConfig
    apart: tuple[str, ...]  # those of the three that are models of their own
    head_left_out: str = ""  # why the head in the source is not served, one line; empty: it is


def compose(models: Models, destination: Path) -> Composed:
    """Write the repository.

    Raises:
        InvalidConfig: the source is not a model repository, or a parameter or model is unknown.
        InvalidArtifact: the target, or a draft or head that was asked for, is not exported.
    """
    target_dir = models.target or models.source / TARGET
    artifacts = {TARGET: _read_artifact(target_dir, TARGET)}
    folders = {TARGET: target_dir}
    lying = models.source / DRAFT
    draft = models.draft or (lying if _has_artifact(lying) else None)
    head, left_out = _head_folder(models, artifacts[TARGET])
    for name, folder in ((DRAFT, draft), (HEAD, head)):
        if folder is not None:
            artifacts[name], folders[name] = _read_artifact(folder, name), folder
    named = {p: x if x in artifacts else "" for x, p in _NAMED_BY.items()}
    overrides = {SPECULATIVE: named, **dict.fromkeys(folders, models.decoder_parameters)}

    def parameters(name: str) -> dict[str, str]:
        return {**overrides.get(name, {}), **models.parameters.get(name, {})}

    final = _write_model(models.source / SPECULATIVE, destination, parameters(SPECULATIVE))
    config = from_parameters(SpeculativeConfig, final)
    inside = _inside(config)
    apart = tuple(name for name in artifacts if name not in inside)
    served = [SPECULATIVE, ENSEMBLE, *apart]
    for name, kind in inside.items():
        if own := models.parameters.get(name):
            instead = "device" if kind == TARGET and "device" in own else "num_threads"
            raise InvalidConfig(
                f"{name} runs inside {SPECULATIVE}: set {SPECULATIVE}.{kind}_{instead}, or "
                f"{SPECULATIVE}.{kind}_in_process=false for a model of its own"
            )
    if unknown := sorted(set(models.parameters) - set(served)):
        raise InvalidConfig(f"no model {unknown[0]!r} is served: there are {', '.join(served)}")
    _write_model(models.source / ENSEMBLE, destination, parameters(ENSEMBLE))
    for name, folder in folders.items():
        if name in inside:
            _link(folder, destination / SPECULATIVE / "1" / name)
        else:
            _write_decoder(folder, name, models.source, destination, parameters(name))
    return Composed(
        artifacts[TARGET], artifacts.get(DRAFT), artifacts.get(HEAD), config, apart, left_out
    )


def _inside(config: SpeculativeConfig) -> dict[str, str]:
    """Models that run inside `speculative`, and what its parameters call them."""
    places = {TARGET: ("target", config.target_in_process), HEAD: ("head", config.head_in_process)}
    return {name: kind for name, (kind, is_inside) in places.items() if is_inside}


def find_head(folder: Path, target: Artifact) -> tuple[Path | None, str]:
    """`folder` if it holds a head of this target; else why not, empty where it holds nothing.

    Nobody asked for a head that merely lies there: one left by another target stops no server.
    """
    if not _has_artifact(folder):
        return None, ""
    try:
        reason = why_unfit(Artifact.read(folder / "1"), target)
    except InvalidArtifact as error:
        reason = str(error)
    if not reason:
        return folder, ""
    return None, f"the head in {folder} is left out: {reason}"


def _head_folder(models: Models, target: Artifact) -> tuple[Path | None, str]:
    if models.no_head and models.head is not None:
        raise InvalidConfig(f"--head {models.head} and --no-head: choose one")
    if models.no_head or models.head is not None:
        return models.head, ""
    return find_head(models.source / HEAD, target)


def _has_artifact(directory: Path) -> bool:
    return (directory / "1" / FILE).is_file()


def _read_artifact(directory: Path, name: str) -> Artifact:
    if not _has_artifact(directory):
        kind, model = _EXAMPLE[name]
        raise InvalidArtifact(
            f"no exported {kind} in {directory} (1/{FILE} is missing): "
            f"run `specdec export {kind} --model {model}`, or name one with --{kind}"
        )
    return Artifact.read(directory / "1")


def _write_model(source: Path, destination: Path, parameters: Mapping[str, str]) -> dict[str, str]:
    """Copy a model of the project; returns its final parameters."""
    version = destination / source.name / "1"
    version.mkdir(parents=True)
    final = _write_config(source / CONFIG, source.name, destination, parameters)
    for path in sorted((source / "1").glob("*.py")):
        shutil.copy2(path, version / path.name)
    return final


def _write_decoder(
    artifact: Path, name: str, source: Path, destination: Path, parameters: Mapping[str, str]
) -> None:
    version = destination / name / "1"
    version.mkdir(parents=True)
    own = artifact / CONFIG
    path = own if own.is_file() else source / name / CONFIG
    from_parameters(DecoderConfig, _write_config(path, name, destination, parameters))
    _link(artifact, version)


def _link(artifact: Path, folder: Path) -> None:
    """Every file of an artifact in `folder`."""
    folder.mkdir(exist_ok=True)
    for file in (artifact / "1").iterdir():
        if not file.name.startswith("."):
            (folder / file.name).symlink_to(file.resolve())


def _write_config(
    path: Path, name: str, destination: Path, parameters: Mapping[str, str]
) -> dict[str, str]:
    from google.protobuf import text_format

    config = read_config(path)
    config.name = name
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    (destination / name / CONFIG).write_text(text_format.MessageToString(config))
    return {key: value.string_value for key, value in config.parameters.items()}


def read_config(path: Path) -> Any:
    """A ModelConfig message.

    Raises:
        InvalidConfig: the file is missing or is not a model configuration; names file and line.
    """
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    if not path.is_file():
        raise InvalidConfig(
            f"{path} is missing: run in the project's directory, or name its model_repository "
            "with --model-repository"
        )
    try:
        return text_format.Parse(path.read_text(), ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not a model configuration: {error}") from None
