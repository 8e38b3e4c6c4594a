"""Several named arrays as one tensor of bytes, and back.

Triton copies every tensor of a call twice each way and keeps books on it: with seven inputs and
three outputs as one each, a step's hop takes 0.15 ms less, and the server 0.1 ms less of the
processors.

    frame   [ sizes: one int32 per field, in bytes, -1 where absent | the fields' bytes in order ]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]
Fields = Mapping[str, Any]  # name -> numpy type; np.object_ is one byte string, [1]
Frame = np.ndarray[Any, np.dtype[np.uint8]]

INPUT, OUTPUT = "call", "result"  # the tensors' names


def pack(arrays: Arrays, fields: Fields) -> Frame:
    """`arrays`: some of the fields, [n] each and of their types; others are an error of ours."""
    assert arrays.keys() <= fields.keys(), (list(arrays), list(fields))
    sizes, parts = [], []
    for name, kind in fields.items():
        array = arrays.get(name)
        if array is None:
            sizes.append(-1)
            continue
        assert array.dtype == kind, (name, array.dtype)
        parts.append(array[0] if kind is np.object_ else array.tobytes())
        sizes.append(len(parts[-1]))
    return np.frombuffer(b"".join([np.array(sizes, np.int32).tobytes(), *parts]), np.uint8)


def unpack(frame: Frame, fields: Fields) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays that were packed, read-only. Raises `ValueError`: it has not the size it says."""
    raw = frame.tobytes()
    end = 4 * len(fields)
    sizes = np.frombuffer(raw[:end], np.int32).tolist()
    arrays = {}
    for (name, kind), size in zip(fields.items(), sizes, strict=True):
        if size < 0:
            continue
        part, end = raw[end : end + size], end + size
        is_text = kind is np.object_
        arrays[name] = np.array([part], np.object_) if is_text else np.frombuffer(part, kind)
    if end != len(raw):
        raise ValueError(f"a frame of {len(raw)} bytes says that it has {end}")
    return arrays
