"""What a head or draft is made from: its trained folder, and the tables of its exported target.

    TRAINED/model.safetensors   the trained tensors, named as export/training/head.py names them,
                                and `d2t` [V'] (target id minus draft id, as EAGLE-3 stores it)
    TRAINED/config.json         its sizes and the layers it reads

The embedding, the LM head's rows and the rotary angles are the target's own and in no file of what
was trained: they are read from the target's graph, where they are whole at every precision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec.artifact import GRAPH, Artifact
from specdec.errors import InvalidArtifact, UnsupportedModel

if TYPE_CHECKING:
    from specdec.export.training.block import BlockShape

Array = np.ndarray[Any, Any]

WEIGHTS, CONFIG = "model.safetensors", "config.json"
_D2T = "d2t"
_NOT_OF_THE_BLOCKS = (_D2T, "t2d")


@dataclass(frozen=True, slots=True, eq=False)
class TrainedHead:
    """Sizes and tensors of one head or draft. V' static ids."""

    shape: BlockShape
    feature_layers: tuple[int, ...]
    reads_token: bool  # a head beside its target; if not, a decoder of its own
    num_blocks: int
    static_ids: Array  # int64 [V'] target ids, ascending
    weights: Mapping[str, Any]  # torch tensors by their names in `Head.state_dict`

    @property
    def feature_size(self) -> int:
        """Numbers of one row of features."""
        return len(self.feature_layers) * self.shape.hidden_size

    @classmethod
    def read(cls, directory: Path) -> TrainedHead:
        """Raises `InvalidArtifact` and `UnsupportedModel`, naming the file or the setting."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        from specdec.export.training.block import BlockShape

        _check_whole(directory)
        try:
            found = json.loads((directory / CONFIG).read_bytes())
            config, shape = found["config"], BlockShape(**found["shape"])
            tensors = load_file(directory / WEIGHTS)
            ids = tensors[_D2T].numpy() + np.arange(len(tensors[_D2T]))
            return cls(
                shape=shape,
                feature_layers=tuple(config["feature_layers"]),
                reads_token=config["reads_token"],
                num_blocks=config["num_blocks"],
                static_ids=ids.astype(np.int64),
                weights={k: v for k, v in tensors.items() if k not in _NOT_OF_THE_BLOCKS},
            )
        except (KeyError, TypeError, ValueError, SafetensorError) as error:
            raise InvalidArtifact(f"{directory} holds nothing trained: {error}") from None


def llama_name(name: str) -> str:
    """A trained tensor's name as transformers' Llama has it."""
    return name.replace("hidden_norm", "input_layernorm")


def identity(directory: Path) -> str:
    """Hash of a trained folder's two files. Needs no torch, whose import takes seconds.

    Raises `InvalidArtifact`: there is none.
    """
    _check_whole(directory)
    content = (directory / CONFIG).read_bytes() + (directory / WEIGHTS).read_bytes()
    return hashlib.sha256(content).hexdigest()


def is_trained(directory: Path) -> bool:
    """Whether it is a folder that training wrote, and no model of another kind."""
    try:
        found = json.loads((directory / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"config", "shape"} <= found.keys()


def _check_whole(directory: Path) -> None:
    for name in (WEIGHTS, CONFIG):
        if not (directory / name).is_file():
            raise InvalidArtifact(f"{directory} holds nothing trained: {name} is missing")


@dataclass(frozen=True, slots=True, eq=False)
class TargetTables:
    """What both take from their target. V ids, H hidden size, D head size, P positions."""

    embedding: Array  # float32 [V, H]
    head: Array  # float32 [V, H], the same object where the target ties the two
    cos: Array  # float32 [P, D/2]
    sin: Array  # float32 [P, D/2]

    @property
    def is_tied(self) -> bool:
        return self.head is self.embedding

    @classmethod
    def read(cls, directory: Path) -> TargetTables:
        """Of an exported target.

        Raises:
            InvalidArtifact: there is none, or it is a plan without a graph.
            UnsupportedModel: its LM head is a matrix of its own and stored quantised.
        """
        import onnx
        from onnx import helper, numpy_helper

        Artifact.read(directory)
        path = directory / GRAPH
        if not path.is_file():
            raise InvalidArtifact(f"{directory} has no {GRAPH}: export the target for onnxruntime")
        graph = onnx.load(path, load_external_data=False).graph
        tensors = {tensor.name: tensor for tensor in graph.initializer}

        def read(name: str) -> Array:
            tensor = tensors[name]
            place = {entry.key: entry.value for entry in tensor.external_data}
            if not place:
                array: Array = numpy_helper.to_array(tensor)
                return array
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            data, offset = directory / place["location"], int(place["offset"])
            return np.memmap(data, kind, mode="r", offset=offset, shape=tuple(tensor.dims))

        embedding = read("model.embed_tokens.weight")
        head = embedding
        if "lm_head.weight" in tensors:
            whole = read("lm_head.weight").T
            head = embedding if np.array_equal(whole, embedding) else whole
        elif not _looks_tied(embedding, read("lm_head.scales")):
            raise UnsupportedModel(
                f"the LM head in {directory} is quantised and not the embedding: export the "
                f"target at --precision fp32 for this"
            )
        return cls(embedding, head, read("rotary.cos"), read("rotary.sin"))


def _looks_tied(embedding: Array, scales: Array) -> bool:
    """Whether a quantised LM head is of the embedding's rows: a block's scale is the range of its
    32 weights over the number of steps, so the two are proportional; a row's its largest over 127.
    """
    rows = embedding[:64]
    if scales.ndim == 1:
        largest = np.abs(rows).max(-1)
        expected = np.where(largest > 0, largest / 127, 1.0)
        return np.allclose(expected, scales[: len(rows)], rtol=1e-3)
    size = rows.shape[1] // scales.shape[1]
    blocks = rows[:, : size * scales.shape[1]].reshape(len(rows), -1, size)
    ranges = (blocks.max(-1) - blocks.min(-1)).ravel()
    return bool(np.corrcoef(ranges, scales[: len(rows)].ravel())[0, 1] > 0.9)
