"""Measures what a pass costs here, by sequences and rows; remembered beside the artifact.

The controller that chooses draft lengths starts from these figures and corrects them while
running, so the shape of the curve matters more than its height.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

import numpy as np

from specdec.artifact import Artifact
from specdec.decoder import batch
from specdec.decoder.batch import Share
from specdec.decoder.runtimes import Runtime
from specdec.types import PassCost

FILE = "costs.json"
ROWS_ALONE = (1, 2, 4, 6, 8, 12, 16, 24, 32)
ROWS_EACH = (1, 3)  # per sequence, in batches of several
BATCHES = (2, 4, 8, 16, 32)
REPEATS = 3  # the fastest counts: whatever else runs can only slow a pass down
_LENGTH = 256


def load_or_measure(
    runtime: Runtime, artifact: Artifact, directory: Path, *, min_rows: int, num_threads: int
) -> tuple[PassCost, ...]:
    """The costs saved for this artifact and machine, or measured now (about two seconds for a
    135M model on two cores) and saved where the directory can be written.

    Overwrites the cache's contents.
    """
    key = f"{artifact.weights_sha256[:16]} {artifact.precision} {_machine()} x{num_threads}"
    path = directory / FILE
    saved = _read(path)
    if key not in saved:
        costs = measure(runtime, artifact, min_rows)
        saved[key] = [list(cost) for cost in costs]
        _write(path, saved)
    return tuple(PassCost(int(n), int(rows), seconds) for n, rows, seconds in saved[key])


def measure(runtime: Runtime, artifact: Artifact, min_rows: int) -> tuple[PassCost, ...]:
    """Time passes of one sequence with ever more rows, then of ever more sequences."""
    runtime.resize(_LENGTH, [0] * runtime.num_slots)
    shapes = [(1, rows) for rows in ROWS_ALONE]
    shapes += [(n, n * each) for n in BATCHES if n <= runtime.num_slots for each in ROWS_EACH]
    ids = np.random.default_rng(0).integers(0, artifact.num_tokens, max(ROWS_ALONE)).tolist()
    costs = []
    for num_sequences, num_rows in shapes:
        each = num_rows // num_sequences
        # Half a cache of context: attention pays for all places, used or not.
        shares = [Share(i, _LENGTH // 2, ids[:each], each) for i in range(num_sequences)]
        built = batch.build(
            shares,
            [0] * runtime.num_slots,
            length=runtime.length,
            min_rows=min_rows,
            max_position=artifact.max_position_embeddings,
        )
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            runtime.forward(built)
            times.append(time.perf_counter() - began)
        costs.append(PassCost(num_sequences, num_rows, min(times)))
    return tuple(costs)


def _machine() -> str:
    return f"{platform.machine()} {platform.node()} {os.cpu_count()} cpus"


def _read(path: Path) -> dict[str, list[list[float]]]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, costs: dict[str, list[list[float]]]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(costs, indent=1))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a read-only model directory is fine
