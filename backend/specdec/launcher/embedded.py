"""The tritonserver binary that nvidia-pytriton carries, and the backends directory it needs.

Only files are used: pytriton itself is never imported. Knows nothing of models or processes.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdec.errors import InvalidConfig

STUB = "triton_python_backend_stub"
_SPECDEC = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """Where the parts of the real server are."""

    binary: Path
    libraries: Path  # shared objects of the binary and of the stub
    python_backend: Path  # directory of libtriton_python.so and triton_python_backend_utils.py
    stub: Path  # the process that runs a Python model; one binary per Python version

    @classmethod
    def locate(cls) -> EmbeddedServer:
        """Find the server next to the installed pytriton.

        Raises:
            InvalidConfig: it is not installed, or has no stub for the running Python.
        """
        spec = importlib.util.find_spec("pytriton")
        if spec is None or spec.origin is None:
            raise InvalidConfig(
                "no tritonserver found: install nvidia-pytriton, which carries it for x86-64 Linux"
            )
        package = Path(spec.origin).parent
        root = package / "tritonserver"
        stubs = root / "python_backend_stubs"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        server = cls(
            binary=root / "bin" / "tritonserver",
            libraries=package.parent / "nvidia_pytriton.libs",
            python_backend=root / "backends" / "python",
            stub=stubs / version / STUB,
        )
        if not server.stub.is_file():
            known = ", ".join(sorted(p.name for p in stubs.glob("3.*"))) or "none"
            raise InvalidConfig(f"tritonserver has no stub for Python {version}: it has {known}")
        if not server.binary.is_file():
            raise InvalidConfig(f"tritonserver is missing: expected {server.binary}")
        return server

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment in which the server's model processes import this Python's packages."""
        environment = dict(base)
        libraries = [str(self.libraries), *_python_libraries(), environment.get("LD_LIBRARY_PATH")]
        environment["LD_LIBRARY_PATH"] = ":".join(p for p in libraries if p)
        # The stub links libpython; it finds its packages by looking for python3 on PATH.
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', '')}"
        environment.pop("PYTHONHOME", None)
        environment.pop("VIRTUAL_ENV", None)
        if sys.prefix != sys.base_prefix:
            environment["VIRTUAL_ENV"] = sys.prefix
        environment["PYTHONUNBUFFERED"] = "1"  # what a model prints reaches the log at once
        return environment

    def write_backends(self, directory: Path) -> None:
        """Lay out `python/` and `specdec/`.

        The stub is copied and not linked: the server refuses a backend file outside its folder,
        and takes the stub for every Python-based backend from `python/`.
        """
        python, specdec = directory / "python", directory / "specdec"
        python.mkdir(parents=True)
        specdec.mkdir()
        for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
            shutil.copy2(self.python_backend / name, python / name)
        shutil.copy2(self.stub, python / STUB)
        shutil.copy2(backend_model_file(), specdec / "model.py")


def _python_libraries() -> list[str]:
    """Directory of libpython when Python was built with one.

    Raises:
        InvalidConfig: the interpreter is static, and the system has no libpython either.
    """
    directory = sysconfig.get_config_var("LIBDIR")
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    if directory and (Path(directory) / name).is_file():
        return [directory]
    system = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")
    if any((Path(p) / m / name).is_file() for p in system for m in ("", multiarch)):
        return []
    raise InvalidConfig(
        f"{name} not found: tritonserver runs Python models with it; "
        "install a Python built with --enable-shared, or the system's libpython package"
    )


def backend_model_file() -> Path:
    """backend/model.py of a checkout, or the copy that an installed package carries."""
    # The packaged copy first: what stands beside an installed package may be anyone's model.py.
    candidates = (_SPECDEC / "backend" / "model.py", _SPECDEC.parent / "model.py")
    for path in candidates:
        if path.is_file():
            return path
    raise InvalidConfig(f"the backend's model.py is missing: expected {candidates[-1]}")
