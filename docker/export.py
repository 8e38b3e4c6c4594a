"""Fills the volume that the server reads: what the compose file's `export` services run.

    /models/artifacts/{target,draft}        what `specdec export` writes, kept while nothing changes
    /models/artifacts/{shipped-head,head}   the same of a trained head: a shipped one, or yours
    /models/repository                      the model repository that is served, written anew

Everything is set by environment variables, see .env.example. Runs to its end; the server starts
after it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from specdec.artifact import Artifact
from specdec.errors import SpecdecError
from specdec.launcher.repository import Models, compose, find_head

PROJECT = Path(__file__).resolve().parent
VOLUME = Path(os.environ.get("VOLUME", "/models"))
NO_HEAD = "none"  # HEAD_MODEL's word

# Variable -> option of `specdec export` for a plan.
_TENSORRT = {
    "CARD": "--card",
    "MAX_SEQUENCES": "--max-sequences",
    "MAX_SEQUENCE_LENGTH": "--max-sequence-length",
    "MAX_ROWS": "--max-rows",
}
# Variable -> (model, parameter of its config.pbtxt).
_PARAMETERS = {
    "DRAFTER": ("speculative", "drafter"),
    "NUM_DRAFT_TOKENS": ("speculative", "num_draft_tokens"),
    "MAX_SEQUENCES": ("speculative", "max_running"),
}
_DECODER_PARAMETERS = {
    "MAX_SEQUENCES": "max_sequences",
    "MAX_SEQUENCE_LENGTH": "max_sequence_length",
}


def export_command(role: str, environment: Mapping[str, str], volume: Path) -> list[str]:
    """Arguments of `specdec` that export one model."""
    runtime = environment.get("RUNTIME") or "onnxruntime"
    command = ["export", role, "--model", environment[f"{role.upper()}_MODEL"]]
    command += ["--output", str(volume / "artifacts" / role), "--runtime", runtime]
    if precision := environment.get(f"{role.upper()}_PRECISION"):
        command += ["--precision", precision]
    if runtime == "tensorrt":
        command += ["--timing-cache", str(volume / "timing-cache")]
    if runtime != "onnxruntime":
        for name, option in _TENSORRT.items():
            if value := environment.get(name):
                command += [option, value]
        if role == "target" and environment.get("DRAFT_MODEL"):
            command += ["--beside", str(volume / "artifacts" / "draft")]
    elif role == "draft":  # what was trained takes its target's tables
        command += ["--target", str(volume / "artifacts" / "target")]
    return command


def head_folder(environment: Mapping[str, str], volume: Path) -> Path | None:
    """Where the head that is asked for is exported to; None: no head.

    A head takes its target's tables from the graph, and a plan has none: by itself only ONNX
    Runtime's target gets one.
    """
    model = environment.get("HEAD_MODEL") or ""
    on_card = (environment.get("RUNTIME") or "onnxruntime") != "onnxruntime"
    if model == NO_HEAD or (on_card and not model):
        return None
    # Apart: the exporter keeps a head of yours where it is asked for the shipped one.
    return volume / "artifacts" / ("head" if model else "shipped-head")


def head_command(environment: Mapping[str, str], volume: Path, output: Path) -> list[str]:
    """Arguments of `specdec` that export the head; without HEAD_MODEL the shipped one, if any."""
    model = environment.get("HEAD_MODEL")
    command = ["export", "head", "--target", str(volume / "artifacts" / "target")]
    return [*command, "--output", str(output), *(["--model", model] if model else ["--if-shipped"])]


def served_models(environment: Mapping[str, str], volume: Path, project: Path) -> Models:
    """What the repository is composed from."""
    parameters: dict[str, dict[str, str]] = {}
    for name, (model, parameter) in _PARAMETERS.items():
        if value := environment.get(name):
            parameters.setdefault(model, {})[parameter] = value
    decoders = {p: v for n, p in _DECODER_PARAMETERS.items() if (v := environment.get(n))}
    artifacts = volume / "artifacts"
    draft = artifacts / "draft" if environment.get("DRAFT_MODEL") else None
    head = head_folder(environment, volume)
    if head is not None:  # what lies there may be an earlier target's
        head, left_out = find_head(head, Artifact.read(artifacts / "target" / "1"))
        if left_out:
            print(f"note: {left_out}")
    return Models(
        project / "model_repository",
        target=artifacts / "target",
        draft=draft,
        head=head,
        no_head=head is None,
        parameters=parameters,
        decoder_parameters=decoders,
    )


def fill(environment: Mapping[str, str], volume: Path = VOLUME, project: Path = PROJECT) -> None:
    """Export what is named, then replace the repository.

    Raises:
        CalledProcessError: an export failed; it has said why.
        InvalidConfig, InvalidArtifact: a parameter is wrong.
    """
    # On a card the draft first: it is compiled soon, and the target is refused if both do not fit.
    is_on_card = (environment.get("RUNTIME") or "onnxruntime") != "onnxruntime"
    for role in ("draft", "target") if is_on_card else ("target", "draft"):
        if environment.get(f"{role.upper()}_MODEL"):
            _specdec(export_command(role, environment, volume))
    if (head := head_folder(environment, volume)) is not None:
        _specdec(head_command(environment, volume, head))
    fresh, repository = volume / ".repository", volume / "repository"
    shutil.rmtree(fresh, ignore_errors=True)
    compose(served_models(environment, volume, project), fresh)
    shutil.rmtree(repository, ignore_errors=True)
    fresh.rename(repository)


def _specdec(command: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "specdec.client.cli", *command], check=True)


def main() -> None:
    try:
        fill(os.environ)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except SpecdecError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
