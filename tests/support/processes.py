"""Scripts as executables, and whether processes and shared memory are gone."""

import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def script_of(name: str, directory: Path) -> Path:
    """An executable that runs the script of this folder with the running Python."""
    source = (Path(__file__).parent / name).read_text()
    path = directory / name.removesuffix(".py")
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def regions_of(pid: int) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"specdec_{pid}_*"))


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.02)
