"""Tiny real models at every precision, exported once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiny import export_tiny

PRECISIONS = ("fp32", "int8", "w8a8", "int4")


@pytest.fixture(scope="session")
def tiny_artifacts(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {precision: export_tiny(root / precision, precision) for precision in PRECISIONS}


@pytest.fixture(params=PRECISIONS)
def artifact_dir(request, tiny_artifacts) -> Path:
    """Each test that asks for it runs at every precision."""
    return tiny_artifacts[request.param]
