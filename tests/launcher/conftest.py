from pathlib import Path

import pytest

from specdec.launcher.embedded import EmbeddedServer
from specdec.launcher.ports import Ports
from specdec.launcher.server import TritonServer
from specdec.launcher.stop_signal import StopSignal
from support.processes import script_of


@pytest.fixture
def make_server(tmp_path, monkeypatch):
    """Makes a TritonServer around the fake binary; the test enters it."""

    def make(mode: str, *, ports: Ports | None = None, stop: StopSignal | None = None):
        monkeypatch.setenv("FAKE_TRITON", mode)
        binary = script_of("fake_tritonserver.py", tmp_path)
        embedded = EmbeddedServer(binary, tmp_path, tmp_path, Path(binary))
        return TritonServer(
            embedded,
            models=tmp_path / "models",
            backends=tmp_path / "backends",
            log=tmp_path / "server.log",
            ports=ports or Ports.free(),
            exit_timeout_seconds=1,
            stop=stop,
        )

    return make
