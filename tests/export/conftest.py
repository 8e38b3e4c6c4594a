"""Tiny models and artifacts shared by the exporter's tests; made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.progress import Progress

from support.tiny import export_tiny


@pytest.fixture
def progress() -> Iterator[Progress]:
    with Progress(disable=True) as silent:
        yield silent


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama: model/ and artifact/1/ (fp32)."""
    directory = tmp_path_factory.mktemp("tiny")
    export_tiny(directory)
    return directory
