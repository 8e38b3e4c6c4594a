"""Typed access to a request's input tensors: types, shapes and ranges are checked here.

Every tensor has a leading batch dim: [N, ...] gives each of the N prompts its own value, [1, ...]
the same one to all. An array without elements counts as absent. Knows nothing of what a value
means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from specdec.errors import InvalidRequest
from specdec.speculation.contract import INPUTS, MAX_BATCH_SIZE, NUMPY_TYPES, Field

Array = np.ndarray[Any, Any]
T = TypeVar("T")

_FIELDS = {field.name: field for field in INPUTS}
_MAX_SHOWN = 60  # characters of a client's own text that an error repeats


def shown(value: object) -> str:
    """A value as an error may repeat it: short, on one line."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


class InputReader:
    """The inputs of one request."""

    def __init__(self, tensors: Mapping[str, Array | None]) -> None:
        """Raises `InvalidRequest` for a wrong name, type or shape, or a missing required input."""
        self._tensors: dict[str, Array] = {}
        for name, array in tensors.items():
            field = _FIELDS.get(name)
            if field is None:
                raise InvalidRequest(f"unknown input {shown(name)}")
            if array is not None and array.size:
                _check_type_and_shape(field, array)
                self._tensors[name] = array
        for field in INPUTS:
            if not field.optional and field.name not in self._tensors:
                raise InvalidRequest(f"{field.name} is missing: it is required")
        self.num_prompts = self._tensors["text_input"].shape[0]
        if self.num_prompts > MAX_BATCH_SIZE:
            raise InvalidRequest(
                f"text_input holds {self.num_prompts} prompts: allowed are {MAX_BATCH_SIZE}"
            )
        for name, array in self._tensors.items():
            if array.shape[0] not in (1, self.num_prompts):
                raise InvalidRequest(
                    f"{name} has {array.shape[0]} rows: allowed are 1 or {self.num_prompts},"
                    " one per prompt"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def row(self, name: str, row: int) -> Array | None:
        """The part of an input that belongs to one prompt, [*dims]; None when absent."""
        array = self._tensors.get(name)
        if array is None:
            return None
        part: Array = array[row if array.shape[0] > 1 else 0]
        return part

    def integer(self, name: str, row: int, *, low: int, high: int | None = None) -> int | None:
        """A whole number in [low, high]; None when absent."""
        part = self.row(name, row)
        if part is None:
            return None
        value = int(part[0])
        if value < low or (high is not None and value > high):
            allowed = f"{low} or more" if high is None else f"{low} to {high}"
            raise InvalidRequest(f"{name} is {value}: allowed is {allowed}")
        return value

    def number(self, name: str, row: int, *, low: float, high: float) -> float | None:
        """A number in [low, high], so neither NaN nor infinite; None when absent."""
        part = self.row(name, row)
        if part is None:
            return None
        value = float(part[0])
        if not low <= value <= high:
            raise InvalidRequest(f"{name} is {value:g}: allowed is {low:g} to {high:g}")
        return value

    def numbers(self, name: str, row: int) -> tuple[float, ...]:
        """Finite numbers; () when absent."""
        part = self.row(name, row)
        values = () if part is None else tuple(float(value) for value in part)
        for value in values:
            if not math.isfinite(value):
                raise InvalidRequest(f"{name} holds {value}: allowed are finite numbers")
        return values

    def text(self, name: str, row: int, *, max_bytes: int = 4096) -> str:
        """A string; "" when absent."""
        part = self.row(name, row)
        return "" if part is None else _to_text(name, part[0], max_bytes)

    def texts(self, name: str, row: int, *, max_items: int = 128) -> tuple[str, ...]:
        """Strings, the empty ones (clients send [""] for none) left in place; () when absent."""
        part = self.row(name, row)
        if part is None:
            return ()
        if len(part) > max_items:
            raise InvalidRequest(f"{name} holds {len(part)} items: allowed are {max_items}")
        return tuple(_to_text(name, value, max_bytes=4096) for value in part)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean that holds for the request as a whole."""
        array = self._tensors.get(name)
        if array is None:
            return default
        if array.any() != array.all():
            raise InvalidRequest(f"{name} differs between prompts: one request has one value")
        return bool(array.all())


def same(first: str, one: T | None, second: str, other: T | None) -> T | None:
    """The value of an input that has two spellings; both may be given if they agree."""
    if one is not None and other is not None and one != other:
        raise InvalidRequest(f"{first} is {one} and {second} is {other}: they mean the same")
    return other if one is None else one


def _check_type_and_shape(field: Field, array: Array) -> None:
    wanted = NUMPY_TYPES[field.datatype]
    is_text = field.datatype == "STRING" and array.dtype.kind in "SUO"
    if array.dtype != wanted and not is_text:
        raise InvalidRequest(f"{field.name} is of type {array.dtype}: allowed is {field.datatype}")
    fits = array.ndim == 1 + len(field.dims) and all(
        dim in (-1, size) for dim, size in zip(field.dims, array.shape[1:], strict=True)
    )
    if not fits:
        allowed = ", ".join(["N", *("any" if dim < 0 else str(dim) for dim in field.dims)])
        raise InvalidRequest(
            f"{field.name} has shape {list(array.shape)}: allowed is [{allowed}], N the prompts"
        )


def _to_text(name: str, value: object, max_bytes: int) -> str:
    if not isinstance(value, bytes | str):
        raise InvalidRequest(f"{name} holds {shown(value)}: expected text")
    try:
        data = value if isinstance(value, bytes) else value.encode()
        if len(data) > max_bytes:
            raise InvalidRequest(f"{name} has {len(data)} bytes: allowed are {max_bytes}")
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at position {error.start}"
        raise InvalidRequest(f"{name} is not UTF-8: {found}") from None
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} has half of a surrogate pair: not valid Unicode") from None
