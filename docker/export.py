"""Fills the volume that the server reads: what the compose file's `export` services run.

    /models/artifacts/{target,draft}   what `specdec export` writes, kept while nothing changes
    /models/repository                 the model repository that is served, written anew

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

from specdec.errors import SpecdecError
from specdec.launcher.repository import Models, compose

PROJECT = Path(__file__).resolve().parent
VOLUME = Path(os.environ.get("VOLUME", "/models"))

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
    if runtime != "onnxruntime":
        command += ["--timing-cache", str(volume / "timing-cache")]
        for name, option in _TENSORRT.items():
            if value := environment.get(name):
                command += [option, value]
        if role == "target" and environment.get("DRAFT_MODEL"):
            command += ["--beside", str(volume / "artifacts" / "draft")]
    return command


def served_models(environment: Mapping[str, str], volume: Path, project: Path) -> Models:
    """What the repository is composed from."""
    parameters: dict[str, dict[str, str]] = {}
    for name, (model, parameter) in _PARAMETERS.items():
        if value := environment.get(name):
            parameters.setdefault(model, {})[parameter] = value
    decoders = {p: v for n, p in _DECODER_PARAMETERS.items() if (v := environment.get(n))}
    artifacts = volume / "artifacts"
    draft = artifacts / "draft" if environment.get("DRAFT_MODEL") else None
    return Models(
        project / "model_repository",
        target=artifacts / "target",
        draft=draft,
        parameters=parameters,
        decoder_parameters=decoders,
    )


def fill(environment: Mapping[str, str], volume: Path = VOLUME, project: Path = PROJECT) -> None:
    """Export what is named, then replace the repository.

    Raises:
        CalledProcessError: an export failed; it has said why.
        InvalidConfig, InvalidArtifact: a parameter is wrong.
    """
    # The draft first: it is compiled soon, and the target is refused if both do not fit the card.
    for role in ("draft", "target"):
        if environment.get(f"{role.upper()}_MODEL"):
            command = export_command(role, environment, volume)
            subprocess.run([sys.executable, "-m", "specdec.client.cli", *command], check=True)
    fresh, repository = volume / ".repository", volume / "repository"
    shutil.rmtree(fresh, ignore_errors=True)
    compose(served_models(environment, volume, project), fresh)
    shutil.rmtree(repository, ignore_errors=True)
    fresh.rename(repository)


def main() -> None:
    try:
        fill(os.environ)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except SpecdecError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
