"""Features are what enters a layer in transformers, whatever the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.progress import Progress
from typer.testing import CliRunner

from specdec.artifact import GRAPH, Artifact
from specdec.errors import InvalidArtifact, InvalidRequest
from specdec.export.cli import app
from specdec.export.exporter import export
from specdec.export.features import AUTO, NONE, Features
from specdec.export.runner import GraphRunner
from specdec.export.sources import HuggingFaceSource, load_reference
from support.architectures import LENGTH, MODELS, KeepGraph, tokens
from support.tiny import export_tiny, write_tiny_llama


def transformers_features(model: Any, token_ids: list[int], layers: tuple[int, ...]) -> np.ndarray:
    """float32 [num_tokens, layers * hidden]. The last of transformers' hidden states has been
    through the final norm, so what enters it is caught at its door."""
    import torch

    entered: list[Any] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    with torch.inference_mode():
        states = model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
    hook.remove()
    inputs = [*states[:-1], entered[0]]
    return torch.cat([inputs[i][0] for i in layers], dim=-1).float().numpy()


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_every_architecture_gives_out_what_enters_its_layers(
    tmp_path: Path, progress: Progress, fields: dict[str, Any]
) -> None:
    model = write_tiny_llama(tmp_path / "model", **fields)
    source, form = HuggingFaceSource(model), KeepGraph()
    for wanted in (AUTO, Features((0, 1))):
        made = export(source, tmp_path / "out", progress=progress, compiler=form, features=wanted)
        layers = made.artifact.feature_layers
        texts = [tokens(40, 0), tokens(23, 1)]
        runner = GraphRunner(made.directory, num_sequences=2, cache_length=LENGTH)
        first = runner.extend([t[:9] for t in texts], [0, 0], output="features")
        runner.extend([[7, 8, 9]] * 2, [9, 9])
        second = runner.extend([t[9:] for t in texts], [9, 9], output="features")
        for text, *parts in zip(texts, first, second, strict=True):
            expected = transformers_features(load_reference(str(model)), text, layers)
            assert expected.shape == (len(text), made.artifact.feature_size)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize(
    ("num_layers", "layers"),
    [(30, (2, 15, 27, 30)), (32, (2, 16, 29, 32)), (4, (1, 2, 4)), (2, (0, 1, 2)), (1, (0, 1))],
)
def test_auto_is_low_middle_high_and_last(num_layers: int, layers: tuple[int, ...]) -> None:
    assert AUTO.of(num_layers) == layers


def test_words_and_numbers() -> None:
    assert Features.parse("auto") == AUTO
    assert Features.parse("none") == NONE
    assert Features.parse("27,2,15,2") == Features((2, 15, 27))
    for features in (AUTO, NONE, Features((2, 15, 27)), Features((0,))):
        assert Features.parse(str(features)) == features
    assert NONE.of(30) == ()
    assert Features((30,)).of(30) == (30,)
    for wrong in ("", "all", "2,", "-1", "1.5", "2 3"):
        with pytest.raises(InvalidRequest, match="expected auto, none, or numbers"):
            Features.parse(wrong)
    with pytest.raises(InvalidRequest, match="2,31: this model has 30 layers, allowed are 0 to 30"):
        Features((2, 31)).of(30)


def test_none_leaves_the_output_out(tmp_path: Path) -> None:
    directory = export_tiny(tmp_path, features="none")
    graph = onnx.load(directory / GRAPH, load_external_data=False).graph
    assert "features" not in {port.name for port in graph.output}
    artifact = Artifact.read(directory)
    assert (artifact.feature_layers, artifact.feature_size, artifact.hidden_size) == ((), 0, 64)


def test_half_precision_is_widened(tmp_path: Path, progress: Progress) -> None:
    source = HuggingFaceSource(write_tiny_llama(tmp_path / "model"))
    made = export(source, tmp_path / "out", progress=progress, compiler=KeepGraph(dtype=None))
    ports = onnx.load(made.directory / GRAPH, load_external_data=False).graph.output
    (port,) = (p.type.tensor_type for p in ports if p.name == "features")
    assert port.elem_type == onnx.TensorProto.FLOAT
    assert [d.dim_param or d.dim_value for d in port.shape.dim] == ["N", 3 * 64]


def test_other_features_are_another_artifact(tmp_path: Path, progress: Progress) -> None:
    source = HuggingFaceSource(write_tiny_llama(tmp_path / "model"))

    def run(features: Features) -> tuple[bool, tuple[int, ...]]:
        made = export(source, tmp_path / "out", progress=progress, features=features)
        return made.reused, made.artifact.feature_layers

    assert run(AUTO) == (False, (0, 1, 2))
    assert run(AUTO) == (True, (0, 1, 2))
    assert run(Features((1,))) == (False, (1,))
    assert run(NONE) == (False, ())
    assert run(NONE) == (True, ())


def test_an_artifact_of_before_says_what_to_do(tmp_path: Path) -> None:
    directory = export_tiny(tmp_path)
    path = directory / "specdec.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(InvalidArtifact, match="format 1, this version reads 2: export again"):
        Artifact.read(directory)


def test_the_command_line(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")

    def run(role: str, *more: str) -> Any:
        output = tmp_path / role
        return CliRunner().invoke(
            app, [role, "--model", str(model), "--output", str(output), *more]
        )

    assert run("target").exit_code == run("draft").exit_code == 0
    assert Artifact.read(tmp_path / "target/1").feature_layers == (0, 1, 2)
    assert Artifact.read(tmp_path / "draft/1").feature_layers == ()
    assert run("target", "--features", "2").exit_code == 0
    assert Artifact.read(tmp_path / "target/1").feature_layers == (2,)
    for wrong, message in (("some", "'some': expected auto"), ("1,3", "1,3: this model has 2")):
        result = run("target", "--features", wrong)
        assert result.exit_code == 2
        assert f"error: --features {message}" in result.stderr
    assert Artifact.read(tmp_path / "target/1").feature_layers == (2,)
