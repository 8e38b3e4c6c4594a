"""TensorRT-RTX: the same interface as TensorRT, for GeForce and RTX cards."""

from specdec.decoder.runtimes.tensorrt import load

__all__ = ["load"]
