"""Reads docker-compose.yml and the Dockerfile the way Docker does, as far as this project uses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings its twin
    import tomli as tomllib  # type: ignore[no-redef]

PROJECT = Path(__file__).resolve().parents[2]
DOCKERFILE = PROJECT / "docker" / "Dockerfile"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def read_project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())


def read_env(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def variables() -> dict[str, str | None]:
    """Every variable of the compose file with its default, None where it has none."""
    text = (PROJECT / "docker-compose.yml").read_text()
    found: dict[str, str | None] = {}
    for name, default in _VARIABLE.findall(text):
        assert found.setdefault(name, default) == default, f"two defaults of {name}"
    return found


def compose(**environment: str) -> dict[str, Any]:
    """The compose file with variables filled in, as parsed."""
    text = (PROJECT / "docker-compose.yml").read_text()
    return yaml.safe_load(_VARIABLE.sub(lambda m: environment.get(m[1], m[2]), text))


class Instruction(NamedTuple):
    stage: str
    name: str
    value: str


def instructions() -> list[Instruction]:
    """Of the Dockerfile, continuation lines joined, comments left out."""
    lines = [x for x in DOCKERFILE.read_text().splitlines() if not x.lstrip().startswith("#")]
    found: list[Instruction] = []
    stage = ""
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, _, value = line.partition(" ")
        if name == "FROM":
            stage = value.split(" AS ")[1]
        found.append(Instruction(stage, name, " ".join(value.split())))
    return found


def stage_instructions(stage: str) -> list[Instruction]:
    """Of a stage and of what it is built on, in order."""
    every = instructions()
    base = next(i.value.split()[0] for i in every if i.stage == stage and i.name == "FROM")
    inherited = stage_instructions(base) if any(i.stage == base for i in every) else []
    return inherited + [i for i in every if i.stage == stage]


def context_copies(stage: str) -> list[tuple[list[str], str]]:
    """Sources in the build context and their destination, of every COPY of a stage."""
    return [
        (words[:-1], words[-1])
        for i in stage_instructions(stage)
        if i.name == "COPY" and not (words := i.value.split())[0].startswith("--from")
    ]
