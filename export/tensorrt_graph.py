"""The decoder graph as TensorRT wants it: half precision, and one cache length for all calls.

TensorRT's attention exists in float16 and bfloat16 only, its cache update wants the cache's size
in the graph, and quantised matrices are spelled as DequantizeLinear in front of MatMul, which it
fuses. Seen with TensorRT-RTX 1.7: weights stay packed in the plan for int4 in blocks along the
inputs and for int8 and fp8 with one scale per output; int8 in blocks is unpacked at build time.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from specdec.errors import UnsupportedModel
from specdec.export.graph import Array, GraphWriter

# Inputs that share a scale in int4, the first that divides the number of inputs.
_BLOCK_SIZES = (128, 64, 32)
_PART_BYTES = 2 << 20  # temporaries are several times as large
_CLIPS = (1.0, 0.9, 0.8, 0.7)  # shares of a block's range that are tried as the largest value


class TensorRTPrecision(str, Enum):
    """How matrices are stored. Everything else, and int8, int4 and fp8 sums, are bfloat16
    (float16 on cards without it); embedding table and norms are never quantised."""

    bf16 = "bf16"
    fp16 = "fp16"
    int8 = "int8"
    int4 = "int4"
    fp8 = "fp8"

    @property
    def bits(self) -> int:
        """Of one weight of a matrix, scales aside."""
        return {"bf16": 16, "fp16": 16, "int8": 8, "int4": 4, "fp8": 8}[self.value]


class TensorRTForm:
    """See `Form`."""

    domains: dict[str, int] = {}  # noqa: RUF012 - never written to

    def __init__(
        self, precision: TensorRTPrecision, *, cache_length: int, dtype: Any = None
    ) -> None:
        """`dtype` is for tests, which run the same graph in float32."""
        import ml_dtypes

        half = np.float16 if precision is TensorRTPrecision.fp16 else ml_dtypes.bfloat16
        self.dtype = np.dtype(dtype or half)
        self.precision = precision.value
        self.cache_length = cache_length
        self._quantise = {
            "int8": quantise_int8,
            "int4": quantise_int4,
            "fp8": quantise_fp8,
        }.get(precision.value)

    def product(self, graph: GraphWriter, x: str, name: str, weight: Array, out: str | None) -> str:
        """See `Form`. The LM head keeps 8 bits in int4: its rounding is every token's."""
        if self._quantise is None:
            return graph.op("MatMul", x, graph.constant(f"{name}.weight", weight.T), out=out)
        quantise = (
            quantise_int8 if (name, self.precision) == ("lm_head", "int4") else self._quantise
        )
        values, scales, attributes = quantise(weight)
        dense = graph.op(
            "DequantizeLinear",
            graph.constant(f"{name}.values", values),
            graph.constant(f"{name}.scales", scales.astype(self.dtype)),
            **attributes,
        )
        return graph.op("MatMul", x, dense, out=out)


Quantised = tuple[Array, Array, dict[str, int]]  # [K, N], scales, attributes of the operator


def _in_parts(quantise: Callable[[Array], Quantised], weight: Array) -> Quantised:
    """The same result, some outputs at a time: temporaries are several times the weights."""
    size = max(1, _PART_BYTES // weight[0].nbytes)
    parts = [quantise(weight[i : i + size]) for i in range(0, len(weight), size)]
    values = np.concatenate([part[0] for part in parts], axis=1)
    scales = np.concatenate([part[1] for part in parts], axis=-1)
    return values, scales, parts[0][2]


def quantise_int8(weight: Array) -> Quantised:
    """weight float32 [N, K] to int8 [K, N], one scale [N] per output."""
    scales = np.maximum(np.abs(weight).max(1), np.finfo(np.float32).tiny * 127) / 127
    values = np.rint(weight / scales[:, None])
    return values.astype(np.int8).T, scales, {"axis": 1}


def quantise_fp8(weight: Array) -> Quantised:
    """weight float32 [N, K] to float8 e4m3 [K, N], one scale [N] per output."""
    import ml_dtypes

    largest = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    scales = np.maximum(np.abs(weight).max(1), np.finfo(np.float32).tiny * largest) / largest
    return (weight / scales[:, None]).astype(ml_dtypes.float8_e4m3fn).T, scales, {"axis": 1}


def quantise_int4(weight: Array) -> Quantised:
    """weight float32 [N, K] to int4 [K, N], one scale [K/block, N] per block of inputs.

    Raises `UnsupportedModel`: no block size divides K.
    """
    import ml_dtypes

    num_outputs, num_inputs = weight.shape
    block = next((b for b in _BLOCK_SIZES if num_inputs % b == 0), None)
    if block is None:
        raise UnsupportedModel(
            f"int4 needs matrices whose inputs divide by {_BLOCK_SIZES[-1]}: found {num_inputs}"
        )
    blocks = weight.reshape(num_outputs, -1, block)
    peaks = np.maximum(np.abs(blocks).max(-1, keepdims=True), np.finfo(np.float32).tiny * 8)
    best = np.full(peaks.shape, np.inf, np.float32)
    scales, values = np.empty_like(peaks), np.empty(blocks.shape, np.int8)
    for clip in _CLIPS:  # a smaller range rounds the many finer and cuts the few
        scale = peaks * (clip / 7)
        rounded = np.clip(np.rint(blocks / scale), -8, 7)
        error = np.square(rounded * scale - blocks).sum(-1, keepdims=True)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, scale, scales)
        values = np.where(better, rounded.astype(np.int8), values)
    packed = values.reshape(num_outputs, num_inputs).T.astype(ml_dtypes.int4)
    return packed, scales[..., 0].T, {"axis": 0, "block_size": block}
