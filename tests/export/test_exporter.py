"""An artifact is whole or absent, and is reused only when nothing changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.progress import Progress

from specdec.artifact import Artifact
from specdec.errors import InvalidArtifact, InvalidRequest
from specdec.export import exporter
from specdec.export.check import CheckFailed
from specdec.export.config_pbtxt import decoder_config
from specdec.export.exporter import Exported, export
from specdec.export.graph import GraphWriter
from specdec.export.quantize import Precision
from specdec.export.sources import HuggingFaceSource
from support.tiny import export_tiny, write_tiny_llama


def run(
    model: Path,
    output: Path,
    progress: Progress,
    precision: Precision = Precision.fp32,
    force: bool = False,
) -> Exported:
    return export(
        HuggingFaceSource(model), output, precision=precision, progress=progress, force=force
    )


def test_an_artifact_describes_the_model(tiny: Path) -> None:
    artifact = Artifact.read(tiny / "artifact/1")
    assert (artifact.architecture, artifact.precision) == ("llama", "fp32")
    assert (artifact.num_layers, artifact.num_key_value_heads, artifact.head_size) == (2, 2, 16)
    assert artifact.end_ids == (2,)
    assert artifact.max_position_embeddings == 4096


def test_config_pbtxt_is_written_once_and_never_overwritten(
    tmp_path: Path, progress: Progress
) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "target"
    run(model, output, progress)
    config = output / "config.pbtxt"
    assert config.read_text() == decoder_config("target")
    assert 'backend: "specdec"' in config.read_text()
    config.write_text("# mine")
    run(model, output, progress, force=True)
    assert config.read_text() == "# mine"


def test_config_pbtxt_parses_as_triton_s_own_message() -> None:
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    config = text_format.Parse(decoder_config("draft"), ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("draft", "specdec", 0)
    assert [(g.count, g.kind) for g in config.instance_group] == [(1, 2)]  # 2 is KIND_CPU
    assert not config.input
    assert not config.parameters
    every = decoder_config("draft").replace("# parameters", "parameters")
    from specdec.config import DecoderConfig, from_parameters

    parsed = text_format.Parse(every, ModelConfig())
    values = {key: value.string_value for key, value in parsed.parameters.items()}
    assert from_parameters(DecoderConfig, values) == DecoderConfig()


def test_reused_when_nothing_changed(tmp_path: Path, progress: Progress) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "out"
    first = run(model, output, progress)
    second = run(model, output, progress)
    assert (first.reused, second.reused) == (False, True)
    assert second.artifact == first.artifact
    assert not run(model, output, progress, force=True).reused


def test_exported_again_when_anything_changed(
    tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "out"
    run(model, output, progress)
    assert not run(model, output, progress, Precision.int8).reused
    assert Artifact.read(output / "1").precision == "int8"
    write_tiny_llama(model, seed=1)  # other weights under the same names and sizes
    assert not run(model, output, progress, Precision.int8).reused
    (output / "1/model.onnx.data").unlink()
    assert not run(model, output, progress, Precision.int8).reused
    monkeypatch.setattr(exporter, "VERSION", exporter.VERSION + 1)
    assert not run(model, output, progress, Precision.int8).reused
    assert run(model, output, progress, Precision.int8).reused


@pytest.mark.parametrize("num_weights", [0, 4, 10])
def test_an_interrupted_export_leaves_what_was_there(
    tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch, num_weights: int
) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "out"
    written: list[str] = []
    plain = GraphWriter.linear

    def interrupted(self: GraphWriter, x: str, name: str, *rest: object, **more: object) -> str:
        if len(written) == num_weights:
            raise KeyboardInterrupt
        written.append(name)
        return plain(self, x, name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphWriter, "linear", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(model, output, progress)
    with pytest.raises(InvalidArtifact, match="export"):
        Artifact.read(output / "1")
    assert list(output.iterdir()) == []

    monkeypatch.setattr(GraphWriter, "linear", plain)
    before = run(model, output, progress).artifact
    written.clear()
    monkeypatch.setattr(GraphWriter, "linear", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(model, output, progress, Precision.int8)
    assert Artifact.read(output / "1") == before


def test_dying_between_any_two_moves_never_looks_complete(
    tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "out"
    run(model, output, progress)
    plain, moves = os.replace, 0

    def dying(source: Path, target: Path) -> None:
        nonlocal moves
        if moves == 0:
            raise KeyboardInterrupt
        moves -= 1
        plain(source, target)

    monkeypatch.setattr(os, "replace", dying)
    num_files = 6
    for first_moves in range(num_files):
        moves = first_moves
        with pytest.raises(KeyboardInterrupt):
            run(model, output, progress, Precision.int8, force=True)
        with pytest.raises(InvalidArtifact):
            Artifact.read(output / "1")
    moves = num_files
    assert run(model, output, progress, Precision.int8).artifact.precision == "int8"


def test_a_failed_check_replaces_nothing(tmp_path: Path, progress: Progress) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "out"
    before = run(model, output, progress).artifact

    def fail(directory: Path) -> None:
        assert Artifact.read(directory).precision == "int4"  # it sees the new one
        raise CheckFailed("no")

    with pytest.raises(CheckFailed):
        export(
            HuggingFaceSource(model),
            output,
            precision=Precision.int4,
            progress=progress,
            verify=fail,  # type: ignore[arg-type]
        )
    assert Artifact.read(output / "1") == before


def test_folders_of_killed_exports_are_removed_and_files_of_others_stay(
    tmp_path: Path, progress: Progress
) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "out"
    abandoned, alive = output / ".export-999999999-x", output / f".export-{os.getppid()}-x"
    (output / "1").mkdir(parents=True)
    (output / "1/.gitkeep").touch()
    abandoned.mkdir()
    alive.mkdir()
    run(model, output, progress)
    assert not abandoned.exists()
    assert alive.exists()
    assert (output / "1/.gitkeep").exists()


def test_a_template_of_the_previous_model_does_not_stay(tmp_path: Path, progress: Progress) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "out"
    run(model, output, progress)
    assert (output / "1/chat_template.jinja").is_file()
    (model / "chat_template.jinja").unlink()
    run(model, output, progress)
    assert not (output / "1/chat_template.jinja").exists()


def test_an_output_that_cannot_be_written(tmp_path: Path, progress: Progress) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="--output"):
        run(write_tiny_llama(tmp_path / "model"), tmp_path / "file" / "out", progress)


def test_exports_of_the_same_model_are_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    again = export_tiny(tmp_path)
    first = tiny / "artifact/1/model.onnx.data"
    assert first.read_bytes() == (again / "model.onnx.data").read_bytes()
    sizes = {p.name for p in again.iterdir()}
    assert sizes == {p.name for p in (tiny / "artifact/1").iterdir()}
    assert json.loads((again / "specdec.json").read_text())["num_tokens"] == 320
