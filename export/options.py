"""Options that every export command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[
    Path, typer.Option("--output", help="The Triton model directory to write; version 1 in it.")
]
Force = Annotated[bool, typer.Option("--force", help="Export again even when up to date.")]
Json = Annotated[bool, typer.Option("--json", help="Print a summary as one JSON object.")]
