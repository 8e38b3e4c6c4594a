"""The Dockerfile's and the compose file's steps, followed here as far as no container is needed.

The wheel is built and installed into an empty environment, every COPY is made below a folder that
stands for the image's root, the export service's command fills the volume, and the server
service's command starts the real tritonserver on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdec.export.head_source import identity
from specdec.launcher.ports import Ports
from support.docker_files import PROJECT, compose, context_copies, stage_instructions
from support.processes import SHARED_MEMORY
from support.tiny import write_tiny_llama

STUB = "from specdec.launcher.embedded import EmbeddedServer as E; import json; e = E.locate(); "


def run(*command: object, **options) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def left_out(folder: str, names: list[str]) -> set[str]:
    """What git ignores or .dockerignore names: exported models of this work tree too."""
    path = Path(folder).relative_to(PROJECT)
    if f"{path}/*" in (PROJECT / ".dockerignore").read_text().splitlines():
        return {name for name in names if name != ".gitkeep"}
    return {name for name in names if name == "__pycache__" or name.endswith(".egg-info")}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context: what .dockerignore lets through."""
    folder = tmp_path_factory.mktemp("context")
    for sources, _ in context_copies("wheel") + context_copies("cpu"):
        for source in sources:
            target = folder / source
            target.parent.mkdir(parents=True, exist_ok=True)
            if (PROJECT / source).is_dir():
                shutil.copytree(PROJECT / source, target, dirs_exist_ok=True, ignore=left_out)
            else:
                shutil.copy2(PROJECT / source, target)
    return folder


@pytest.fixture(scope="module")
def python(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; the packages it depends on are those of this one.

    They are reached as a plain folder, whose .pth files Python does not read: the editable
    install of this project is not among them.
    """
    folder = tmp_path_factory.mktemp("image")
    wheels = folder / "wheels"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, context)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv/bin/python"
    (wheel,) = wheels.glob("*.whl")
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    (packages,) = (folder / "venv/lib").glob("python3.*/site-packages")
    (packages / "present.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return python


@pytest.fixture(scope="module")
def root(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files: every COPY from the context below one folder."""
    root = tmp_path_factory.mktemp("root")
    for sources, target in context_copies("cpu"):
        for source in sources:
            place = root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (context / source).is_dir() else shutil.copy2
            copy(context / source, place)
    return root


def inside(words: list[str], root: Path, python: Path, ports: Ports) -> list[str]:
    """A service's command, with its paths below `root` and its ports free ones."""
    moved = {8000: ports.http, 8001: ports.grpc, 8002: ports.metrics}
    result = []
    for word in words:
        name, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
        if value.startswith("/"):
            value = str(root / value.lstrip("/"))
        if name.endswith("-port"):
            value = str(moved[int(value)])
        result.append(str(python) if word == "python3" else f"{name}{equals}{value}")
    return result


@pytest.fixture(scope="module")
def volume(root: Path, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = write_tiny_llama(tmp_path_factory.mktemp("checkpoints") / "tiny")
    service = compose(TARGET_MODEL=str(model), MAX_SEQUENCES="4")["services"]["export-cpu"]
    environment = {k: str(v) for k, v in service["environment"].items() if v is not None}
    volume = root / "models"
    changed = {"VOLUME": str(volume), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    command = inside(service["command"], root, python, Ports())
    run(*command, env={**environment, **changed}, cwd=root)
    return volume


def test_the_installed_package_is_the_wheel(python):
    code = "import specdec, specdec.export, specdec.client; print(specdec.__file__)"
    assert Path(run(python, "-c", code, cwd="/").strip()).is_relative_to(python.parents[1])


def test_the_wheel_carries_what_is_shipped(python):
    code = (
        "import json; from specdec.export.head_source import identity\n"
        "from specdec.export.shipped import WEIGHTS\n"
        "print(json.dumps({str(p.relative_to(WEIGHTS)): identity(p) for p in WEIGHTS.glob('*/*')}))"
    )
    shipped = sorted(p.parent for p in (PROJECT / "weights").glob("*/*/model.safetensors"))
    wanted = {str(p.relative_to(PROJECT / "weights")): identity(p) for p in shipped}
    assert wanted
    assert json.loads(run(python, "-c", code, cwd="/")) == wanted


def test_the_image_holds_no_exported_model(root):
    held = {p.name for p in (root / "opt/specdec/model_repository").rglob("*") if p.is_file()}
    assert held == {"config.pbtxt", "model.py", ".gitkeep"}


def test_the_dockerfile_installs_the_wheel_without_dependencies():
    for stage in ("cpu", "gpu"):
        runs = [i.value for i in stage_instructions(stage) if i.name == "RUN"]
        assert sum("--no-deps /wheels/*.whl" in value for value in runs) == 1


@pytest.fixture
def served(root: Path, python: Path, volume: Path) -> Iterator[tuple[Ports, subprocess.Popen]]:
    """The server service's command on the embedded server's binary."""
    ports = Ports.free()
    service = compose()["services"]["server-cpu"]
    embedded = json.loads(
        run(
            python,
            "-c",
            STUB + "print(json.dumps([str(e.binary), str(e.python_backend), str(e.stub), "
            "e.environment()]))",
        )
    )
    binary, python_backend, stub, environment = embedded
    backends = root / "opt/tritonserver/backends"
    shutil.copytree(python_backend, backends / "python", dirs_exist_ok=True)  # as NGC's image
    shutil.copy2(stub, backends / "python")
    command = inside(service["command"], root, python, ports)
    local = ["--http-address", "--grpc-address", "--metrics-address"]
    soon = "--exit-timeout-secs=5"  # how long it waits for a model process that is dead
    command = [binary, *command[1:], *(f"{flag}=127.0.0.1" for flag in local), soon]
    before = set(SHARED_MEMORY.iterdir())
    with (root / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield ports, process
        finally:
            process.kill()
            process.wait()
            for path in set(SHARED_MEMORY.iterdir()) - before:  # of a server that was not asked
                path.unlink()


def healthy(root: Path, ports: Ports, process: subprocess.Popen) -> bool:
    """The service's own health check."""
    how, _, script = compose()["services"]["server-cpu"]["healthcheck"]["test"]
    assert how == "CMD"
    command = [sys.executable, str(root / script.lstrip("/")), "--server", str(process.pid)]
    command += ["--url", f"http://127.0.0.1:{ports.http}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.server
def test_the_laid_out_image_serves(root, served):
    ports, process = served
    log = root / "server.log"
    assert not healthy(root, *served)
    deadline = time.monotonic() + 120
    while not healthy(root, *served):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)
    for model in ("speculative", "ensemble"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{ports.http}/v2/models/{model}/generate",
            data=json.dumps({"text_input": "the quick", "max_tokens": 8}).encode(),
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert answer["text_output"]
    assert "4 sequences of 2048 tokens" in log.read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


@pytest.mark.server
@pytest.mark.parametrize("model", ["speculative", "target"])
def test_a_server_whose_model_process_has_died_is_ended_for_docker_to_restart(root, served, model):
    _, process = served
    deadline = time.monotonic() + 120
    while not healthy(root, *served):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    os.kill(stub_of(model, process.pid), signal.SIGKILL)
    assert not healthy(root, *served)
    process.wait(timeout=60)


def stub_of(model: str, server: int) -> int:
    """Process id of the server's child that runs a model."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            words = (path / "cmdline").read_bytes().split(b"\0")
            if parent == str(server) and f"{model}_0_0".encode() in words:
                return int(path.name)
    raise AssertionError(f"no process runs {model}")
