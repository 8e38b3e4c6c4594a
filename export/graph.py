"""The decoder graph: its inputs, its outputs, and a writer that streams weights to disk.

Standard ONNX operators of opset 24 only (quantised matrices excepted). Knows no architecture:
a file under architectures/ says which operators a layer consists of.

Rows are flat: N = all tokens of all sequences of a call, one after another, so that the matrix
products never work on padding. Only attention sees [B, T]:

    flat rows [N] --Gather(row_index)--> [B, T] --attention--> [B*T] --Gather(flat_index)--> [N]
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec.artifact import GRAPH
from specdec.errors import UnsupportedModel
from specdec.export.forms import Form

Array = np.ndarray[Any, Any]

OPSET = 24
IR_VERSION = 11
VERSION = 2  # of the exporter: raise it when the same model would give another graph
_INLINE_BYTES = 1024  # smaller constants (shapes, norms of tiny models) live in the graph itself
_PAGE = 4096  # external tensors start on a page, so that a runtime can map them


class Port(NamedTuple):
    """One named tensor of the graph."""

    dtype: str
    axes: tuple[str | int, ...]
    meaning: str


# B sequences, T places per sequence, N flat rows, R rows with logits, S places in the cache,
# V vocabulary, H key-value heads, D head size, F features of a row: layers * hidden size.
INPUTS: dict[str, Port] = {
    "input_ids": Port("int64", ("N",), "tokens of all sequences, one sequence after another"),
    "row_index": Port("int64", ("B", "T"), "flat row at each place; past the end: the last row"),
    "flat_index": Port("int64", ("N",), "place b*T+t of every flat row: the way back"),
    "position_ids": Port("int64", ("B", "T"), "position of each place, < max_position_embeddings"),
    "write_index": Port("int64", ("B",), "cache position of the call's first place"),
    "attention_mask": Port("bool", ("B", 1, "T", "S"), "who sees whom; no row is fully false"),
    "output_rows": Port("int64", ("R",), "flat rows that need logits"),
}
# One pair per layer; past_x_i and present_x_i are bound to the same buffer and written in place.
CACHE_INPUT = Port("real", ("B", "H", "S", "D"), "keys or values, past_key_i and past_value_i")
CACHE_OUTPUT = Port("real", ("B", "H", "S", "D"), "the same, present_key_i, present_value_i")
LOGITS = Port("float32", ("R", "V"), "of output_rows, padding columns included")
# Only where the exporter was asked for some; a call that does not need them leaves them unbound.
FEATURES = Port("float32", ("N", "F"), "inputs of some layers, one layer after another")


class GraphWriter:
    """Collects nodes and writes each weight to `model.onnx.data` as it comes.

    Holding one tensor at a time keeps the exporter's memory near the size of the largest one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        form: Form,
        on_weight: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.directory, self.form = directory, form
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._on_weight = on_weight
        self._data = (directory / f"{GRAPH}.data").open("wb")
        self._hash = hashlib.sha256()

    def close(self) -> None:
        self._data.close()

    def declare(self, num_layers: int, num_key_value_heads: int, head_size: int) -> None:
        """Declare every input, and the cache's outputs (`finish` adds the logits first)."""
        sizes = {"H": num_key_value_heads, "D": head_size}
        if self.form.cache_length is not None:
            sizes["S"] = self.form.cache_length
        for name, port in INPUTS.items():
            self._inputs.append(self._value_info(name, port, sizes))
        for layer in range(num_layers):
            for kind in ("key", "value"):
                past, present = f"past_{kind}_{layer}", f"present_{kind}_{layer}"
                self._inputs.append(self._value_info(past, CACHE_INPUT, sizes))
                self._outputs.append(self._value_info(present, CACHE_OUTPUT, sizes))

    def op(self, kind: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        out = out or f"{kind}_{len(self._nodes)}"
        return self.ops(kind, *inputs, outputs=[out], **attributes)[0]

    def ops(
        self, kind: str, *inputs: str, outputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with any number of outputs; returns their names."""
        from onnx import helper

        name = f"{kind}_{len(self._nodes)}"
        node = helper.make_node(
            kind, list(inputs), list(outputs), name=name, domain=domain, **attributes
        )
        self._nodes.append(node)
        return list(outputs)

    def constant(self, name: str, array: Array | Sequence[int]) -> str:
        """Add a constant (a sequence of ints becomes int64); a second call by a name reuses it."""
        if name not in self._constants:
            array = array if isinstance(array, np.ndarray) else np.array(list(array))
            self._constants[name] = self._tensor(name, array)
        return name

    def linear(
        self, x: str, name: str, weight: Array, bias: Array | None = None, *, out: str | None = None
    ) -> str:
        """x [N, in] times weight [out, in] transposed, stored as the form says: [N, out]."""
        y = self.form.product(self, x, name, weight, out if bias is None else None)
        self._on_weight(name)
        if bias is None:
            return y
        return self.op("Add", y, self.constant(f"{name}.bias", bias), out=out)

    def head(self, x: str, name: str, weight: Array, *, softcap: float | None = None) -> str:
        """The last product, whose output `logits` is float32 whatever the form.

        Args:
            softcap: c, where logits are c * tanh(logits / c).
        """
        is_float = self.form.dtype == np.float32
        if is_float and softcap is None:
            return self.linear(x, name, weight, out="logits")
        from onnx import TensorProto

        y = self.linear(x, name, weight)
        if softcap is not None:
            cap = self.constant("softcap", np.array(softcap, np.float32))
            y = self.op("Tanh", self.op("Div", y, cap))
            y = self.op("Mul", y, cap, out="logits" if is_float else None)
        return y if is_float else self.op("Cast", y, out="logits", to=TensorProto.FLOAT)

    def features(self, parts: Sequence[str], *, size: int) -> None:
        """Give out `parts` [N, hidden] each, side by side: `features` float32 [N, size]."""
        from onnx import TensorProto

        joined = self.op("Concat", *parts, axis=-1)
        self.op("Cast", joined, out="features", to=TensorProto.FLOAT)
        self._outputs.append(self._value_info("features", FEATURES, {"F": size}))

    def cache_positions(self) -> str:
        """0, 1, ... S - 1: int64 [S]."""
        if self.form.cache_length is not None:
            return self.constant("cache_positions", np.arange(self.form.cache_length))
        zero, one, three = (self.constant(f"{n}", np.array(n)) for n in (0, 1, 3))
        length = self.op("Gather", self.op("Shape", "attention_mask"), three)
        return self.op("Range", zero, length, one)

    def rms_norm(self, x: str, name: str, scale: Array, epsilon: float) -> str:
        """Root mean square normalisation over the last axis."""
        return self.op(
            "RMSNormalization", x, self.constant(name, scale), axis=-1, epsilon=float(epsilon)
        )

    def finish(self, *, vocab_size: int, metadata: dict[str, str]) -> str:
        """Write `model.onnx`; returns the SHA-256 of the weights file.

        Args:
            vocab_size: columns of the tensor named `logits`.
            metadata: stored in the graph, for whoever asks where it came from.
        """
        import onnx
        from onnx import helper

        self._data.close()
        logits = self._value_info("logits", LOGITS, {"V": vocab_size})
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            self._inputs,
            [logits, *self._outputs],
            list(self._constants.values()),
        )
        sets = {"": OPSET, **self.form.domains}
        domains = [helper.make_opsetid(name, version) for name, version in sets.items()]
        model = helper.make_model(graph, opset_imports=domains, ir_version=IR_VERSION)
        model.producer_name, model.producer_version = "specdec", str(VERSION)
        helper.set_model_props(model, metadata)
        path = self.directory / GRAPH
        path.write_bytes(model.SerializeToString())
        onnx.checker.check_model(path)
        return self._hash.hexdigest()

    def _tensor(self, name: str, array: Array) -> Any:
        from onnx import TensorProto, helper, numpy_helper

        if array.dtype == np.float32:
            array = self._real(name, array)
        if array.nbytes < _INLINE_BYTES:
            return numpy_helper.from_array(array, name)
        data = _raw(array)
        offset = self._data.tell()
        padding = b"\0" * (-offset % _PAGE)
        for part in (padding, data):
            self._data.write(part)
            self._hash.update(part)
        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            dims=array.shape,
            data_location=TensorProto.EXTERNAL,
        )
        place = {"location": f"{GRAPH}.data", "offset": offset + len(padding), "length": len(data)}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def _real(self, name: str, array: Array) -> Array:
        """The form's type; raises `UnsupportedModel` where that cannot hold a value."""
        with np.errstate(over="ignore"):
            cast = array.astype(self.form.dtype, order="C", copy=False)
        if cast is not array and not np.isfinite(cast).all():
            raise UnsupportedModel(
                f"{name} has values up to {np.abs(array).max():.3g}, which {cast.dtype} cannot "
                f"hold: use --precision bf16"
            )
        return cast

    def _value_info(self, name: str, port: Port, sizes: dict[str, int]) -> Any:
        from onnx import helper

        dtype = self.form.dtype if port.dtype == "real" else np.dtype(port.dtype)
        axes = [sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in port.axes]
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), axes
        )


def _raw(array: Array) -> Any:
    """An array's bytes as ONNX stores them; 4-bit values go two to a byte, the first one low."""
    if array.dtype.name == "int4":
        nibbles = array.reshape(-1).view(np.uint8) & 0xF
        return memoryview(nibbles[::2] | nibbles[1::2] << 4)
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
