"""One file per drafter; `load_drafter` finds the class by the file's name."""

from __future__ import annotations

import importlib
import pkgutil

from specdec.drafters.base import Drafter
from specdec.errors import InvalidConfig

NONE = "none"  # plain decoding: the absence of a drafter


def drafter_names() -> tuple[str, ...]:
    """Every drafter in this folder, `none` first; a file whose name begins with _ is none."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return (NONE, *sorted(name for name in found if name != "base" and name[0] != "_"))


def drafter_class(name: str) -> type[Drafter]:
    """Raises `InvalidConfig` with the names there are; an error inside the file stays itself."""
    if name not in drafter_names() or name == NONE:
        raise InvalidConfig(f"drafter {name!r}: available are {', '.join(drafter_names())}")
    module = importlib.import_module(f"specdec.drafters.{name}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Drafter)
        and value.__module__ == module.__name__
    ]
    assert len(classes) == 1, f"{module.__name__} must define exactly one Drafter"
    return classes[0]
