"""Everything between a model repository and a running server, as one context manager."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from specdec.launcher.embedded import EmbeddedServer
from specdec.launcher.ports import DEFAULT_PORTS, Ports
from specdec.launcher.repository import Composed, Models, compose
from specdec.launcher.run_directory import RunDirectory
from specdec.launcher.server import TritonServer
from specdec.launcher.stop_signal import StopSignal


class Launched(NamedTuple):
    server: TritonServer
    models: Composed


@contextmanager
def launch(
    models: Models,
    *,
    ports: Ports = DEFAULT_PORTS,
    run_dir: Path | None = None,
    verbose: bool = False,
    stop: StopSignal | None = None,
) -> Iterator[Launched]:
    """Start a server on composed models; `server.wait_ready()` is left to the caller.

    On exit the server has ended, and its run directory and shared memory are gone; after an
    error the log is kept.

    Raises:
        InvalidConfig, InvalidArtifact: before anything is started.
    """
    ports.check()
    embedded = EmbeddedServer.locate()
    with RunDirectory(run_dir) as run:
        composed = compose(models, run.models)
        embedded.write_backends(run.backends)
        with TritonServer(
            embedded,
            models=run.models,
            backends=run.backends,
            log=run.log,
            ports=ports,
            verbose=verbose,
            stop=stop,
        ) as server:
            yield Launched(server, composed)
