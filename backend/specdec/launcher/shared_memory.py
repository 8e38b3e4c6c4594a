"""Shared-memory regions of a server: whose they are, and their removal.

Every model process holds one region named `specdec_<pid of its tritonserver>_<uuid>`. A server
that is killed leaves them behind, and Docker's /dev/shm is 64 MB by default.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

DIRECTORY = Path("/dev/shm")
PREFIX = "specdec_"


def region_prefix(pid: int | str) -> str:
    return f"{PREFIX}{pid}_"


def remove_regions(pid: int, directory: Path = DIRECTORY) -> list[str]:
    """Remove the regions of one server; return their names."""
    return _remove(p for p in _regions(directory) if p.name.startswith(region_prefix(pid)))


def sweep_stale(directory: Path = DIRECTORY) -> list[str]:
    """Remove the regions of servers that no longer exist; return their names.

    A process id that is in use again keeps its regions: too few are removed, never too many.
    """
    return _remove(p for p in _regions(directory) if not is_alive(_owner(p.name)))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _regions(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [p for p in directory.iterdir() if re.match(rf"{PREFIX}\d+_", p.name)]


def _owner(name: str) -> int:
    return int(name.removeprefix(PREFIX).split("_")[0])


def _remove(paths: Iterable[Path]) -> list[str]:
    removed = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            path.unlink()
            removed.append(path.name)
    return removed
