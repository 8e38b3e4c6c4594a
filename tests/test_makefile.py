"""What `make serve` runs, in which order; nothing is run here."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def commands(*arguments: str) -> list[str]:
    """Every call of specdec that `make ARGUMENTS` would make, without the path."""
    command = ["make", "--no-print-directory", "--dry-run", *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    lines = [line.partition("/bin/specdec ") for line in done.stdout.splitlines()]
    return [arguments.strip() for _, found, arguments in lines if found]


def test_make_serve_exports_target_and_head_and_serves_both():
    assert commands("serve") == [
        "export target --model smollm2 --precision fp32",
        "export head --if-shipped",
        "serve",
    ]


def test_its_variables_reach_the_commands():
    assert commands("serve", "MODEL=other", "PRECISION=int8", "SERVE_ARGS=--no-head") == [
        "export target --model other --precision int8",
        "export head --if-shipped",
        "serve --no-head",
    ]
