"""The directory one run of the server writes to: models, backends, log. Gone when it ends.

Named after the launcher's process id, so that a later start can remove what a killed one left.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from specdec.errors import InvalidConfig
from specdec.launcher.shared_memory import is_alive

PREFIX = "specdec-serve-"


class RunDirectory:
    """Context manager; an error leaves the log, everything else is always removed."""

    def __init__(self, parent: Path | None = None) -> None:
        """`parent` defaults to the system's temporary directory; it is created when missing."""
        self._parent = parent or Path(tempfile.gettempdir())
        self.path = Path()

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def backends(self) -> Path:
        return self.path / "backends"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    def __enter__(self) -> RunDirectory:
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            sweep_stale(self._parent)
            directory = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=self._parent)
        except OSError as error:
            raise InvalidConfig(f"cannot write to run directory {self._parent}: {error}") from None
        self.path = Path(directory).resolve()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self.log.is_file():
            shutil.rmtree(self.models, ignore_errors=True)
            shutil.rmtree(self.backends, ignore_errors=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)


def sweep_stale(parent: Path) -> None:
    """Remove run directories whose launcher is gone, but never anyone else's."""
    for path in parent.glob(f"{PREFIX}*"):
        match = re.match(rf"{PREFIX}(\d+)-", path.name)
        ours = path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
        if match and ours and not is_alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)
