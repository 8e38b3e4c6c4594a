"""docker/export.py as a module: it lies in no package, since only containers run it."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

from support.docker_files import PROJECT


@cache
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docker_export", PROJECT / "docker/export.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
