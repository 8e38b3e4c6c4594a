"""The exported graph computes what transformers computes, however it is fed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.progress import Progress
from safetensors.torch import load_file, save_file

from specdec.artifact import GRAPH, Artifact
from specdec.errors import UnsupportedModel
from specdec.export.check import reference_logits
from specdec.export.exporter import export
from specdec.export.graph import INPUTS
from specdec.export.quantize import Precision
from specdec.export.runner import GraphRunner, flat_inputs
from specdec.export.sources import HuggingFaceSource, load_reference
from support.tiny import export_tiny, write_tiny_llama

TOLERANCE = 1e-4
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied head": {"tie_word_embeddings": True},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "wide heads": {"head_dim": 32},
    "one kv head": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "mistral": {"model_type": "mistral", "sliding_window": None},
}


def tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 320, length).tolist()


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_logits_equal_transformers_over_ragged_chunks_and_rewinds(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    artifact = export_tiny(tmp_path, **fields)
    reference = load_reference(str(tmp_path / "model"))
    texts = [tokens(40, 0), tokens(23, 1), tokens(31, 2)]
    runner = GraphRunner(artifact, num_sequences=3, cache_length=64)
    # Chunks end at these lengths; a sequence starting below its last end has been rewound.
    rounds = [
        [(0, 17), (0, 2), (0, 9)],
        [(17, 18), (2, 20), (9, 10)],
        [(18, 40), (20, 23), (10, 31)],
    ]
    found: list[list[np.ndarray]] = [[], [], []]
    for chunks in rounds:
        runner.extend([tokens(5, 9), tokens(1, 8), tokens(7, 7)], [start for start, _ in chunks])
        logits = runner.extend(
            [text[a:b] for text, (a, b) in zip(texts, chunks, strict=True)],
            [start for start, _ in chunks],
        )
        for rows, new in zip(found, logits, strict=True):
            rows.append(new)
    for text, rows in zip(texts, found, strict=True):
        expected = reference_logits(reference, text)
        assert np.abs(expected).max() > 1  # a model of zeros would pass anything
        np.testing.assert_allclose(np.concatenate(rows), expected, atol=TOLERANCE, rtol=0)


def test_far_positions_follow_the_llama3_scaling(tmp_path: Path) -> None:
    """At short range every rope type looks alike; 600 tokens tell them apart."""
    artifact = export_tiny(tmp_path, rope_parameters=LLAMA3_ROPE)
    text = tokens(600, 3)
    found = GraphRunner(artifact, num_sequences=1, cache_length=600).extend([text], [0])[0]
    scaled = reference_logits(load_reference(str(tmp_path / "model")), text)
    np.testing.assert_allclose(found, scaled, atol=2e-4, rtol=0)
    plain = write_tiny_llama(tmp_path / "plain", rope_parameters={"rope_theta": 500000.0})
    assert np.abs(found - reference_logits(load_reference(str(plain)), text)).max() > 0.1


def test_declared_ports_are_the_table(tiny: Path) -> None:
    graph = onnx.load(tiny / "artifact/1" / GRAPH, load_external_data=False).graph
    names = [port.name for port in graph.input]
    assert names[: len(INPUTS)] == list(INPUTS)
    caches = [f"past_{kind}_{i}" for i in range(2) for kind in ("key", "value")]
    assert names[len(INPUTS) :] == caches
    shapes = {
        port.name: tuple(d.dim_param or d.dim_value for d in port.type.tensor_type.shape.dim)
        for port in [*graph.input, *graph.output]
    }
    assert {name: port.axes for name, port in INPUTS.items()}.items() <= shapes.items()
    assert shapes["past_key_1"] == shapes["present_value_0"] == ("B", 2, "S", 16)
    assert shapes["logits"] == ("R", 320)


def test_only_standard_operators_in_fp32(tiny: Path) -> None:
    model = onnx.load(tiny / "artifact/1" / GRAPH, load_external_data=False)
    assert [(d.domain, d.version) for d in model.opset_import] == [("", 24)]
    assert {node.domain for node in model.graph.node} == {""}


def test_flat_inputs_of_the_worked_example() -> None:
    inputs = flat_inputs([[7, 8, 9], [5]], [0, 2], cache_length=4, max_position=3)
    assert inputs["input_ids"].tolist() == [7, 8, 9, 5]
    assert inputs["row_index"].tolist() == [[0, 1, 2], [3, 3, 3]]
    assert inputs["flat_index"].tolist() == [0, 1, 2, 3]
    assert inputs["position_ids"].tolist() == [[0, 1, 2], [2, 3, 3]]
    assert inputs["attention_mask"][:, 0].sum(-1).tolist() == [[1, 2, 3], [3, 4, 4]]


def test_padded_vocabulary_keeps_the_columns_and_counts_the_tokens(tmp_path: Path) -> None:
    artifact = export_tiny(tmp_path, vocab_size=384)
    described = Artifact.read(artifact)
    assert (described.vocab_size, described.num_tokens) == (384, 320)
    logits = GraphRunner(artifact, num_sequences=1, cache_length=8).extend([[3, 4]], [0])[0]
    assert logits.shape == (2, 384)


def test_same_tokenizer_gives_the_same_hash_whatever_the_padding(tmp_path: Path) -> None:
    plain = Artifact.read(export_tiny(tmp_path / "a"))
    padded = Artifact.read(export_tiny(tmp_path / "b", vocab_size=384, seed=5))
    assert plain.vocabulary_sha256 == padded.vocabulary_sha256
    assert plain.weights_sha256 != padded.weights_sha256


def test_half_precision_checkpoints_are_widened_exactly(tmp_path: Path, progress: Progress) -> None:
    import torch

    model = write_tiny_llama(tmp_path / "model")
    rounded = {k: v.bfloat16() for k, v in load_file(model / "model.safetensors").items()}
    save_file(rounded, model / "model.safetensors", metadata={"format": "pt"})
    source = HuggingFaceSource(model)
    made = export(source, tmp_path / "out", precision=Precision.fp32, progress=progress)
    name = "model.layers.1.mlp.up_proj.weight"
    expected = rounded[name].to(torch.float32).numpy().T
    graph = onnx.load(made.directory / GRAPH).graph
    stored = next(i for i in graph.initializer if i.name == "model.layers.1.mlp.up_proj.weight")
    assert np.array_equal(onnx.numpy_helper.to_array(stored), expected)


def test_sharded_checkpoint_equals_the_single_file(
    tiny: Path, tmp_path: Path, progress: Progress
) -> None:
    model = write_tiny_llama(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    weight_map = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for part in set(weight_map.values()):
        save_file({n: tensors[n] for n, p in weight_map.items() if p == part}, model / part)
    index = {"metadata": {}, "weight_map": weight_map}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    made = export(
        HuggingFaceSource(model), tmp_path / "out", precision=Precision.fp32, progress=progress
    )
    whole = Artifact.read(tiny / "artifact/1")
    assert made.artifact.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("extra", [True, False], ids=["unknown tensor", "missing tensor"])
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, progress: Progress, extra: bool
) -> None:
    import torch

    model = write_tiny_llama(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.0.mlp.adapter.weight" if extra else "model.layers.0.mlp.up_proj.weight"
    if extra:
        tensors[name] = torch.zeros(2, 2)
    else:
        del tensors[name]
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=name.replace(".", r"\.")):
        export(
            HuggingFaceSource(model), tmp_path / "out", precision=Precision.fp32, progress=progress
        )
