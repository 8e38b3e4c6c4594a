"""`specdec`: one command per file; anything heavy is imported when its command runs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from specdec import __version__
from specdec.client.bench.command import bench
from specdec.client.costs_command import costs
from specdec.client.explain_command import explain
from specdec.client.generate_command import generate
from specdec.errors import SpecdecError

FAULT_OF_CALLER = 2

app = typer.Typer(
    help="Exact speculative decoding on NVIDIA Triton.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"specdec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    pass


def _mount() -> None:
    """The client may be installed alone: then there is no `export` and no `serve`."""
    if find_spec("specdec.export") and find_spec("specdec.export.cli"):
        from specdec.export.cli import app as export

        app.add_typer(export, name="export")
    if find_spec("specdec.export") and find_spec("specdec.export.training"):
        from specdec.export.training.command import train
        from specdec.export.training.evaluate_command import evaluate

        app.command()(train)
        app.command()(evaluate)
    if find_spec("specdec.launcher"):
        from specdec.client.serve_command import serve

        app.command()(serve)
        app.command()(costs)
        app.command()(explain)
    app.command()(generate)
    app.command()(bench)


_mount()


def main() -> None:
    """Errors are one line on stderr: exit code 2 for the caller's fault, 1 for the server's.

    Ctrl-C ends with 130; click sees to that, and to a broken pipe.
    """
    try:
        app()
    except SpecdecError as error:
        report(str(error))
        sys.exit(getattr(error, "exit_code", FAULT_OF_CALLER))


def report(message: str) -> None:
    from rich.markup import escape

    from specdec.client.console import ERR

    ERR.print(f"[bold red]error:[/] {escape(message)}")


if __name__ == "__main__":
    main()
