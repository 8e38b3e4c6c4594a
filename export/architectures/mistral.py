"""Mistral: Llama's layers; its sliding window, where the config sets one, is refused earlier."""

from specdec.export.architectures.llama import Architecture

__all__ = ["Architecture"]
