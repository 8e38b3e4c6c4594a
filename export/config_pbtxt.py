"""The config.pbtxt of an exported model."""

from __future__ import annotations


def decoder_config(name: str) -> str:
    """Text of a decoder model's config.pbtxt; `name` is its folder in the model repository."""
    return f"""\
# A decoder: the graph, key-value cache and sampler that the `speculative` model calls.
# Its inputs and outputs are filled in by the backend.
name: "{name}"
backend: "specdec"
max_batch_size: 0  # the backend batches sequences itself
instance_group [ {{ count: 1, kind: KIND_CPU }} ]

# Defaults; remove the # to change one.
# parameters {{ key: "max_sequences" value {{ string_value: "16" }} }}
# parameters {{ key: "max_sequence_length" value {{ string_value: "2048" }} }}
# parameters {{ key: "num_threads" value {{ string_value: "0" }} }}  # 0: one per processor
# parameters {{ key: "device" value {{ string_value: "0" }} }}  # number of the card, for TensorRT
# parameters {{ key: "artifact_dir" value {{ string_value: "" }} }}  # empty: the version folder
"""
