"""`specdec serve`: start the embedded server, say when it is ready, end it on Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec import __version__
from specdec.errors import InvalidConfig

if TYPE_CHECKING:
    from specdec.artifact import Artifact
    from specdec.launcher.launch import Launched
    from specdec.launcher.ports import Ports
    from specdec.launcher.repository import Models
    from specdec.launcher.stop_signal import StopSignal

Settings = dict[str, dict[str, str]]  # model -> parameter -> value


def serve(
    *,
    model_repository: Annotated[
        Path, typer.Option(help="Where the models' configurations are.")
    ] = Path("model_repository"),
    target: Annotated[
        Path | None, typer.Option(help="Exported target.", show_default="in the repository")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(help="Exported draft.", show_default="in the repository, if any")
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option(help="Exported trained head.", show_default="in the repository, if it fits"),
    ] = None,
    no_head: Annotated[bool, typer.Option("--no-head", help="Serve no trained head.")] = False,
    drafter: Annotated[
        str | None, typer.Option(help="The default drafter; a request may choose another.")
    ] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option(min=0, help="The default draft length; 0: no speculation.")
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option(min=1, help="How many sequences run at once.")
    ] = None,
    target_inside: Annotated[
        bool,
        typer.Option(
            "--target-inside/--target-apart",
            help="Run the target inside `speculative`, which saves each step its way through "
            "Triton; or as a model of its own.",
        ),
    ] = True,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="MODEL.NAME=VALUE", help="Any other config parameter."),
    ] = None,
    http_port: Annotated[int, typer.Option(envvar="HTTP_PORT")] = 8000,
    grpc_port: Annotated[int, typer.Option(envvar="GRPC_PORT")] = 8001,
    metrics_port: Annotated[int, typer.Option(envvar="METRICS_PORT")] = 8002,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where temporary files go.", show_default="system's")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="More in the server's log.")] = False,
) -> None:
    """Serve a target model, with drafts, on 127.0.0.1."""
    from specdec.launcher.ports import Ports
    from specdec.launcher.repository import Models
    from specdec.launcher.stop_signal import StopSignal

    parameters = parse_settings(settings or [])
    speculative = parameters.setdefault("speculative", {})
    decoders: dict[str, str] = {}
    if drafter is not None:
        speculative["drafter"] = drafter
    if num_draft_tokens is not None:
        speculative["num_draft_tokens"] = str(num_draft_tokens)
    if max_sequences is not None:
        speculative["max_running"] = decoders["max_sequences"] = str(max_sequences)
    speculative.setdefault("target_in_process", str(target_inside).lower())
    models = Models(model_repository, target, draft, head, parameters, decoders, no_head)
    ports = Ports(http_port, grpc_port, metrics_port)
    with StopSignal() as stop:
        _serve(models, ports, run_dir, verbose, stop)
    if stop.number == signal.SIGINT:
        raise typer.Exit(128 + signal.SIGINT)


def _serve(
    models: Models, ports: Ports, run_dir: Path | None, verbose: bool, stop: StopSignal
) -> None:
    from specdec.client.console import ERR
    from specdec.launcher.launch import launch
    from specdec.launcher.server import Stopped

    begin = time.monotonic()
    try:
        with launch(models, ports=ports, run_dir=run_dir, verbose=verbose, stop=stop) as launched:
            _wait_ready(launched)
            _print_ready(launched, time.monotonic() - begin)
            launched.server.wait()
            ERR.print("[dim]stopping (press Ctrl-C again to kill)[/]")
    except Stopped:
        return


def parse_settings(settings: list[str]) -> Settings:
    """`speculative.max_waiting=64` and the like, by model.

    Raises:
        InvalidConfig: one is not of that form.
    """
    parsed: Settings = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        model, dot, key = name.partition(".")
        if not (model and dot and key and equals):
            raise InvalidConfig(f"--set {setting!r}: expected MODEL.NAME=VALUE")
        parsed.setdefault(model, {})[key] = value
    return parsed


def _wait_ready(launched: Launched) -> None:
    from rich.markup import escape

    from specdec.client.console import ERR

    models = launched.models
    if models.head_left_out:
        ERR.print(f"[yellow]note:[/] {escape(models.head_left_out)}", soft_wrap=True)
    names = [*models.apart, "speculative"]
    if ERR.is_terminal:
        with ERR.status("starting tritonserver") as status:
            launched.server.wait_ready(
                on_progress=lambda loaded: status.update(
                    "loading "
                    + "  ".join(
                        f"[green]{n} ✓[/]" if n in loaded else f"[dim]{n}[/]" for n in names
                    )
                )
            )
    else:
        ERR.print(f"loading {', '.join(names)} ...")
        launched.server.wait_ready()


def _print_ready(launched: Launched, seconds: float) -> None:
    from rich.markup import escape

    from specdec.client.console import OUT
    from specdec.launcher.ports import DEFAULT_PORTS

    server, models = launched
    ports = server.ports
    config = models.config
    address = f"127.0.0.1:{ports.http}/v2/models/speculative/generate"
    body = '{"text_input": "The sky is", "max_tokens": 32}'
    rows = {
        "target": _describe(models.target),
        "draft": _describe(models.draft) if models.draft else "",
        "head": _describe(models.head) if models.head else "",
        "drafter": f"{config.drafter}, {config.num_draft_tokens} draft tokens",
        "http": f"http://127.0.0.1:{ports.http}",
        "grpc": f"127.0.0.1:{ports.grpc}",
        "metrics": f"http://127.0.0.1:{ports.metrics}/metrics",
        "log": str(server.log),
        "curl": f"curl -s {address} -d '{body}'",
    }
    OUT.print(f"[bold]specdec {__version__}[/]")
    for name, text in rows.items():
        if text:
            OUT.print(f"[dim]{name:<9}[/]{escape(text)}")
    url = "" if ports.grpc == DEFAULT_PORTS.grpc else f" --url 127.0.0.1:{ports.grpc}"
    OUT.print(
        f"[bold green]ready[/] in {seconds:.1f} s, Ctrl-C stops it. Try: "
        f'[bold cyan]{_command()} generate{url} "Why is the sky blue?"[/]'
    )


def _describe(artifact: Artifact) -> str:
    return f"{artifact.source} · {artifact.architecture} · {artifact.precision}"


def _command() -> str:
    """How this very command is called from here: it may stand in a virtual environment."""
    script, here = Path(sys.argv[0]).absolute(), Path.cwd()
    found = shutil.which("specdec")
    if found and Path(found).absolute() == script:
        return "specdec"
    return str(script.relative_to(here) if script.is_relative_to(here) else script)
