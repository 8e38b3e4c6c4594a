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
ROWS_EACH = (1, 2, 4, 8)  # per sequence, in batches of several
REPEATS = 3  # the fastest counts: whatever else runs can only slow a pass down
REPEAT_SECONDS = 0.1  # enough of one shape
LAST_SECONDS = 0.5  # a pass this long is beyond the knee: larger ones go on in a straight line
_LENGTH = 256


def load_or_measure(
    runtime: Runtime, artifact: Artifact, directory: Path, *, min_rows: int, num_threads: int
) -> tuple[PassCost, ...]:
    """The costs saved for this artifact and machine, or measured now (about two seconds for a
    135M model on two cores) and saved where the directory can be written.

    Overwrites the cache's contents.
    """
    key = (
        f"{artifact.weights_sha256[:16]} {artifact.precision} {_machine()} x{num_threads} "
        f"{runtime.num_slots} slots"
    )
    path = directory / FILE
    saved = _read(path)
    if key not in saved:
        costs = measure(runtime, artifact, min_rows)
        saved[key] = [list(cost) for cost in costs]
        _write(path, saved)
    return tuple(PassCost(int(n), int(rows), seconds) for n, rows, seconds in saved[key])


def shapes(num_slots: int) -> list[tuple[int, int]]:
    """(sequences, rows) of the passes to time: one sequence with ever more rows, then batches of
    2, 4, 8, ... up to all slots."""
    batches = [1 << i for i in range(1, num_slots.bit_length()) if 1 << i < num_slots]
    if num_slots > 1:
        batches.append(num_slots)
    return [(1, rows) for rows in ROWS_ALONE] + [
        (n, n * each) for n in batches for each in ROWS_EACH
    ]


def measure(runtime: Runtime, artifact: Artifact, min_rows: int) -> tuple[PassCost, ...]:
    """Time passes of all `shapes`, as far as they are not too long."""
    runtime.resize(_LENGTH, [0] * runtime.num_slots)
    ids = np.random.default_rng(0).integers(0, artifact.num_tokens, max(ROWS_ALONE)).tolist()
    costs: list[PassCost] = []
    for num_sequences, num_rows in shapes(runtime.num_slots):
        if runtime.max_rows is not None and num_rows > runtime.max_rows:
            continue
        if any(c.seconds > LAST_SECONDS and c.num_rows <= num_rows for c in costs):
            continue
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
        costs.append(PassCost(num_sequences, num_rows, _fastest(runtime, built)))
    return tuple(costs)


def _fastest(runtime: Runtime, built: batch.Batch) -> float:
    """Of at least two: a runtime may prepare itself for a shape it sees first."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < REPEATS and sum(times) < REPEAT_SECONDS):
        began = time.perf_counter()
        runtime.forward(built)[0:1]  # a row on the host is a finished pass
        times.append(time.perf_counter() - began)
    return min(times)


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
