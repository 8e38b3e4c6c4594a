"""`specdec costs`: what a pass costs, measured at load or as a running server sees it now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from specdec.client.console import ERR, OUT
from specdec.client.errors import RequestRejected

FILE = "costs.json"  # beside an exported model


class Cost(NamedTuple):
    """One pass of `rows` rows over `sequences` sequences."""

    sequences: int
    rows: int
    seconds: float


Tables = dict[str, list[Cost]]  # by what they are of


def costs(
    directory: Annotated[
        Path, typer.Argument(help="An exported model's folder.", show_default=True)
    ] = Path("model_repository/target/1"),
    *,
    url: Annotated[
        str | None, typer.Option(help="Ask a running server: host and metrics port, 127.0.0.1:8002")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a target pass costs, by sequences and rows per sequence.

    Measured when a model is first used, and kept in costs.json beside it if the machine was quiet:
    delete that file to measure again. A running server corrects its costs all the time.
    """
    tables = read_live(url) if url else read_saved(directory) or measure(directory)
    if as_json:
        print(json.dumps({of: [c._asdict() for c in table] for of, table in tables.items()}))
        return
    for number, (of, table) in enumerate(tables.items()):
        if number:
            OUT.print()
        show(of, table)


def read_saved(directory: Path) -> Tables:
    """By model and machine; empty if nothing was measured yet."""
    from specdec.artifact import Artifact

    artifact = Artifact.read(directory)
    try:
        found = json.loads((directory / FILE).read_text())
        return {
            f"{artifact.source}, {key.partition(' ')[2]}": [
                Cost(int(n), int(rows), float(seconds)) for n, rows, seconds in saved
            ]
            for key, saved in found.items()
            if key.startswith(artifact.weights_sha256[:16])
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise RequestRejected(f"{directory / FILE} cannot be read: {error}") from None


def measure(directory: Path) -> Tables:
    """On this machine, with a server's default settings."""
    from specdec.config import DecoderConfig
    from specdec.decoder.decoder import load_decoder

    ERR.print("not measured yet: loading the model and measuring ...", style="dim")
    info = load_decoder(DecoderConfig(), directory).describe()
    return read_saved(directory) or {str(directory): [Cost(*cost) for cost in info.costs]}


def read_live(url: str) -> Tables:
    """The target's, then each draft model's. Raises `ServerUnavailable`."""
    from specdec.client.errors import ServerUnavailable
    from specdec.client.live import metrics_url, read_samples

    tables: Tables = {}
    for name, labels, value in read_samples(url):
        if name not in ("verify_cost_seconds", "draft_cost_seconds"):
            continue
        of = f"draft model of {labels['drafter']}" if "drafter" in labels else "target"
        cost = Cost(int(labels["sequences"]), int(labels["rows"]), value)
        tables.setdefault(of, []).append(cost)
    if not tables:
        raise ServerUnavailable(f"{metrics_url(url)} holds no costs yet: try again in a second")
    return {of: sorted(tables[of]) for of in sorted(tables, key=lambda of: of != "target")}


def show(of: str, table: list[Cost]) -> None:
    """Milliseconds; sequences in the batch down, rows of each across."""
    from rich.markup import escape
    from rich.table import Table

    cells = {(c.sequences, c.rows // c.sequences): c.seconds for c in table}
    across = sorted({each for _, each in cells})
    grid = Table(title=escape(of), title_justify="left", title_style="bold", caption_style="dim")
    grid.caption = "milliseconds of one pass; across: rows per sequence"
    grid.caption_justify = "left"
    grid.add_column("batch", justify="right")
    for each in across:
        grid.add_column(str(each), justify="right")
    for sequences in sorted({n for n, _ in cells}):
        row = [cells.get((sequences, each)) for each in across]
        grid.add_row(str(sequences), *("" if s is None else f"{1e3 * s:.1f}" for s in row))
    OUT.print(grid, soft_wrap=False)
