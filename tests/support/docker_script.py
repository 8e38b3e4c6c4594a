"""docker/NAME.py as a module: it lies in no package, since only containers run it."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

from support.docker_files import PROJECT


@cache
def module(name: str) -> ModuleType:
    path = PROJECT / "docker" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"docker_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
