"""The script that fills the containers' volume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from specdec.artifact import Artifact
from specdec.config import DecoderConfig, SpeculativeConfig, from_parameters
from specdec.errors import InvalidConfig
from specdec.export import shipped
from specdec.export.cli import app
from specdec.launcher.repository import read_config
from support.docker_files import PROJECT, compose
from support.docker_script import module
from support.heads import random_head, ship_head, write_head
from support.tiny import write_tiny_llama

COMMAND = typer.main.get_command(app)
export = module("export")

EVERYTHING = {
    "RUNTIME": "tensorrt",
    "TARGET_MODEL": "a",
    "DRAFT_MODEL": "b",
    "TARGET_PRECISION": "int4",
    "DRAFT_PRECISION": "bf16",
    "CARD": "l4",
    "MAX_SEQUENCES": "8",
    "MAX_SEQUENCE_LENGTH": "1024",
    "MAX_ROWS": "256",
    "DRAFTER": "draft_model",
    "NUM_DRAFT_TOKENS": "5",
}


def parameters(path: Path) -> dict[str, str]:
    return {k: v.string_value for k, v in read_config(path / "config.pbtxt").parameters.items()}


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_command_is_one_that_the_exporter_takes(tmp_path, role):
    command = export.export_command(role, EVERYTHING, tmp_path)
    assert command[:2] == ["export", role]
    subcommand = COMMAND.commands[role]
    values = subcommand.make_context(role, command[2:]).params
    assert (values["model"], values["output"]) == (
        EVERYTHING[f"{role.upper()}_MODEL"],
        tmp_path / "artifacts" / role,
    )
    assert values["runtime"].value == "tensorrt"
    assert values["precision"] == EVERYTHING[f"{role.upper()}_PRECISION"]
    assert (values["max_sequences"], values["max_sequence_length"]) == (8, 1024)
    assert (values["max_rows"], values["card"]) == (256, "l4")
    assert values["timing_cache"] == tmp_path / "timing-cache"
    draft = tmp_path / "artifacts/draft"  # exported before: both are on one card
    assert list(values["beside"]) == ([draft] if role == "target" else [])


def test_nothing_of_tensorrt_is_said_on_the_processor(tmp_path):
    environment = {**EVERYTHING, "RUNTIME": "onnxruntime"}
    command = export.export_command("target", environment, tmp_path)
    assert not {"--card", "--max-sequences", "--max-rows", "--timing-cache"} & set(command)
    assert "--beside" not in command
    draft = export.export_command("draft", environment, tmp_path)
    values = COMMAND.commands["draft"].make_context("draft", draft[2:]).params
    assert values["target"] == tmp_path / "artifacts/target"  # whose tables a trained one takes
    rtx = export.export_command("target", {**EVERYTHING, "RUNTIME": "tensorrt-rtx"}, tmp_path)
    assert "--timing-cache" not in rtx  # it measures nothing while it compiles
    empty = {"RUNTIME": "tensorrt", "TARGET_MODEL": "a", "TARGET_PRECISION": "", "MAX_ROWS": ""}
    command = export.export_command("target", empty, tmp_path)
    assert not {"--precision", "--max-rows", "--beside"} & set(command)


@pytest.mark.parametrize(
    ("environment", "folder", "chosen"),
    [
        ({}, "shipped-head", (None, True)),
        ({"HEAD_MODEL": ""}, "shipped-head", (None, True)),
        ({"HEAD_MODEL": "/checkpoints/x"}, "head", (Path("/checkpoints/x"), False)),
        ({"HEAD_MODEL": "none"}, None, ()),
        ({"RUNTIME": "tensorrt"}, None, ()),  # a plan holds no tables for a head to take
        ({"RUNTIME": "tensorrt", "HEAD_MODEL": "x"}, "head", (Path("x"), False)),
    ],
)
def test_the_head_s_command(tmp_path, environment, folder, chosen):
    output = export.head_folder(environment, tmp_path)
    assert output == (folder and tmp_path / "artifacts" / folder)
    if output is None:
        return
    command = export.head_command(environment, tmp_path, output)
    assert command[:2] == ["export", "head"]
    values = COMMAND.commands["head"].make_context("head", command[2:]).params
    assert (values["model"], values["if_shipped"]) == chosen
    assert (values["target"], values["output"]) == (tmp_path / "artifacts/target", output)


def test_the_compose_file_sets_only_what_the_script_reads():
    text = (PROJECT / "docker/export.py").read_text()
    services = compose()["services"]
    for name in ("export-cpu", "export-gpu"):
        for variable in services[name]["environment"]:
            read = f'"{variable}"' in text or variable.endswith(("_MODEL", "_PRECISION"))
            assert read or variable in ("HOME", "SPECDEC_CACHE"), variable


@pytest.fixture
def in_process(monkeypatch):
    """Exports without a process each; test_image.py has the real ones."""
    from typer.testing import CliRunner

    from specdec.client.cli import app as everything

    def run(command, *, check):
        assert check
        assert command[:3] == [sys.executable, "-m", "specdec.client.cli"]
        result = CliRunner().invoke(everything, command[3:])
        if result.exit_code:
            raise subprocess.CalledProcessError(result.exit_code, command)

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.usefixtures("in_process")
def test_a_volume_is_filled_and_filled_again(tmp_path):
    target = write_tiny_llama(tmp_path / "target")
    draft = write_tiny_llama(tmp_path / "draft", num_layers=1, seed=3)
    volume = tmp_path / "models"
    environment = {
        "TARGET_MODEL": str(target),
        "DRAFT_MODEL": str(draft),
        "MAX_SEQUENCES": "4",
        "MAX_SEQUENCE_LENGTH": "512",
        "DRAFTER": "draft_model",
        "NUM_DRAFT_TOKENS": "3",
    }
    export.fill(environment, volume, PROJECT)
    repository = volume / "repository"
    assert {p.name for p in repository.iterdir()} == {"speculative", "ensemble", "target", "draft"}
    served = from_parameters(SpeculativeConfig, parameters(repository / "speculative"))
    assert (served.drafter, served.num_draft_tokens, served.max_running) == ("draft_model", 3, 4)
    assert served.draft_model_name == "draft"
    for name in ("target", "draft"):
        config = from_parameters(DecoderConfig, parameters(repository / name))
        assert (config.max_sequences, config.max_sequence_length) == (4, 512)
        artifact = Artifact.read(repository / name / "1")  # through the links
        assert artifact.num_layers == {"target": 2, "draft": 1}[name]

    written = (volume / "artifacts/target/1/model.onnx").stat().st_mtime_ns
    export.fill({**environment, "DRAFT_MODEL": ""}, volume, PROJECT)
    assert {p.name for p in repository.iterdir()} == {"speculative", "ensemble", "target"}
    assert (volume / "artifacts/target/1/model.onnx").stat().st_mtime_ns == written


@pytest.mark.usefixtures("in_process")
def test_the_head_that_is_shipped_for_the_target_is_served(tmp_path, monkeypatch, capsys):
    model, other = (write_tiny_llama(tmp_path / n, seed=i) for i, n in enumerate(("a", "b")))
    volume, repository = tmp_path / "models", tmp_path / "models/repository"
    monkeypatch.setattr(shipped, "WEIGHTS", tmp_path / "weights")

    def served(model: Path, **environment: str) -> str:
        """Whose head; empty: none."""
        export.fill({"TARGET_MODEL": str(model), **environment}, volume, PROJECT)
        named = parameters(repository / "speculative")["head_model_name"]
        inside = repository / "speculative/1/eagle"
        assert inside.exists() == bool(named)
        return Artifact.read(inside).source if named else ""

    assert served(model) == ""
    ship_head(tmp_path / "weights", random_head(model)[0], volume / "artifacts/target/1")
    assert served(model) == f"tiny/eagle for {model}"
    assert served(model, HEAD_MODEL="none") == ""
    trained = write_head(tmp_path / "trained", random_head(model, seed=1)[0])
    assert served(model, HEAD_MODEL=str(trained)) == f"trained for {model}"
    assert served(model) == f"tiny/eagle for {model}"
    assert capsys.readouterr().out == ""
    assert served(other) == ""
    assert capsys.readouterr().out.startswith(f"note: the head in {volume}/artifacts/shipped-head")


def test_a_failed_export_leaves_what_is_served(tmp_path, capfd):
    volume = tmp_path / "models"
    (volume / "repository/target").mkdir(parents=True)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        export.fill({"TARGET_MODEL": str(tmp_path / "nothing")}, volume, PROJECT)
    assert failed.value.returncode == 2
    assert "is not a file or directory" in capfd.readouterr().err
    assert (volume / "repository/target").is_dir()


@pytest.mark.usefixtures("in_process")
def test_an_unknown_size_stops_before_the_repository_changes(tmp_path):
    volume = tmp_path / "models"
    model = write_tiny_llama(tmp_path / "model")
    with pytest.raises(InvalidConfig, match="max_running is 'many'"):
        export.fill({"TARGET_MODEL": str(model), "MAX_SEQUENCES": "many"}, volume, PROJECT)
    assert not (volume / "repository").exists()
