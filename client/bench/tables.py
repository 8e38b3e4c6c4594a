"""What all tables of a benchmark have in common: their look, and numbers that may be missing."""

from __future__ import annotations

import math

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 118
_STYLES = {True: "bold green", False: "bold red"}


def new_table(title: str, labels: list[str], *numbers: list[str]) -> Table:
    """Columns of text, then columns of numbers."""
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )
    for name in labels:
        table.add_column(name, no_wrap=True, vertical="bottom")
    for name in (n for names in numbers for n in names):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def captioned(table: Table, *lines: str | Text) -> Group:
    """The table over small print."""
    texts = (Text(line, style="dim") if isinstance(line, str) else line for line in lines)
    return Group(table, *texts)


def number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def ms(seconds: float, digits: int = 1) -> str:
    return number(1000 * seconds, digits)


def gain_text(value: float, digits: int = 2) -> Text:
    """A ratio over a baseline: green from 1 on."""
    return Text(number(value, digits), style="" if math.isnan(value) else judged(value >= 1))


def judged(is_good: bool) -> str:
    """The style of something that is either well or not."""
    return _STYLES[is_good]


BASELINE: RenderableType = Text("1", style="dim")
