"""Packed matrices mean what the operator computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from specdec.artifact import GRAPH
from specdec.export.quantize import BLOCK_SIZE, Array, PackedMatrix, Precision, pack
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


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [64, 96, 80], ids=["even blocks", "odd blocks", "partial block"])
def test_every_weight_is_within_a_step_of_its_block(bits: int, rows: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(rows, 24)).astype(np.float32) + 0.3
    packed = pack(matrix, bits)
    error = np.abs(unpack(packed) - matrix)
    step = np.repeat(packed.arrays["scales"].T, BLOCK_SIZE, axis=0)[:rows]
    assert (error <= 1.01 * step).all()  # half a step each for the weight and the zero point
    assert error.mean() < 0.3 * step.mean()


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

    from specdec.export.graph import GraphWriter

    rng = np.random.default_rng(2)
    weight = rng.normal(size=(48, 128)).astype(np.float32)  # [out, in]
    writer = GraphWriter(tmp_path, precision=Precision(f"int{bits}"))
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
    expected = x @ unpack(pack(weight.T, bits))
    # What is left is the rounding of activations to int8; the weights' own error is far larger.
    assert np.abs(found - expected).mean() < 0.01 * np.abs(expected).mean()


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_matrices_are_packed_and_the_embedding_table_is_not(tmp_path: Path, precision: str) -> None:
    artifact = export_tiny(tmp_path, precision)
    graph = onnx.load(artifact / GRAPH, load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulNBits") == 11  # two layers of qkv, o, gate, up, down; and the head
    assert "MatMul" not in kinds
    types = {t.name: t.data_type for t in graph.initializer}
    assert types["model.embed_tokens.weight"] == onnx.TensorProto.FLOAT
    assert types["lm_head.blocks"] == onnx.TensorProto.UINT8
