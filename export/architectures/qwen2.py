"""Qwen2 and Qwen2.5: Llama's layers with biases on queries, keys and values.

Biases are taken where the checkpoint has them, so there is nothing to add.
"""

from specdec.export.architectures.llama import Architecture

__all__ = ["Architecture"]
