"""One export: source -> graph, tokenizer, description, in a version directory of Triton's.

Everything is made in a hidden sibling folder and moved when it is complete; specdec.json, which
makes a directory an artifact, is removed first and moved last.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.progress import Progress

from specdec import artifact as description
from specdec.artifact import GRAPH, Artifact
from specdec.errors import InvalidArtifact, InvalidRequest
from specdec.export import architectures, tokenizer
from specdec.export.check import Comparison
from specdec.export.config_pbtxt import decoder_config
from specdec.export.features import AUTO, Features
from specdec.export.forms import Form, target_form
from specdec.export.graph import VERSION, GraphWriter
from specdec.export.quantize import Precision
from specdec.export.sources import Source
from specdec.plan import FILE as PLAN_FILE
from specdec.plan import PLAN

Verify = Callable[[Path], Comparison]

VERSION_DIRECTORY = "1"
_PARTIAL = ".export-"
# All names an export may write, the one that completes it last.
_FILES = (GRAPH, f"{GRAPH}.data", PLAN, PLAN_FILE, *tokenizer.FILES, description.FILE)


class Compiler(Protocol):
    """Turns the graph into what another runtime loads."""

    runtime: str
    form: Form  # how it wants the graph
    provenance: dict[str, str]  # what makes its result another one, beside the source

    def accept(self, architecture: Any) -> object:
        """Look at the model before any work; raises `UnsupportedModel`."""
        ...

    def compile(
        self,
        directory: Path,
        *,
        weights_sha256: str,
        provenance: dict[str, str],
        progress: Progress,
    ) -> None:
        """Replace the graph in `directory`; `provenance` is what `provenance_of` returns later."""
        ...

    def reuse(self, directory: Path) -> None:
        """Raises `UnsupportedModel`: the result in `directory` is right, but cannot be used."""
        ...

    def provenance_of(self, directory: Path) -> dict[str, str] | None:
        """Of the result in `directory`; None where there is no whole one."""
        ...


class Exported(NamedTuple):
    artifact: Artifact
    directory: Path  # the version directory
    reused: bool
    comparison: Comparison | None  # what `verify` returned

    @property
    def num_bytes(self) -> int:
        return sum(p.stat().st_size for n in _FILES if (p := self.directory / n).is_file())


def export(
    source: Source,
    output: Path,
    *,
    precision: Precision = Precision.fp32,
    progress: Progress,
    force: bool = False,
    verify: Verify | None = None,
    compiler: Compiler | None = None,
    features: Features = AUTO,
) -> Exported:
    """Export into `output`/1, and write `output`/config.pbtxt if there is none.

    Without a compiler the graph is ONNX Runtime's, at `precision`; a compiler brings its own.

    An artifact there that was made from the same source, at the same precision, with the same
    `features`, by the same version of the exporter is kept unless `force`. `verify` sees a new
    artifact before it takes its place: when it raises, what was there before stays.

    Raises:
        UnsupportedModel, InvalidArtifact: about the source.
        InvalidRequest: `output` cannot be written, or the model has no such features.
    """
    directory = output / VERSION_DIRECTORY
    form = target_form(precision) if compiler is None else compiler.form
    provenance = {
        "specdec.source": source.identity,
        "specdec.precision": form.precision,
        "specdec.features": str(features),
        "specdec.exporter": str(VERSION),
        **(compiler.provenance if compiler else {}),
    }
    found = None
    if not force and (directory / tokenizer.TOKENIZER).is_file():
        of = compiler.provenance_of if compiler else graph_provenance
        found = up_to_date(directory, provenance, of)
    if found is not None:
        if compiler:
            compiler.reuse(directory)
        comparison = verify(directory) if verify else None
        write_config(output)
        return Exported(found, directory, True, comparison)
    with partial_directory(output) as partial:
        made = _make(
            source,
            partial,
            form=form,
            features=features,
            compiler=compiler,
            provenance=provenance,
            progress=progress,
        )
        comparison = verify(partial) if verify else None
        publish(partial, directory)
    write_config(output)
    return Exported(made, directory, False, comparison)


def _make(
    source: Source,
    directory: Path,
    *,
    form: Form,
    features: Features,
    compiler: Compiler | None,
    provenance: dict[str, str],
    progress: Progress,
) -> Artifact:
    source.prepare()
    config_task = progress.add_task("read the config", total=None)
    config = source.config
    architecture = architectures.find(config.model_type)(config, features)
    if compiler:
        compiler.accept(architecture)
    progress.update(config_task, total=1, completed=1)
    tokenizer_task = progress.add_task("tokenizer", total=None)
    vocabulary = tokenizer.write(
        source.tokenizer,
        directory,
        vocab_size=architecture.vocab_size,
        end_ids=[source.generation_end_ids, getattr(config, "eos_token_id", None)],
    )
    progress.update(tokenizer_task, total=1, completed=1)
    sha256 = _write_graph(
        source, directory, architecture, form=form, metadata=provenance, progress=progress
    )
    if compiler:
        compiler.compile(directory, weights_sha256=sha256, provenance=provenance, progress=progress)
    made = Artifact(
        architecture=config.model_type,
        runtime=compiler.runtime if compiler else "onnxruntime",
        precision=form.precision,
        num_layers=architecture.num_layers,
        num_key_value_heads=architecture.num_key_value_heads,
        head_size=architecture.head_size,
        hidden_size=architecture.hidden_size,
        feature_layers=architecture.feature_layers,
        vocab_size=architecture.vocab_size,
        num_tokens=vocabulary.num_tokens,
        max_position_embeddings=architecture.max_position_embeddings,
        end_ids=vocabulary.end_ids,
        vocabulary_sha256=vocabulary.sha256,
        weights_sha256=sha256,
        source=source.label,
    )
    made.write(directory)
    return made


def _write_graph(
    source: Source,
    directory: Path,
    architecture: Any,
    *,
    form: Form,
    metadata: dict[str, str],
    progress: Progress,
) -> str:
    """Returns the SHA-256 of the weights file."""
    load_task = progress.add_task("load the weights", total=None)
    weights = source.weights
    progress.update(load_task, total=1, completed=1)
    verb = "quantise" if form.precision.startswith("int") else "write"
    task = progress.add_task(f"{verb} {form.precision}", total=architecture.num_linears)
    graph = GraphWriter(directory, form=form, on_weight=lambda name: progress.advance(task))
    try:
        architecture.write(graph, weights)
        return graph.finish(vocab_size=architecture.vocab_size, metadata=metadata)
    finally:
        graph.close()


def graph_provenance(directory: Path) -> dict[str, str] | None:
    """What the graph in `directory` was made from, None where there is no whole one."""
    graph = directory / GRAPH
    if not (graph.is_file() and (directory / f"{GRAPH}.data").is_file()):
        return None
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(graph, load_external_data=False)
    except DecodeError:
        return None
    return {p.key: p.value for p in model.metadata_props}


def up_to_date(
    directory: Path,
    provenance: dict[str, str],
    provenance_of: Callable[[Path], dict[str, str] | None] = graph_provenance,
) -> Artifact | None:
    """The artifact in `directory`, if it is complete and made from exactly this."""
    try:
        found = Artifact.read(directory)
    except InvalidArtifact:
        return None
    made_from = provenance_of(directory)
    same = made_from is not None and made_from.items() >= provenance.items()
    return found if same else None


@contextmanager
def partial_directory(output: Path) -> Iterator[Path]:
    """A folder for one export beside its destination, gone afterwards whatever happens."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(output)
        partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{os.getpid()}-", dir=output))
    except OSError as error:
        raise InvalidRequest(f"--output {output} cannot be written: {error.strerror}") from None
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_abandoned(output: Path) -> None:
    """Remove what killed exports left: folders whose process is gone."""
    for path in output.glob(f"{_PARTIAL}*"):
        process = path.name.removeprefix(_PARTIAL).partition("-")[0]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (PermissionError, ValueError):
            pass  # alive and not ours, or not a folder of an export


def publish(partial: Path, directory: Path) -> None:
    """Let what `partial` holds take the place of what is in `directory`.

    Files move one by one: the destination may be a mount or hold files of others.
    """
    directory.mkdir(exist_ok=True)
    for name in reversed(_FILES):  # the description goes first: from here on it is no artifact
        (directory / name).unlink(missing_ok=True)
    for name in _FILES:
        if (partial / name).is_file():
            os.replace(partial / name, directory / name)


def write_config(output: Path) -> None:
    """Write config.pbtxt where there is none."""
    path = output / "config.pbtxt"
    if not path.exists():
        path.write_text(decoder_config(output.resolve().name))
