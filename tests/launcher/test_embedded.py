import os
import sys
from pathlib import Path

from specdec.launcher.embedded import EmbeddedServer, backend_model_file


def test_the_real_server_is_found():
    server = EmbeddedServer.locate()
    assert os.access(server.binary, os.X_OK)
    assert server.libraries.is_dir()
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in server.stub.parts


def test_backends_are_copies(tmp_path):
    EmbeddedServer.locate().write_backends(tmp_path / "backends")
    files = [p for p in (tmp_path / "backends").rglob("*") if p.is_file()]
    assert sorted(str(p.relative_to(tmp_path / "backends")) for p in files) == [
        "python/libtriton_python.so",
        "python/triton_python_backend_stub",
        "python/triton_python_backend_utils.py",
        "specdec/model.py",
    ]
    assert not any(p.is_symlink() for p in files)
    assert os.access(tmp_path / "backends/python/triton_python_backend_stub", os.X_OK)


def test_model_processes_use_this_python():
    base = {"PATH": "/bin", "LD_LIBRARY_PATH": "/mine", "PYTHONHOME": "/else", "KEPT": "1"}
    server = EmbeddedServer.locate()
    environment = server.environment(base)
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert environment["LD_LIBRARY_PATH"].split(":")[0] == str(server.libraries)
    assert environment["LD_LIBRARY_PATH"].endswith(":/mine")
    assert environment["KEPT"] == "1"
    assert "PYTHONHOME" not in environment
    assert environment.get("VIRTUAL_ENV") == (sys.prefix if sys.prefix != sys.base_prefix else None)


def test_the_backend_is_the_real_file():
    assert "TritonPythonModel" in backend_model_file().read_text()
