"""docs/fleet.md, followed on the real server: beside other models, explicitly, two targets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec.launcher.embedded import EmbeddedServer
from specdec.launcher.ports import Ports
from specdec.launcher.repository import read_config
from support.tiny import export_tiny

PROJECT = Path(__file__).resolve().parents[1]
DOCUMENT = (PROJECT / "docs/fleet.md").read_text()
OTHER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())])
                for r in requests]
"""
OTHER_CONFIG = """
name: "other" backend: "python" max_batch_size: 0
input [{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU }]
"""


def copy_model(source: Path, target: Path, **parameters: str) -> None:
    """What the document says about a second target: another folder, another name."""
    from google.protobuf import text_format

    shutil.copytree(source, target)
    config = read_config(target / "config.pbtxt")
    config.name = target.name
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    (target / "config.pbtxt").write_text(text_format.MessageToString(config))


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The fleet's own repository, and ours with two targets."""
    root = tmp_path_factory.mktemp("fleet")
    own, ours = root / "own", root / "specdec"
    (own / "other/1").mkdir(parents=True)
    (own / "other/1/model.py").write_text(OTHER)
    (own / "other/config.pbtxt").write_text(OTHER_CONFIG)
    ours.mkdir()
    source = PROJECT / "model_repository"
    for letter, seed in (("a", 0), ("b", 7)):
        artifact = export_tiny(root / letter, seed=seed).parent
        target = f"target-{letter}"
        copy_model(artifact, ours / target, max_sequences="2", max_sequence_length="256")
        copy_model(source / "speculative", ours / f"chat-{letter}", target_model_name=target)
    return own, ours


class Server:
    def __init__(self, ports: Ports, log: Path) -> None:
        self.ports, self.log = ports, log

    def post(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports.http}/v2/{path}", data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def ready_models(self) -> set[str]:
        listed = self.post("repository/index")
        return {model["name"] for model in listed if model.get("state") == "READY"}


@pytest.fixture(scope="module")
def server(
    repositories: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    embedded, ports = EmbeddedServer.locate(), Ports.free()
    embedded.write_backends(folder / "backends")
    command = [
        str(embedded.binary),
        *(f"--model-repository={path}" for path in repositories),
        f"--backend-directory={folder / 'backends'}",
        "--model-control-mode=explicit",
        "--load-model=other",
        *(f"--{x}-address=127.0.0.1" for x in ("http", "grpc", "metrics")),
        *(f"--{name}-port={port}" for name, port in vars_of(ports).items()),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=embedded.environment(), stdout=log, stderr=log)
    made = Server(ports, folder / "log")
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(
                    f"http://127.0.0.1:{ports.http}/v2/health/ready", timeout=2
                ).close()
                break
            except OSError:
                assert process.poll() is None, made.log.read_text()[-3000:]
                assert time.monotonic() < deadline, made.log.read_text()[-3000:]
                time.sleep(0.2)
        yield made
    finally:
        process.terminate()
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def vars_of(ports: Ports) -> dict[str, int]:
    return {"http": ports.http, "grpc": ports.grpc, "metrics": ports.metrics}


def generate(server: Server, model: str) -> str:
    answer = server.post(f"models/{model}/generate", text_input="the quick", max_tokens=12)
    text: str = answer["text_output"]
    return text


@pytest.mark.server
def test_load_in_the_documented_order_serve_two_targets_and_unload(server: Server) -> None:
    assert server.ready_models() == {"other"}
    for model in ("target-a", "chat-a", "target-b", "chat-b"):
        server.post(f"repository/models/{model}/load")
    assert server.ready_models() == {"other", "target-a", "chat-a", "target-b", "chat-b"}
    first, second = generate(server, "chat-a"), generate(server, "chat-b")
    assert first
    assert second
    assert first != second  # each asks its own target
    body = {"name": "X", "shape": [1], "datatype": "FP32", "data": [2.5]}
    answer = server.post("models/other/infer", inputs=[body])
    assert answer["outputs"][0]["data"] == [2.5]

    for model in ("chat-b", "target-b"):
        server.post(f"repository/models/{model}/unload")
    deadline = time.monotonic() + 30
    while "target-b" in server.ready_models() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert server.ready_models() == {"other", "target-a", "chat-a"}
    assert generate(server, "chat-a") == first
    with pytest.raises(urllib.error.HTTPError) as refused:
        generate(server, "chat-b")
    assert refused.value.code >= 400


def test_every_parameter_and_file_in_the_document_exists() -> None:
    from dataclasses import fields

    from specdec.config import DecoderConfig, SpeculativeConfig

    known = {f.name for kind in (DecoderConfig, SpeculativeConfig) for f in fields(kind)}
    named = set(re.findall(r'key: "(\w+)"', DOCUMENT))
    assert named
    assert named <= known
    for path in re.findall(r"\]\(([\w./-]+)\)", DOCUMENT):
        assert (PROJECT / "docs" / path).exists(), path
    assert os.path.basename(DOCUMENT.splitlines()[0]).startswith("# ")
