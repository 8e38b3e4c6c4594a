"""`specdec export`: one line per outcome, exit code 2 for every fault, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specdec.artifact import Artifact
from specdec.export import shipped
from specdec.export.cli import app
from support.heads import DRAFT, random_head, ship_head, write_head
from support.tiny import write_tiny_llama


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def test_export_check_then_reuse(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "repository/target"
    first = run("target", "--model", model, "--output", output, "--check")
    assert first.exit_code == 0, first.output
    check, final = first.stdout.splitlines()
    assert check.startswith("check: ")
    assert final.startswith(f"exported: {output / '1'} (fp32, ")
    assert final.endswith("next: specdec serve")
    second = run("target", "--model", model, "--output", output)
    assert second.exit_code == 0
    assert second.stdout.startswith("up to date: ")
    assert len(second.stdout.splitlines()) == 1


def test_json_is_the_only_thing_on_stdout(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft"
    arguments = ("draft", "--model", model, "--output", output, "--precision", "int8", "--json")
    result = run(*arguments, "--check")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["directory"] == str(output / "1")
    assert (summary["precision"], summary["reused"]) == ("int8", False)
    assert summary["check"]["agreement"] > 0.9
    files = (output / "1").iterdir()
    assert summary["num_bytes"] == sum(p.stat().st_size for p in files)
    assert json.loads(run(*arguments).stdout)["check"] is None


def test_the_draft_s_next_step_names_its_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("draft", "--model", model, "--output", tmp_path / "small")
    assert 'set draft_model_name to "small"' in result.stdout
    monkeypatch.chdir(tmp_path)
    result = run("draft", "--model", model)
    assert result.stdout.endswith("next: specdec serve --drafter draft_model\n")


def test_a_head_is_exported_for_its_target(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert run("target", "--model", model, "--output", target).exit_code == 0
    trained = write_head(tmp_path / "trained", random_head(model)[0])
    arguments = ("head", "--model", trained, "--target", target, "--output", tmp_path / "eagle")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"exported: {tmp_path / 'eagle' / '1'} (int8, ")
    assert result.stdout.endswith("next: specdec serve\n")
    assert json.loads(run(*arguments, "--json").stdout)["reused"]
    refused = run(*arguments, "--target", tmp_path)
    assert refused.exit_code == 2
    assert "no exported model" in refused.stderr


@pytest.fixture
def places(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """Options of `export head`; nothing is shipped yet."""
    monkeypatch.setattr(shipped, "WEIGHTS", tmp_path / "weights")
    assert run("target", "--model", model, "--output", tmp_path / "target").exit_code == 0
    return ("--target", tmp_path / "target", "--output", tmp_path / "eagle")


def test_the_shipped_head_is_the_default(model: Path, tmp_path: Path, places) -> None:
    def ship(seed: int) -> None:
        ship_head(tmp_path / "weights", random_head(model, seed=seed)[0], tmp_path / "target/1")

    ship(seed=0)
    result = run("head", *places)
    assert result.stdout.startswith(f"exported: {tmp_path / 'eagle/1'} (int8, ")
    found = Artifact.read(tmp_path / "eagle/1")
    assert found.source == f"tiny/eagle for {model}"
    assert run("head", *places, "--if-shipped").stdout.startswith("up to date: ")
    ship(seed=1)  # a better one
    assert run("head", *places, "--if-shipped").stdout.startswith("exported: ")
    assert Artifact.read(tmp_path / "eagle/1").weights_sha256 != found.weights_sha256


def test_a_head_of_ones_own_is_replaced_by_force_only(model: Path, tmp_path: Path, places) -> None:
    ship_head(tmp_path / "weights", random_head(model)[0], tmp_path / "target/1")
    trained = write_head(tmp_path / "trained", random_head(model, seed=1)[0])
    assert run("head", *places, "--model", trained).exit_code == 0
    own = Artifact.read(tmp_path / "eagle/1")
    kept = run("head", *places, "--if-shipped")
    assert (kept.exit_code, kept.stdout[:12]) == (0, "up to date: ")
    assert kept.stderr == f"kept: trained for {model}; --force puts the shipped head there\n"
    assert Artifact.read(tmp_path / "eagle/1") == own
    assert json.loads(run("head", *places, "--json").stdout)["reused"]
    assert run("head", *places, "--force").stdout.startswith("exported: ")
    assert Artifact.read(tmp_path / "eagle/1").source == f"tiny/eagle for {model}"


def test_where_no_head_is_shipped_it_is_said(model: Path, tmp_path: Path, places) -> None:
    refused = run("head", *places)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: no head is shipped for {model}: train one")
    quiet = run("head", *places, "--if-shipped")
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    assert quiet.stderr == f"no head is shipped for {model}: drafts come without one\n"
    assert not (tmp_path / "eagle").exists()


def test_the_shipped_draft_is_the_default(model: Path, tmp_path: Path, places) -> None:
    refused = run("draft", *places)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: no draft is shipped for {model}: name a small model")
    ship_head(tmp_path / "weights", random_head(model, **DRAFT)[0], tmp_path / "target/1")
    result = run("draft", *places)
    assert result.stdout.startswith(f"exported: {tmp_path / 'eagle/1'} (int8, ")
    assert Artifact.read(tmp_path / "eagle/1").source == f"tiny/draft for {model}"
    assert run("draft", *places).stdout.startswith("up to date: ")
    assert run("draft", *places, "--model", model).exit_code == 0
    kept = run("draft", *places)
    assert kept.stderr == f"kept: {model}; --force puts the shipped draft there\n"
    assert Artifact.read(tmp_path / "eagle/1").source == str(model)
    assert run("draft", *places, "--force").stdout.startswith("exported: ")
    assert Artifact.read(tmp_path / "eagle/1").source == f"tiny/draft for {model}"
    assert run("head", *places).stderr.startswith("error: no head is shipped")


def test_a_trained_draft_is_told_from_a_model(model: Path, tmp_path: Path, places) -> None:
    trained = write_head(tmp_path / "trained", random_head(model, **DRAFT)[0])
    for name, source in ((trained, f"trained for {model}"), (model, str(model))):
        result = run("draft", *places, "--model", name, "--precision", "fp32")
        assert result.stdout.startswith("exported: "), result.output
        assert Artifact.read(tmp_path / "eagle/1").source == source


@pytest.mark.parametrize("option", [["--check"], ["--runtime", "tensorrt"], ["--card", "l4"]])
def test_what_a_trained_draft_has_no_use_for_is_refused(places, model, tmp_path, option) -> None:
    trained = write_head(tmp_path / "trained", random_head(model, **DRAFT)[0])
    refused = run("draft", *places, "--model", trained, *option)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"error: {option[0]} ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba", "state_size": 8}, "recurrent state"),
        ({"num_local_experts": 4}, "mixture of experts"),
        ({"vocab_size": 321}, "embed_tokens.weight has shape"),
        ({"num_hidden_layers": 3}, "no tensor model.layers.2."),
        ({"num_hidden_layers": "two"}, "cannot be read"),
    ],
)
def test_faults_are_one_line(
    model: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    result = run("target", "--model", model, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out/1").exists()


def test_a_missing_model(tmp_path: Path) -> None:
    result = run("target", "--model", tmp_path / "none", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.strip().splitlines()[-1].startswith("error: --model")
    assert run("target").exit_code == 2
    assert run("target", "--model", "x", "--precision", "int3").exit_code == 2


def test_nothing_heavy_is_imported_for_help() -> None:
    code = (
        "import sys, specdec.export.cli; "
        "print(sorted({'torch', 'transformers', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
