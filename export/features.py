"""What a trained head reads of its target: the inputs of some layers, the residual stream there."""

from __future__ import annotations

from typing import NamedTuple

from specdec.errors import InvalidRequest


class Features(NamedTuple):
    """Which layers; L, the number of layers, stands for what enters the final norm."""

    layers: tuple[int, ...] | None = None  # rising; None: a low, a middle and a high one, and L

    @classmethod
    def parse(cls, text: str) -> Features:
        """`auto`, `none`, or numbers such as `2,15,27`. Raises `InvalidRequest`."""
        if text in _NAMED:
            return _NAMED[text]
        parts = text.split(",")
        if not all(part.isdecimal() for part in parts):
            raise InvalidRequest(
                f"--features {text!r}: expected {', '.join(_NAMED)}, or numbers of layers such as "
                f"2,15,27"
            )
        return cls(tuple(sorted({int(part) for part in parts})))

    def __str__(self) -> str:
        """What `parse` reads."""
        named = next((name for name, features in _NAMED.items() if features == self), None)
        return named or ",".join(map(str, self.layers or ()))

    def of(self, num_layers: int) -> tuple[int, ...]:
        """The layers in a model of `num_layers`. Raises `InvalidRequest`: it has no such one."""
        if self.layers is None:
            # EAGLE-3's three, at the places vLLM takes them from; small models have fewer.
            low, middle, high = min(2, num_layers), num_layers // 2, max(0, num_layers - 3)
            return tuple(sorted({low, middle, high, num_layers}))
        if self.layers and self.layers[-1] > num_layers:
            raise InvalidRequest(
                f"--features {self}: this model has {num_layers} layers, allowed are 0 to "
                f"{num_layers}, where {num_layers} is the input of the final norm"
            )
        return self.layers


AUTO, NONE = Features(), Features(())
_NAMED = {"auto": AUTO, "none": NONE}
