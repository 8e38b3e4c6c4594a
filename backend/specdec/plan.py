"""A graph compiled by TensorRT, and the description that says where and how it may run.

    DIR/model.plan   what TensorRT loads
    DIR/plan.json    this description

A plan only runs with the TensorRT that made it, on the kind of card it was made for, within the
shapes it was made for. All three are checked before TensorRT sees it, because its own errors do
not say what to do. Knows nothing of graphs, CUDA or caches.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specdec.artifact import Artifact
from specdec.errors import InvalidArtifact

FORMAT = 3  # raise it when plans of before are not to be loaded
FILE = "plan.json"
PLAN = "model.plan"

# Runtime -> (module, package that has it). They share one Python interface.
MODULES = {
    "tensorrt": ("tensorrt", "tensorrt-cu13"),
    "tensorrt-rtx": ("tensorrt_rtx", "tensorrt-rtx"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Provenance and limits of one model.plan."""

    runtime: str  # a key of MODULES
    runtime_version: str  # of the TensorRT that compiled it
    compute_capability: str  # of the card it runs on, e.g. SM89
    dtype: str  # of the cache: float16, bfloat16
    max_sequences: int  # B
    max_rows: int  # N, R and T of one pass
    cache_length: int  # S, of every slot
    weights_sha256: str  # of the graph it was compiled from
    num_bytes: int  # of the plan: a copy that was cut short is told from a whole one
    memory: dict[str, int]  # bytes of the card by what they are for, as estimated
    provenance: dict[str, str]  # what the exporter compares to know whether to compile again
    format: int = FORMAT

    def write(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Plan:
        """Raises `InvalidArtifact` with the path and the reason."""
        path = directory / FILE
        try:
            found: Any = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidArtifact(f"{path} cannot be read: {error}: export again") from None
        names = {f.name for f in fields(cls)}
        if not isinstance(found, dict) or set(found) != names or found["format"] != FORMAT:
            raise InvalidArtifact(f"{path} is of another version of this exporter: export again")
        return cls(**found)

    def check(self, artifact: Artifact, directory: Path, *, num_slots: int) -> None:
        """Whether the files belong together and suffice. Raises `InvalidArtifact`."""
        path = directory / PLAN
        if not path.is_file():
            raise InvalidArtifact(f"no plan in {directory} ({PLAN} is missing): export again")
        if path.stat().st_size != self.num_bytes:
            raise InvalidArtifact(
                f"{path} has {path.stat().st_size} bytes, {FILE} says {self.num_bytes}: "
                f"copy or export it again"
            )
        if (self.runtime, self.weights_sha256) != (artifact.runtime, artifact.weights_sha256):
            raise InvalidArtifact(
                f"{path} is {self.runtime} of weights {self.weights_sha256[:12]}, the model is "
                f"{artifact.runtime} of {artifact.weights_sha256[:12]}: export again"
            )
        if num_slots > self.max_sequences:
            raise InvalidArtifact(
                f"max_sequences is {num_slots}, the plan holds at most {self.max_sequences}: "
                f"lower it, or export with --max-sequences {num_slots}"
            )

    def check_machine(self, *, runtime_version: str, compute_capability: str) -> None:
        """Whether this machine can run it. Raises `InvalidArtifact`."""
        if runtime_version != self.runtime_version:
            raise InvalidArtifact(
                f"the plan was compiled by {self.runtime} {self.runtime_version}, installed is "
                f"{runtime_version}: plans are bound to one version, export again here"
            )
        if compute_capability != self.compute_capability:
            raise InvalidArtifact(
                f"the plan was compiled for {self.compute_capability}, this card is "
                f"{compute_capability}: export again with --capability {compute_capability}"
            )


def import_tensorrt(runtime: str) -> Any:
    """The TensorRT module of a runtime. Raises `InvalidArtifact`: it is not installed."""
    module, package = MODULES[runtime]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InvalidArtifact(f"{runtime} is not installed: pip install {package}") from None
