"""What `make test-gpu` found: one row a plan, what counts as a failure, a table and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from support import gpu_checks

# KL(float32 || plan) of the next-token distribution, nats, over all rows of PROMPTS. Broken graphs
# have more than 1; what rounding costs at a precision is of this order on small models.
MAX_DIVERGENCE = {"bf16": 0.05, "fp16": 0.01, "int8": 0.1, "fp8": 0.3, "int4": 0.8}
# Relative error of a row of features. Rows of other tokens are about 1.4 apart.
MAX_FEATURE_ERROR = {"bf16": 0.1, "fp16": 0.05, "int8": 0.15, "fp8": 0.4, "int4": 0.8}

COLUMNS = ("model", "runtime", "precision", "KL", "argmax", "exactness", "text", "replay")
COLUMNS += ("trunk", "branch KL", "candidates", "draws", "features")


class Row(NamedTuple):
    """One line of the table."""

    model: str
    runtime: str
    precision: str
    divergence: float
    agreement: float
    exactness: str
    num_texts: int
    num_other_texts: int  # that drafts, chunks or batch mates changed
    same_replay: bool
    tree: gpu_checks.TreeFinding
    same_candidates: bool
    num_wrong_draws: int
    feature_error: float
    milliseconds: dict[tuple[int, int], float]

    @property
    def failures(self) -> list[str]:
        found = []
        if not self.divergence <= MAX_DIVERGENCE[self.precision]:
            found.append(f"KL {self.divergence:.3g} > {MAX_DIVERGENCE[self.precision]}")
        # In another order of additions a near-tie may fall otherwise: only `bitwise` promises.
        if self.exactness == "bitwise" and self.num_other_texts:
            found.append("text depends on drafts or batch")
        if not self.same_replay:
            found.append("a CUDA graph gives other bits")
        if self.exactness == "bitwise" and not self.tree.same_trunk:
            found.append("a trunk is not a chain")
        if not self.tree.divergence <= MAX_DIVERGENCE[self.precision]:
            found.append(f"a branch is far from its path: KL {self.tree.divergence:.3g}")
        if not self.same_candidates:
            found.append("candidates are not the host's")
        if self.num_wrong_draws:
            found.append(f"{self.num_wrong_draws} draws are not the host's")
        if not self.feature_error <= MAX_FEATURE_ERROR[self.precision]:
            found.append(f"features are {self.feature_error:.3g} off")
        return found

    @property
    def cells(self) -> list[str]:
        others = f"{self.num_other_texts} of {self.num_texts} differ"
        return [
            f"{self.divergence:.2g}",
            f"{100 * self.agreement:.1f} %",
            self.exactness,
            others if self.num_other_texts else "same",
            *("same" if same else "differs" for same in (self.same_replay, self.tree.same_trunk)),
            f"{self.tree.divergence:.2g}",
            "same" if self.same_candidates else "differ",
            "same" if not self.num_wrong_draws else f"{self.num_wrong_draws} differ",
            f"{self.feature_error:.2g}",
            *(f"{milliseconds:.2f}" for milliseconds in self.milliseconds.values()),
        ]


class Fault(NamedTuple):
    """A line for what ended early: the others are still worth reading."""

    model: str
    runtime: str
    precision: str
    reason: str

    @property
    def failures(self) -> list[str]:
        return [self.reason]

    @property
    def cells(self) -> list[str]:
        return []


def table(rows: Sequence[Row | Fault]) -> Any:
    from rich.table import Table

    made = Table(title="ms: (sequences x rows of each) of one step, draws included")
    for column in COLUMNS:
        made.add_column(column)
    steps = next((row.milliseconds for row in rows if isinstance(row, Row)), {})
    for num_sequences, num_rows in steps:
        made.add_column(f"{num_sequences}x{num_rows} ms", justify="right")
    made.add_column("failed")
    width = len(COLUMNS) - 3 + len(steps)
    for row in rows:
        cells = row.cells or [""] * width
        made.add_row(row.model, row.runtime, row.precision, *cells, "; ".join(row.failures))
    return made


def as_json(device: str, rows: Sequence[Row | Fault]) -> str:
    """The same, for whoever reads it elsewhere."""

    def plain(row: Row | Fault) -> dict[str, Any]:
        found = {**row._asdict(), "failures": row.failures}
        if isinstance(row, Row):
            found["tree"] = row.tree._asdict()
            found["milliseconds"] = {f"{n}x{m}": t for (n, m), t in row.milliseconds.items()}
        return found

    return json.dumps({"device": device, "rows": [plain(row) for row in rows]}, indent=2)
