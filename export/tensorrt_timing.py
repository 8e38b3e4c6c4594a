"""What TensorRT has measured about kernels, kept from one compilation to the next."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any


class TimingCache:
    """One file, or none."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._cache = path, None

    def load(self, config: Any) -> None:
        """Give it to a builder's config; a file of another version counts as empty."""
        path = self._path
        if path is None:
            return
        for data in (path.read_bytes() if path.is_file() else b"", b""):
            self._cache = config.create_timing_cache(data)
            if config.set_timing_cache(self._cache, ignore_mismatch=False):
                return

    def save(self) -> str:
        """What is known now, whole or not at all: the next compilation reads it.

        Returns why it was not; the plan that took so long is worth more. Empty: nothing is wrong.
        """
        path = self._path
        if path is None or self._cache is None:
            return ""
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        if (data := self._cache.serialize()) is None:
            return "what was measured about kernels cannot be kept: TensorRT gives none of it"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(data)
            os.replace(partial, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            return f"--timing-cache {path} cannot be written: {error.strerror}"
        return ""
