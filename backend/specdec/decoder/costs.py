"""Measures what a pass costs here, by sequences and rows; remembered beside the artifact.

The controller that chooses draft lengths starts from these figures and corrects them while
running, so the shape of the curve matters more than its height. Whatever else the machine does
meanwhile bends it: measure when the server is idle.
"""

from __future__ import annotations

import json
import os
import platform
import time
import zlib
from pathlib import Path

import numpy as np

from specdec.artifact import FILE as ARTIFACT
from specdec.artifact import GRAPH, Artifact
from specdec.decoder import batch
from specdec.decoder.batch import Share
from specdec.decoder.runtimes import Runtime
from specdec.types import PassCost

FILE = "costs.json"  # beside the artifact
# Kernels take six or twelve rows at a time: beyond either a pass costs a step more.
ROWS_ALONE = (1, 2, 4, 6, 7, 9, 12, 16, 24, 32)
ROWS_EACH = (1, 2, 4, 8)  # per sequence, in batches of several
MIN_ROUNDS, MAX_ROUNDS = 2, 3  # over all shapes: a disturbance hits many of one round, few of all
ENOUGH_SECONDS = 0.1  # of one shape
BUSY = 0.1  # share of the time that a thread waits for a processor when others want it too
LAST_SECONDS = 0.5  # a pass this long is beyond the knee: larger ones go on in a straight line
_LENGTH = 256


def load_or_measure(
    runtime: Runtime, artifact: Artifact, directory: Path, *, min_rows: int, num_threads: int
) -> tuple[PassCost, ...]:
    """The costs saved for this artifact and machine, or measured now (about three seconds for a
    135M model on two cores) and saved, unless the machine was busy or the directory is read-only.

    Overwrites the cache's contents.
    """
    key = (
        f"{artifact.weights_sha256[:16]}{_graph(directory)} {artifact.precision} "
        f"{_machine()} x{num_threads} {runtime.num_slots} slots, idle"
    )
    path = (directory / ARTIFACT).resolve().parent / FILE  # the served directory may hold links
    saved = _read(path)
    if key in saved:
        return tuple(PassCost(int(n), int(rows), seconds) for n, rows, seconds in saved[key])
    began, waited = time.perf_counter(), _waited()
    times = measure(runtime, artifact, min_rows)
    is_busy = _waited() - waited > BUSY * (time.perf_counter() - began)
    costs = tuple(PassCost(*shape, min(found)) for shape, found in times.items())
    if not is_busy:
        saved[key] = [list(cost) for cost in costs]
        _write(path, saved)
    return costs


def _graph(directory: Path) -> str:
    """The same weights may be in another graph. Empty where there is none (a compiled plan)."""
    path = directory / GRAPH
    return f"-{zlib.crc32(path.read_bytes()):08x}" if path.is_file() else ""


def shapes(num_slots: int) -> list[tuple[int, int]]:
    """(sequences, rows) of the passes to time: one sequence with ever more rows, then batches of
    2, 4, 8, ... up to all slots."""
    batches = [1 << i for i in range(1, num_slots.bit_length()) if 1 << i < num_slots]
    if num_slots > 1:
        batches.append(num_slots)
    return [(1, rows) for rows in ROWS_ALONE] + [
        (n, n * each) for n in batches for each in ROWS_EACH
    ]


Times = dict[tuple[int, int], list[float]]  # seconds of every pass, by (sequences, rows)


def measure(runtime: Runtime, artifact: Artifact, min_rows: int) -> Times:
    """Time passes of all `shapes`, as far as they are not too long, in rounds.

    The fastest of a shape counts: whatever else runs can only slow a pass down.
    """
    runtime.resize(_LENGTH, [0] * runtime.num_slots)
    ids = np.random.default_rng(0).integers(0, artifact.num_tokens, max(ROWS_ALONE)).tolist()
    times: Times = {}
    for number in range(MAX_ROUNDS):
        for shape in shapes(runtime.num_slots) if number == 0 else list(times):
            found = times.get(shape, [])
            if number >= MIN_ROUNDS and sum(found) > ENOUGH_SECONDS:
                continue
            if number == 0 and _is_too_large(shape, times, runtime.max_rows):
                continue
            built = _batch(runtime, artifact, min_rows, shape, ids)
            began = time.perf_counter()
            runtime.forward(built)[0:1]  # a row on the host is a finished pass
            times[shape] = [*found, time.perf_counter() - began]
    return times


def _waited() -> float:
    """Seconds that this thread was ready to run and did not; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _is_too_large(shape: tuple[int, int], times: Times, max_rows: int | None) -> bool:
    num_rows = shape[1]
    if max_rows is not None and num_rows > max_rows:
        return True
    return any(found[0] > LAST_SECONDS and rows <= num_rows for (_, rows), found in times.items())


def _batch(
    runtime: Runtime, artifact: Artifact, min_rows: int, shape: tuple[int, int], ids: list[int]
) -> batch.Batch:
    """Half a cache of context: attention pays for all places, used or not."""
    num_sequences, num_rows = shape
    each = num_rows // num_sequences
    return batch.build(
        [Share(i, _LENGTH // 2, ids[:each], each) for i in range(num_sequences)],
        [0] * runtime.num_slots,
        length=runtime.length,
        min_rows=min_rows,
        max_position=artifact.max_position_embeddings,
    )


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
