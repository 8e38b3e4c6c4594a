"""How each runtime wants the same decoder written down; TensorRT's is in tensorrt_graph.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from specdec.export.quantize import (
    BLOCK_SIZE,
    PackedMatrix,
    Precision,
    block_sums,
    pack,
    pack_columns,
    pack_with_offsets,
)

if TYPE_CHECKING:
    from specdec.export.graph import Array, GraphWriter


_STEP = np.array(1 / 127, np.float32)
_ZERO = np.array(128, np.uint8)  # the fast kernels want unsigned activations


class Form(Protocol):
    """How one runtime wants the same decoder written down."""

    precision: str  # how matrices are stored, for descriptions
    dtype: Any  # numpy type of constants, activations and cache; `real` in graph.py's tables
    cache_length: int | None  # S; None: every call brings its own
    domains: Mapping[str, int]  # operator sets beside the standard one

    def product(self, graph: GraphWriter, x: str, name: str, weight: Array, out: str | None) -> str:
        """Add x [N, in] times weight float32 [out, in] transposed; returns its name."""
        ...


class DraftForm:
    """For a draft on ONNX Runtime: int8 by the operator that takes eight rows in less than twice
    the time of one. Its scales of activations are shared by all rows of a pass, so a row's numbers
    depend on the others: a draft's may, its target's must not."""

    precision = "int8"
    dtype = np.float32
    cache_length = None
    domains: ClassVar[Mapping[str, int]] = {"com.microsoft": 1}

    def product(self, graph: GraphWriter, x: str, name: str, weight: Array, out: str | None) -> str:
        """See `Form`."""
        matrix = pack_columns(weight.T)
        parts = [graph.constant(f"{name}.{part}", a) for part, a in matrix.items()]
        return graph.op("DynamicQuantizeMatMul", x, *parts, out=out, domain="com.microsoft")


class RowForm:
    """For ONNX Runtime: int8 weights with a scale per output, int8 activations with one per row.

    A row's numbers depend on no other row, and sums of whole numbers on no order:

        x [N, K] -> largest [N, 1] = max |x| of each row -> rounded [N, K] = x * 127 / largest
        y [N, M] = (rounded @ weights) * scales / 127 * largest
    """

    precision = Precision.w8a8.value
    dtype = np.float32
    cache_length = None
    domains: ClassVar[Mapping[str, int]] = {"com.microsoft": 1}

    def __init__(self) -> None:
        self._rounded: dict[str, tuple[str, str]] = {}  # x -> rounded, largest

    def product(self, graph: GraphWriter, x: str, name: str, weight: Array, out: str | None) -> str:
        """See `Form`; products of the same x share its rounding."""
        if x not in self._rounded:
            self._rounded[x] = self._round(graph, x)
        rounded, largest = self._rounded[x]
        packed = pack_columns(weight.T)
        weights = graph.constant(f"{name}.rounded", packed["weight"])
        scales, zeros = (
            graph.constant(f"{name}.{n}", packed[n]) for n in ("scales", "zero_points")
        )
        step, zero = self._grid(graph)
        y = graph.op(
            "MatMulIntegerToFloat",
            *(rounded, weights, step, scales, zero, zeros),
            domain="com.microsoft",
        )
        return graph.op("Mul", y, largest, out=out)

    def _grid(self, graph: GraphWriter) -> tuple[str, str]:
        return graph.constant("rows.step", _STEP), graph.constant("rows.zero", _ZERO)

    def _round(self, graph: GraphWriter, x: str) -> tuple[str, str]:
        last = graph.constant("rows.axis", np.array([-1]))
        largest = graph.op("ReduceMax", graph.op("Abs", x), last, keepdims=1)
        # A row of zeros is divided by zero: whatever that is rounded to is multiplied by it later.
        share = graph.op("Div", x, largest)
        return graph.op("QuantizeLinear", share, *self._grid(graph)), largest


class OnnxForm:
    """For ONNX Runtime: float32, and quantised matrices by its own operator."""

    dtype = np.float32
    cache_length = None

    def __init__(self, precision: Precision) -> None:
        self.precision = precision.value
        self._bits = precision.block_bits
        self.domains = {"com.microsoft": 1} if self._bits else {}
        self._blocks: dict[int, str] = {}  # K -> the constant that sums blocks
        self._sums: dict[str, str] = {}  # x -> its block sums

    def product(self, graph: GraphWriter, x: str, name: str, weight: Array, out: str | None) -> str:
        """See `Form`."""
        if self._bits is None:
            return graph.op("MatMul", x, graph.constant(f"{name}.weight", weight.T), out=out)
        if self._bits == 4 and weight.shape[1] % BLOCK_SIZE == 0:
            return self._product_with_offsets(graph, x, name, weight, out)
        return self._packed_product(graph, x, name, pack(weight.T, self._bits), out)

    def _packed_product(
        self, graph: GraphWriter, x: str, name: str, matrix: PackedMatrix, out: str | None
    ) -> str:
        parts = [graph.constant(f"{name}.{part}", a) for part, a in matrix.arrays.items()]
        return graph.op(
            "MatMulNBits", x, *parts, out=out, domain="com.microsoft", **matrix.attributes
        )

    def _product_with_offsets(
        self, graph: GraphWriter, x: str, name: str, weight: Array, out: str | None
    ) -> str:
        """See `pack_with_offsets`; products of the same x share its block sums."""
        rows = weight.shape[1]
        if rows not in self._blocks:
            self._blocks[rows] = graph.constant(f"block_sums.{rows}", block_sums(rows))
        if x not in self._sums:
            self._sums[x] = graph.op("MatMul", x, self._blocks[rows])
        matrix = pack_with_offsets(weight.T)
        offsets = graph.constant(f"{name}.offsets", matrix.offsets)
        main = self._packed_product(graph, x, name, matrix.packed, None)
        return graph.op("Add", main, graph.op("MatMul", self._sums[x], offsets), out=out)


def target_form(precision: Precision) -> Form:
    """What a decoder is written down in for ONNX Runtime."""
    return RowForm() if precision is Precision.w8a8 else OnnxForm(precision)


def draft_form(precision: Precision) -> Form:
    """What a trained head or draft is written down in."""
    return DraftForm() if precision is Precision.int8 else target_form(precision)
