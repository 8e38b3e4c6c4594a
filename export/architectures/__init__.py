"""One file per `model_type`; adding one is adding one file with a class `Architecture`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from specdec.errors import UnsupportedModel


def names() -> list[str]:
    """The model types this folder has files for."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(model_type: str) -> Any:
    """The architecture class of one model type.

    Raises `UnsupportedModel` listing what exists; an ImportError inside a file stays one.
    """
    if model_type not in names():
        raise UnsupportedModel(
            f"model type {model_type!r} is not supported: supported are {', '.join(names())}"
        )
    return importlib.import_module(f"{__name__}.{model_type}").Architecture
