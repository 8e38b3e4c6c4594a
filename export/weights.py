"""A checkpoint's tensors by their Hugging Face names, as float32 arrays, one at a time.

Knows nothing of graphs. It remembers what was read, so that a tensor nobody asked for (a bias or
an adapter the architecture does not express) is an error and not a silently different model.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specdec.errors import InvalidArtifact, UnsupportedModel

Array = np.ndarray[Any, Any]

_READABLE = ("F32", "F16", "BF16")
# Tables that old checkpoints carry and that the config already determines.
_DERIVED = (".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias")


class Weights(ABC):
    """Named tensors, read lazily and counted."""

    def __init__(self, names: set[str]) -> None:
        self.names = frozenset(names)
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def get(self, name: str, shape: tuple[int, ...]) -> Array:
        """One tensor as float32 of exactly this shape.

        Raises:
            UnsupportedModel: the checkpoint has no such tensor, or one of another shape or type.
        """
        if name not in self.names:
            raise UnsupportedModel(
                f"the checkpoint has no tensor {name}: expected an unquantised checkpoint "
                f"with Hugging Face names"
            )
        self._read.add(name)
        array = self._load(name)
        if array.shape != shape:
            raise UnsupportedModel(
                f"tensor {name} has shape {list(array.shape)}: the config says {list(shape)}"
            )
        return np.ascontiguousarray(array, dtype=np.float32)

    def skip(self, name: str) -> None:
        """Say that a tensor is left out on purpose (a tied head stored twice)."""
        self._read.add(name)

    def refuse_unread(self) -> None:
        """Raises `UnsupportedModel` when the checkpoint holds more than the graph uses."""
        left = sorted(n for n in self.names - self._read if not n.endswith(_DERIVED))
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise UnsupportedModel(
                f"the checkpoint has tensors this architecture does not use: "
                f"{', '.join(left[:3])}{more}"
            )

    @abstractmethod
    def _load(self, name: str) -> Array: ...


class SafetensorsWeights(Weights):
    """The *.safetensors files of a Hugging Face directory, mapped and read tensor by tensor."""

    def __init__(self, directory: Path) -> None:
        self._files = _tensor_files(directory)
        super().__init__(set(self._files))
        self._open: dict[tuple[Path, str], Any] = {}

    def _load(self, name: str) -> Array:
        path = self._files[name]
        kind = self._handle(path, "np").get_slice(name).get_dtype()
        if kind not in _READABLE:
            raise UnsupportedModel(
                f"tensor {name} is {kind}: expected an unquantised checkpoint of "
                f"{', '.join(_READABLE)}"
            )
        if kind == "BF16":  # numpy has no such type
            array: Array = self._handle(path, "pt").get_tensor(name).float().numpy()
        else:
            array = self._handle(path, "np").get_tensor(name)
        return array

    def _handle(self, path: Path, framework: str) -> Any:
        from safetensors import SafetensorError, safe_open

        key = (path, framework)
        if key not in self._open:
            try:
                self._open[key] = safe_open(path, framework)
            except (SafetensorError, OSError) as error:
                raise InvalidArtifact(f"{path} cannot be read as safetensors: {error}") from None
        return self._open[key]


def _tensor_files(directory: Path) -> dict[str, Path]:
    """Which file holds each tensor: by the index where there is one, else by looking."""
    from safetensors import SafetensorError, safe_open

    index = directory / "model.safetensors.index.json"
    if index.is_file():
        files = {n: directory / f for n, f in json.loads(index.read_text())["weight_map"].items()}
        missing = sorted({f.name for f in files.values() if not f.is_file()})
        if missing:
            raise InvalidArtifact(f"{directory} lacks {', '.join(missing)} named by {index.name}")
        return files
    path = directory / "model.safetensors"
    if not path.is_file():
        raise InvalidArtifact(
            f"{directory} has no model.safetensors nor {index.name}: only safetensors are read "
            f"(pickled weights can run code)"
        )
    try:
        with safe_open(path, "np") as file:
            return dict.fromkeys(file.keys(), path)
    except (SafetensorError, OSError) as error:
        raise InvalidArtifact(f"{path} cannot be read as safetensors: {error}") from None


class LoadedWeights(Weights):
    """The state dict of a model that transformers has loaded (a dequantised GGUF)."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(set(state))
        self._state = state

    def _load(self, name: str) -> Array:
        array: Array = self._state[name].detach().float().numpy()
        return array
