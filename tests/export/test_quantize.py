"""Packed matrices mean what the operator computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from specdec.artifact import GRAPH
from specdec.export.quantize import (
    BLOCK_SIZE,
    Array,
    PackedMatrix,
    Precision,
    block_sums,
    pack,
    pack_columns,
    pack_with_offsets,
)
from support.tiny import export_tiny


def unpack(matrix: PackedMatrix) -> Array:
    """The slow, obvious inverse: float32 [K, N]."""
    blocks, scales, zero_points = matrix.arrays.values()
    bits, rows = matrix.attributes["bits"], matrix.attributes["K"]
    if bits == 4:  # two per byte, the low half first
        blocks = np.stack([blocks & 15, blocks >> 4], -1)
        zero_points = np.stack([zero_points & 15, zero_points >> 4], -1)
    columns, num_blocks = scales.shape
    values = blocks.reshape(columns, num_blocks, BLOCK_SIZE).astype(np.float32)
    zeros = zero_points.reshape(columns, -1)[:, :num_blocks].astype(np.float32)
    dense = (values - zeros[..., None]) * scales[..., None]
    return dense.reshape(columns, -1)[:, :rows].T


def unpack_with_offsets(matrix: Array) -> Array:
    """The grid of 16 even steps from each block's least to its largest weight, [K, N]."""
    blocks = matrix.T.reshape(matrix.shape[1], -1, BLOCK_SIZE)
    low, high = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
    steps = (high - low) / 15
    return (low + np.rint((blocks - low) / steps) * steps).reshape(matrix.shape[1], -1).T


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [64, 96, 80], ids=["even blocks", "odd blocks", "partial block"])
def test_every_weight_is_within_a_step_of_its_block(bits: int, rows: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(rows, 24)).astype(np.float32) + 0.3
    packed = pack(matrix, bits)
    error = np.abs(unpack(packed) - matrix)
    step = np.repeat(packed.arrays["scales"].T, BLOCK_SIZE, axis=0)[:rows]
    assert (error <= 1.01 * step).all()  # half a step each for the weight and the zero point
    assert error.mean() < 0.3 * step.mean()


def test_columns_are_within_half_a_step_of_their_own_scale() -> None:
    matrix = np.random.default_rng(0).normal(size=(80, 24)).astype(np.float32)
    matrix *= np.geomspace(0.01, 100, 24, dtype=np.float32)
    matrix[:, 3] = 0.0
    weight, scales, zero_points = pack_columns(matrix).values()
    assert (np.abs(weight * scales - matrix) <= 0.501 * scales).all()
    assert np.abs(weight).max(axis=0).tolist() == [127] * 3 + [0] + [127] * 20
    assert not zero_points.any()


@pytest.mark.parametrize("bits", [4, 8])
def test_arrays_equal_those_of_onnxruntime_s_own_quantizer(bits: int) -> None:
    pytest.importorskip("onnx_ir")
    from onnxruntime.quantization import matmul_nbits_quantizer as theirs

    matrix = np.random.default_rng(1).normal(size=(96, 24)).astype(np.float32)
    config = theirs.DefaultWeightOnlyQuantConfig(
        block_size=BLOCK_SIZE, is_symmetric=False, bits=bits
    )
    blocks, scales, zero_points = theirs.DefaultWeightOnlyQuantizer(config).qbits_block_quant(
        matrix
    )
    ours = pack(matrix, bits).arrays
    assert np.array_equal(ours["blocks"], blocks)
    assert np.array_equal(ours["scales"], scales)
    assert np.array_equal(ours["zero_points"], zero_points)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_operator_multiplies_by_the_unpacked_matrix(tmp_path: Path, bits: int) -> None:
    import onnxruntime

    from specdec.export.forms import OnnxForm
    from specdec.export.graph import GraphWriter

    rng = np.random.default_rng(2)
    weight = rng.normal(size=(48, 128)).astype(np.float32)  # [out, in]
    writer = GraphWriter(tmp_path, form=OnnxForm(Precision(f"int{bits}")))
    y = writer.linear("x", "layer", weight)
    ports = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", k])
        for n, k in (("x", 128), (y, 48))
    ]
    writer._inputs, writer._outputs = ports[:1], ports[1:]
    writer.op("Identity", "x", out="logits")  # every decoder has them; unused here
    writer.finish(vocab_size=128, metadata={})
    session = onnxruntime.InferenceSession(
        str(tmp_path / GRAPH), providers=["CPUExecutionProvider"]
    )
    x = rng.normal(size=(5, 128)).astype(np.float32)
    found = session.run([y], {"x": x})[0]
    expected = x @ (unpack_with_offsets(weight.T) if bits == 4 else unpack(pack(weight.T, bits)))
    # What is left is the rounding of activations to int8; the weights' own error is far larger.
    assert np.abs(found - expected).mean() < 0.01 * np.abs(expected).mean()


def test_a_w8a8_graph_rounds_what_several_products_read_once(tmp_path: Path) -> None:
    graph = onnx.load(export_tiny(tmp_path, "w8a8") / GRAPH, load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    # Two layers of qkv, o, gate, up, down, of which gate and up read the same; and the head.
    assert (kinds.count("MatMulIntegerToFloat"), kinds.count("QuantizeLinear")) == (11, 9)
    assert not {"MatMul", "MatMulNBits"} & set(kinds)
    types = {t.name: t.data_type for t in graph.initializer}
    assert types["model.embed_tokens.weight"] == TensorProto.FLOAT


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_matrices_are_packed_and_the_embedding_table_is_not(tmp_path: Path, precision: str) -> None:
    artifact = export_tiny(tmp_path, precision)
    graph = onnx.load(artifact / GRAPH, load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulNBits") == 11  # two layers of qkv, o, gate, up, down; and the head
    # In int4: block sums of each layer's four inputs and the head's, and an offset per product.
    assert kinds.count("MatMul") == (9 + 11 if precision == "int4" else 0)
    types = {t.name: t.data_type for t in graph.initializer}
    assert types["model.embed_tokens.weight"] == onnx.TensorProto.FLOAT
    assert types["lm_head.blocks"] == onnx.TensorProto.UINT8


def row_form_session(tmp_path: Path, weight: Array) -> onnxruntime.InferenceSession:
    """x -> y = x @ weight.T as w8a8 writes it, twice from the same x."""
    from specdec.export.forms import RowForm
    from specdec.export.graph import GraphWriter

    writer = GraphWriter(tmp_path, form=RowForm())
    outputs = [writer.linear("x", name, weight) for name in ("one", "other")]
    sizes = {"x": weight.shape[1], **dict.fromkeys(outputs, weight.shape[0])}
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
        for name, size in sizes.items()
    ]
    writer._inputs, writer._outputs = ports[:1], ports[1:]
    writer.op("Identity", "x", out="logits")
    writer.finish(vocab_size=weight.shape[1], metadata={})
    graph = onnx.load(tmp_path / GRAPH, load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    assert (kinds.count("MatMulIntegerToFloat"), kinds.count("QuantizeLinear")) == (2, 1)
    return onnxruntime.InferenceSession(str(tmp_path / GRAPH), providers=["CPUExecutionProvider"])


def test_w8a8_rounds_each_row_and_each_output_by_itself(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(48, 128)) * rng.uniform(0.1, 9, (48, 1))
    weight = weight.astype(np.float32)
    x = rng.normal(size=(5, 128)).astype(np.float32) * np.float32([[1e-6], [1], [40], [0], [3]])
    session = row_form_session(tmp_path, weight)
    (_, found, again) = session.run(None, {"x": x})
    assert np.array_equal(found, again)
    largest = np.abs(x).max(-1, keepdims=True)
    rounded = np.rint(x / np.where(largest, largest, 1) * 127)
    scales = np.abs(weight).max(-1) / 127
    expected = rounded @ np.rint(weight.T / scales) * (scales / 127) * largest
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert not found[3].any()  # a row of zeros, though it is divided by zero
    for row in range(len(x)):
        alone = session.run(None, {"x": x[row : row + 1]})[1]
        assert np.array_equal(alone[0], found[row])


def run_product(matrix, x):
    """x @ matrix as the graph writes it: the operator plus the offsets' part."""
    quantised = pack_with_offsets(matrix)
    sums = block_sums(matrix.shape[0])
    nodes = [
        helper.make_node(
            "MatMulNBits",
            ["x", "blocks", "scales"],
            ["a"],
            domain="com.microsoft",
            **quantised.packed.attributes,
        ),
        helper.make_node("MatMul", ["x", "sums"], ["s"]),
        helper.make_node("MatMul", ["s", "offsets"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    weights = {**quantised.packed.arrays, "sums": sums, "offsets": quantised.offsets}
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", matrix.shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", matrix.shape[1]])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"x": x})[0]


def test_a_q4_1_matrix_comes_out_as_it_was():
    rng = np.random.default_rng(0)
    nibbles = rng.integers(0, 16, (24, 4, 32))
    nibbles[..., 0], nibbles[..., 1] = 0, 15  # a block's least and largest are on its grid
    steps = rng.uniform(0.01, 0.02, (24, 4, 1)).astype(np.float16).astype(np.float32)
    low = rng.uniform(-0.2, 0.0, (24, 4, 1)).astype(np.float16).astype(np.float32)
    matrix = np.ascontiguousarray((nibbles * steps + low).reshape(24, 128).T.astype(np.float32))
    x = rng.standard_normal((3, 128)).astype(np.float32)
    error = np.abs(run_product(matrix, x) - x @ matrix).max()
    assert error < 0.03  # activations are rounded to int8, weights are not rounded


def test_a_constant_block_has_no_scale_and_keeps_its_value():
    matrix = np.full((64, 2), 0.25, np.float32)
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(run_product(matrix, x), 16.0, rtol=1e-5)
