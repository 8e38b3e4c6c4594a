"""Quantisation for ONNX Runtime. Of targets: weights in blocks of 32 inputs, asymmetric, and
activations in int8 by block; w8a8 and heads: see `pack_columns`.

The former are packed by ONNX Runtime's own kernels, in the layout of its MatMulNBits operator.
They are called directly rather than through `MatMulNBitsQuantizer` because that one wants the
whole float32 graph in memory at once and reconfigures the process's logging when imported.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from specdec.errors import SpecdecError

Array = np.ndarray[Any, Any]

BLOCK_SIZE = 32
ACCURACY_LEVEL = 4  # activations are rounded to int8 per block: the fast kernels need it


class Precision(str, Enum):
    """How matrices are stored; the embedding table and norms stay float32 in all of them."""

    fp32 = "fp32"
    int8 = "int8"  # weights and activations in blocks
    w8a8 = "w8a8"  # weights by output, activations by row: vLLM's INT8 W8A8
    int4 = "int4"

    @property
    def block_bits(self) -> int | None:
        """Bits of a weight where weights share their scales in blocks of inputs."""
        return {"int8": 8, "int4": 4}.get(self.value)


class PackedMatrix(NamedTuple):
    arrays: dict[str, Array]  # in the operator's input order
    attributes: dict[str, int]


class OffsetMatrix(NamedTuple):
    """weight[k, n] = (nibble[k, n] - 8) * scale[k // 32, n] + offset[k // 32, n]."""

    packed: PackedMatrix  # nibbles and scales; the operator's zero point is 8 by default
    offsets: Array  # float32 [K/32, N]


def pack_with_offsets(matrix: Array) -> OffsetMatrix:
    """Pack matrix float32 [K, N] to 4 bits with a float minimum per block, as GGUF's Q4_1 does.

    The operator itself only knows integer zero points, which would round every block's minimum
    (to a mean KL of 0.5 from the checkpoint on a 135M model). The caller adds the offsets' part of
    the product: x @ weight = operator(x) + (sums of x over each block) @ offsets. A matrix that
    was Q4_1 before comes out as it was.

    K must be a multiple of 32.
    """
    rows, columns = matrix.shape
    assert rows % BLOCK_SIZE == 0, rows
    blocks = matrix.T.reshape(columns, rows // BLOCK_SIZE, BLOCK_SIZE)  # [N, K/32, 32]
    low = blocks.min(axis=-1)
    steps = (blocks.max(axis=-1) - low) / 15.0
    safe = np.where(steps > 0, steps, 1.0)
    nibbles = np.rint((blocks - low[..., None]) / safe[..., None]).astype(np.uint8)
    packed = PackedMatrix(
        {"blocks": nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), "scales": steps},
        {
            "K": rows,
            "N": columns,
            "bits": 4,
            "block_size": BLOCK_SIZE,
            "accuracy_level": ACCURACY_LEVEL,
        },
    )
    return OffsetMatrix(packed, np.ascontiguousarray((low + 8.0 * steps).T))


def block_sums(rows: int) -> Array:
    """float32 [K, K/32]: x @ block_sums(K) sums x over each block of inputs."""
    return np.repeat(np.eye(rows // BLOCK_SIZE, dtype=np.float32), BLOCK_SIZE, axis=0)


def pack_columns(matrix: Array) -> dict[str, Array]:
    """Pack matrix float32 [K, N] to int8 [K, N], symmetric, with a scale per column.

    Kernels for AVX2 without VNNI add pairs of products in 16 bits, which saturate where neighbours
    are near their column's largest weight: simulated, one pair in 8,000 of normal weights, an error
    of 1.8 % beside 1.1 % from rounding. Seven bits never do, and cost a head .015 of its acceptance
    where nothing saturates.

    Returns the operator's inputs in its order: weights, scales float32 [N], zero points int8 [N].
    """
    largest = np.abs(matrix).max(axis=0)
    scales = np.where(largest > 0, largest / 127, 1.0).astype(np.float32)
    weights = np.rint(matrix / scales).astype(np.int8)
    return {"weight": weights, "scales": scales, "zero_points": np.zeros(len(scales), np.int8)}


def pack(matrix: Array, bits: int) -> PackedMatrix:
    """Pack matrix float32 [K, N] (inputs by outputs) to `bits` (4 or 8) per weight.

    Returns blocks uint8 [N, K/32, 32*bits/8], scales float32 [N, K/32], zero points
    uint8 [N, ceil(K/32 * bits/8)].
    """
    from onnxruntime.capi import _pybind_state as kernels

    rows, columns = matrix.shape
    num_blocks = -(-rows // BLOCK_SIZE)
    per_byte = 8 // bits
    padded = np.zeros((num_blocks * BLOCK_SIZE, columns), np.float32)
    padded[:rows] = matrix
    blocks = np.zeros((columns, num_blocks, BLOCK_SIZE // per_byte), np.uint8)
    scales = np.zeros((columns, num_blocks), np.float32)
    zero_points = np.zeros((columns, -(-num_blocks // per_byte)), np.uint8)
    try:
        quantize = getattr(kernels, f"quantize_matmul_{bits}bits")
    except AttributeError:
        raise SpecdecError(
            f"this build of ONNX Runtime cannot quantise to {bits} bits: use --precision fp32"
        ) from None
    quantize(blocks, padded, scales, zero_points, BLOCK_SIZE, columns, rows, False)
    return PackedMatrix(
        {"blocks": blocks, "scales": scales, "zero_points": zero_points},
        {
            "K": rows,
            "N": columns,
            "bits": bits,
            "block_size": BLOCK_SIZE,
            "accuracy_level": ACCURACY_LEVEL,
        },
    )
