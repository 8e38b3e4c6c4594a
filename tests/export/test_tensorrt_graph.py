"""TensorRT's form of the graph computes what transformers computes, and TensorRT takes it.

No plan runs without a card, so the numbers are checked in the same form but float32, by ONNX
Runtime, and the plan is compiled beside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.progress import Progress

from specdec.artifact import GRAPH
from specdec.errors import UnsupportedModel
from specdec.export.check import compare, reference_logits
from specdec.export.exporter import export
from specdec.export.graph import GraphWriter
from specdec.export.runner import GraphRunner
from specdec.export.sources import HuggingFaceSource, load_reference
from specdec.export.tensorrt import Compiler, Device, Shapes
from specdec.export.tensorrt_graph import (
    TensorRTForm,
    TensorRTPrecision,
    quantise_fp8,
    quantise_int4,
    quantise_int8,
)
from support.architectures import LENGTH, MODELS, KeepGraph, tokens
from support.tiny import write_tiny_llama


def graph(model: Path, output: Path, progress: Progress, keep: KeepGraph) -> Path:
    source = HuggingFaceSource(model)
    return export(source, output, progress=progress, compiler=keep).directory


def logits(directory: Path, texts: list[list[int]]) -> list[np.ndarray]:
    """In two chunks with a rewind between them."""
    runner = GraphRunner(directory, num_sequences=len(texts), cache_length=LENGTH)
    halves = [len(text) // 2 for text in texts]
    pairs = list(zip(texts, halves, strict=True))
    first = runner.extend([text[:n] for text, n in pairs], [0] * len(texts))
    runner.extend([[7, 8, 9]] * len(texts), halves)
    second = runner.extend([text[n:] for text, n in pairs], halves)
    return [np.concatenate(parts) for parts in zip(first, second, strict=True)]


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_every_architecture_equals_transformers_and_compiles(
    tmp_path: Path, progress: Progress, fields: dict[str, Any]
) -> None:
    pytest.importorskip("tensorrt_rtx")
    model = write_tiny_llama(tmp_path / "model", **fields)
    texts = [tokens(40, 0), tokens(23, 1)]
    found = logits(graph(model, tmp_path / "graph", progress, KeepGraph()), texts)
    reference = load_reference(str(model))
    for text, rows in zip(texts, found, strict=True):
        expected = reference_logits(reference, text)
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(rows, expected, atol=1e-4, rtol=0)
    compiler = Compiler(
        "tensorrt-rtx",
        TensorRTPrecision.bf16,
        shapes=Shapes(4, 448, 128),
        device=Device("SM89"),
    )
    source = HuggingFaceSource(model)
    if fields.get("model_type") == "gemma2":
        with pytest.raises(UnsupportedModel, match="caps attention scores, which TensorRT's"):
            export(source, tmp_path / "plan", progress=progress, compiler=compiler)
        return
    made = export(source, tmp_path / "plan", progress=progress, compiler=compiler)
    assert made.artifact.runtime == "tensorrt-rtx"


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4", "fp8"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "gemma 2"])
def test_every_architecture_compiles_at_every_other_precision(
    tmp_path: Path, progress: Progress, name: str, precision: str
) -> None:
    pytest.importorskip("tensorrt_rtx")
    fields = {"hidden_size": 128, **MODELS[name]}  # which int4's blocks divide
    source = HuggingFaceSource(write_tiny_llama(tmp_path / "model", **fields))
    compiler = Compiler(
        "tensorrt-rtx",
        TensorRTPrecision(precision),
        shapes=Shapes(4, 448, 128),
        device=Device("SM89"),
    )
    made = export(source, tmp_path / "plan", progress=progress, compiler=compiler)
    assert made.artifact.precision == precision


@pytest.mark.parametrize(("precision", "limit"), [("int8", 0.002), ("fp8", 0.02), ("int4", 0.2)])
def test_quantised_graphs_stay_near_the_model(
    tmp_path: Path, progress: Progress, precision: str, limit: float
) -> None:
    """ONNX Runtime evaluates the very DequantizeLinear nodes that TensorRT fuses."""
    model = write_tiny_llama(tmp_path / "model", hidden_size=128, spread=0.1)
    text = tokens(40, 0)
    (found,) = logits(graph(model, tmp_path / "graph", progress, KeepGraph(precision)), [text])
    expected = reference_logits(load_reference(str(model)), text)
    assert compare(expected, found).mean_divergence < limit


def test_half_precision_is_in_the_whole_graph_but_the_logits(
    tmp_path: Path, progress: Progress
) -> None:
    model = write_tiny_llama(tmp_path / "model")
    made = graph(model, tmp_path / "graph", progress, KeepGraph(dtype=None))
    found = onnx.load(made / GRAPH)
    onnx.checker.check_model(made / GRAPH, full_check=True)
    types = {onnx.TensorProto.DataType.Name(t.data_type) for t in found.graph.initializer}
    assert types == {"BFLOAT16", "INT64"}
    ports = {p.name: p.type.tensor_type for p in [*found.graph.input, *found.graph.output]}
    assert ports["logits"].elem_type == onnx.TensorProto.FLOAT
    for name in ("past_key_0", "present_value_1"):
        assert ports[name].elem_type == onnx.TensorProto.BFLOAT16
        assert ports[name].shape.dim[2].dim_value == LENGTH
    assert ports["attention_mask"].shape.dim[3].dim_value == LENGTH


def test_half_precision_weights_are_the_rounded_ones(tmp_path: Path, progress: Progress) -> None:
    import torch
    from safetensors.torch import load_file

    model = write_tiny_llama(tmp_path / "model")
    made = graph(model, tmp_path / "graph", progress, KeepGraph(dtype=None))
    name = "model.layers.1.mlp.up_proj.weight"
    stored = next(i for i in onnx.load(made / GRAPH).graph.initializer if i.name == name)
    expected = load_file(model / "model.safetensors")[name].T.to(torch.bfloat16).float().numpy()
    assert np.array_equal(onnx.numpy_helper.to_array(stored).astype(np.float32), expected)


def test_a_weight_beyond_float16_is_refused(tmp_path: Path) -> None:
    form = TensorRTForm(TensorRTPrecision.fp16, cache_length=LENGTH)
    writer = GraphWriter(tmp_path, form=form)
    with pytest.raises(UnsupportedModel, match=r"w has values up to 7e\+04.*--precision bf16"):
        writer.constant("w", np.full((4, 4), 7e4, np.float32))
    writer.close()


def weights(outputs: int = 48, inputs: int = 256) -> np.ndarray:
    made = np.random.default_rng(0).standard_normal((outputs, inputs)).astype(np.float32)
    made[5] = 0
    made[6, 3] = 40  # an outlier
    return made


def test_int8_and_fp8_are_within_a_step_of_their_output() -> None:
    weight = weights()
    values, scales, attributes = quantise_int8(weight)
    assert (values.dtype, values.shape, attributes) == (np.int8, (256, 48), {"axis": 1})
    error = np.abs(values.T * scales[:, None] - weight)
    assert (error <= 0.51 * scales[:, None]).all()
    values, scales, attributes = quantise_fp8(weight)
    assert attributes == {"axis": 1}
    back = values.astype(np.float32).T * scales[:, None]
    assert (np.abs(back - weight) <= np.abs(weight) / 15 + scales[:, None] / 500).all()
    assert np.abs(back).max() == pytest.approx(40)


def test_int4_blocks_are_better_than_plain_rounding() -> None:
    weight = weights()
    values, scales, attributes = quantise_int4(weight)
    assert attributes == {"axis": 0, "block_size": 128}
    assert (values.shape, scales.shape) == ((256, 48), (2, 48))
    whole = values.astype(np.float32)
    assert whole.min() >= -8
    assert whole.max() <= 7
    back = (whole.reshape(2, 128, 48) * scales[:, None]).reshape(256, 48).T
    plain_scale = np.abs(weight.reshape(48, 2, 128)).max(-1, keepdims=True) / 7
    plain = np.rint(weight.reshape(48, 2, 128) / np.maximum(plain_scale, 1e-30)) * plain_scale
    ours, theirs = np.square(back - weight).sum(), np.square(plain.reshape(48, 256) - weight).sum()
    assert ours < 0.95 * theirs
    assert not back[5].any()


@pytest.mark.parametrize(("inputs", "block"), [(256, 128), (576, 64), (96, 32)])
def test_int4_takes_the_largest_block_that_divides(inputs: int, block: int) -> None:
    assert quantise_int4(weights(inputs=inputs))[2]["block_size"] == block


def test_int4_of_odd_sizes_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="inputs divide by 32: found 80"):
        quantise_int4(weights(inputs=80))
