"""Plans are compiled here by the real TensorRT-RTX, which needs no card for that."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress

from specdec.artifact import GRAPH, Artifact
from specdec.errors import InvalidArtifact, InvalidRequest, UnsupportedModel
from specdec.export import tensorrt
from specdec.export.exporter import Exported, export
from specdec.export.sources import HuggingFaceSource
from specdec.export.tensorrt import CompileFailed, Compiler, Device, Shapes
from specdec.export.tensorrt_graph import TensorRTPrecision
from specdec.export.tensorrt_memory import Neighbour
from specdec.export.tensorrt_timing import TimingCache
from specdec.plan import FILE, PLAN, Plan
from support.tiny import write_tiny_llama

pytest.importorskip("tensorrt_rtx")

SHAPES = Shapes(max_sequences=4, max_sequence_length=448, max_rows=128)
ADA = Device("SM89")


def compiler(precision: str = "bf16", device: Device = ADA, **options: object) -> Compiler:
    return Compiler(
        "tensorrt-rtx",
        TensorRTPrecision(precision),
        shapes=SHAPES,
        device=device,
        **options,  # type: ignore[arg-type]
    )


def run(model: Path, output: Path, progress: Progress, made_by: Compiler) -> Exported:
    return export(HuggingFaceSource(model), output, progress=progress, compiler=made_by)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes that int4's blocks of 128 and 64 divide."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", hidden_size=128)


@pytest.mark.parametrize(
    ("precision", "capability"),
    [
        (precision, f"SM{number}")
        for precision, least in (
            ("bf16", 80),
            ("fp16", 75),
            ("int8", 75),
            ("int4", 80),
            ("fp8", 89),
        )
        for number in (75, 80, 86, 89, 120, 121)
        if number >= least
    ],
)
def test_every_documented_combination_compiles(
    model: Path, tmp_path: Path, progress: Progress, precision: str, capability: str
) -> None:
    made = run(model, tmp_path, progress, compiler(precision, Device(capability)))
    names = {path.name for path in made.directory.iterdir()}
    assert names == {
        *(PLAN, FILE, "specdec.json", "tokenizer.json"),
        *("tokenizer_config.json", "chat_template.jinja"),
    }
    plan = Plan.read(made.directory)
    assert (plan.runtime, plan.compute_capability) == ("tensorrt-rtx", capability)
    assert (plan.max_sequences, plan.max_rows, plan.cache_length) == (4, 128, 512)
    assert plan.dtype == ("float16" if precision == "fp16" or capability == "SM75" else "bfloat16")
    assert (
        plan.num_bytes
        == (made.directory / PLAN).stat().st_size
        == made.num_bytes
        - sum(p.stat().st_size for p in made.directory.iterdir() if p.name != PLAN)
    )
    artifact = Artifact.read(made.directory)
    assert (artifact.runtime, artifact.precision) == ("tensorrt-rtx", precision)
    assert artifact.weights_sha256.encode() in (made.directory / PLAN).read_bytes()  # its name
    plan.check(artifact, made.directory, num_slots=4)


def test_packed_weights_stay_packed(tmp_path: Path, progress: Progress) -> None:
    """Else a quantised plan would save nothing."""
    model = write_tiny_llama(tmp_path / "model", hidden_size=512, num_layers=4)
    sizes = {
        precision: run(model, tmp_path / precision, progress, compiler(precision)).num_bytes
        for precision in ("bf16", "int8", "int4")
    }
    num_weights = 4 * (4 * 512 * 512 * 3 // 4 + 3 * 512 * 1024)
    assert sizes["bf16"] - sizes["int8"] > 0.8 * num_weights
    assert sizes["int8"] - sizes["int4"] > 0.3 * num_weights


def test_a_plan_is_kept_until_anything_changes(
    model: Path, tmp_path: Path, progress: Progress
) -> None:
    assert not run(model, tmp_path, progress, compiler()).reused
    assert run(model, tmp_path, progress, compiler()).reused
    assert not run(model, tmp_path, progress, compiler(device=Device("SM120"))).reused
    assert not run(model, tmp_path, progress, compiler("fp16", Device("SM120"))).reused
    with (tmp_path / "1" / PLAN).open("ab") as file:
        file.write(b"?")
    assert not run(model, tmp_path, progress, compiler("fp16", Device("SM120"))).reused
    changed = compiler("fp16", Device("SM120"))
    changed.shapes = SHAPES._replace(max_rows=256)
    assert not run(model, tmp_path, progress, changed).reused


def test_a_graph_takes_the_place_of_a_plan_and_back(
    model: Path, tmp_path: Path, progress: Progress
) -> None:
    run(model, tmp_path, progress, compiler())
    export(HuggingFaceSource(model), tmp_path, progress=progress)
    assert (tmp_path / "1" / GRAPH).is_file()
    assert not (tmp_path / "1" / PLAN).exists()
    assert not (tmp_path / "1" / FILE).exists()
    run(model, tmp_path, progress, compiler())
    assert not (tmp_path / "1" / GRAPH).exists()


def test_progress_and_memory_are_shown(model: Path, tmp_path: Path, progress: Progress) -> None:
    said: list[str] = []
    run(model, tmp_path, progress, compiler(announce=said.append))
    assert len(said) == 1
    assert said[0].startswith("memory: weights 0.00, cache 0.00, workspace 0.0")
    (task,) = [t for t in progress.tasks if t.description == "compile for SM89"]
    assert task.finished
    assert not [t for t in progress.tasks if t.description.startswith(" ")]


class TimingConfig:
    """The part of a builder's config that holds the timing cache, which learns when it is used."""

    def __init__(self) -> None:
        self.used: list[bytes] = []

    def create_timing_cache(self, data: bytes) -> Any:
        return SimpleNamespace(data=data, serialize=lambda: data + b"+")

    def set_timing_cache(self, cache: Any, *, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.used.append(cache.data)
        return cache.data != b"of another version"


def test_the_timing_cache_goes_from_one_compilation_to_the_next(tmp_path: Path) -> None:
    path, config = tmp_path / "timing", TimingConfig()
    for content in (None, None, b"of another version"):
        if content is not None:
            path.write_bytes(content)
        cache = TimingCache(path)
        cache.load(config)
        cache.save()
    assert config.used == [b"", b"+", b"of another version", b""]
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"timing": b"+"}
    TimingCache(None).load(config)
    assert TimingCache(None).save() == ""
    nowhere = TimingCache(path / "timing")  # below a file
    nowhere.load(config)
    assert nowhere.save().endswith("cannot be written: File exists")


def test_a_timing_cache_for_what_measures_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^--timing-cache is for --runtime tensorrt:"):
        compiler(timing_cache=tmp_path / "timing")


def test_what_the_card_cannot_hold_is_refused_before_anything_is_written(
    model: Path, tmp_path: Path, progress: Progress
) -> None:
    small = Device("SM89", "toy card", 1.0)
    with pytest.raises(UnsupportedModel, match=r"does not fit toy card \(1 GiB\): weights"):
        run(model, tmp_path, progress, compiler(device=small))
    assert list(tmp_path.iterdir()) == []


def test_what_is_beside_it_counts_even_when_nothing_is_compiled(
    model: Path, tmp_path: Path, progress: Progress
) -> None:
    said: list[str] = []
    alone = Device("SM89", "toy card", 2.0)
    assert not run(model, tmp_path / "draft", progress, compiler(device=alone)).reused
    beside = [Neighbour.read(tmp_path / "draft")]
    assert beside[0].needed.weights > 0
    both = compiler(device=alone, beside=beside, announce=said.append)
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match=r"beside it draft 1\.0\d: 2\.\d\d GiB together"):
            run(model, tmp_path / "target", progress, both)
        run(model, tmp_path / "target", progress, compiler(device=alone))
    assert len(said) == 2
    assert run(model, tmp_path / "target", progress, compiler(beside=beside)).reused


@pytest.mark.parametrize(
    ("precision", "capability", "message"),
    [
        ("fp8", "SM86", "fp8 needs SM89 or newer: the card is SM86"),
        ("bf16", "SM75", "bf16 needs SM80 or newer"),
        ("int4", "SM75", "int4 needs SM80 or newer"),
        ("bf16", "SM90", "cannot compile for SM90: allowed are SM75, SM80"),
        ("bf16", "8.9", "expected the form SM89"),
    ],
)
def test_cards_that_do_not_go_together_with_a_request(
    precision: str, capability: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        compiler(precision, Device(capability))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (Shapes(max_sequences=0), "--max-sequences is 0: allowed are 1 to 256"),
        (Shapes(max_sequence_length=8), "--max-sequence-length is 8"),
        (Shapes(max_rows=64), "--max-rows is 64: allowed are 128 to 16384"),
    ],
)
def test_limits_that_are_out_of_range(shapes: Shapes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Compiler("tensorrt-rtx", TensorRTPrecision.bf16, shapes=shapes, device=ADA)


def test_tensorrt_compiles_for_the_present_card_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class DataCenter:
        __version__ = "11.1"

    monkeypatch.setattr(tensorrt, "import_tensorrt", lambda runtime: DataCenter)
    monkeypatch.setattr(tensorrt, "present_device", lambda: None)
    arguments = {"shapes": SHAPES, "device": ADA}
    with pytest.raises(InvalidRequest, match="the card it runs on, which is none, not SM89"):
        Compiler("tensorrt", TensorRTPrecision.bf16, **arguments)  # type: ignore[arg-type]
    monkeypatch.setattr(tensorrt, "present_device", lambda: Device("SM89", "L4", 22.0))
    made = Compiler("tensorrt", TensorRTPrecision.bf16, **arguments)  # type: ignore[arg-type]
    assert made.provenance["specdec.runtime"] == "tensorrt 11.1"


def test_tensorrt_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(InvalidArtifact, match="tensorrt is not installed: pip install tensorrt-"):
        Compiler("tensorrt", TensorRTPrecision.bf16, shapes=SHAPES, device=ADA)


def test_a_graph_tensorrt_cannot_read_brings_its_reason(
    model: Path, tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by = compiler()
    monkeypatch.setattr(made_by.form, "cache_length", None)
    with pytest.raises(CompileFailed, match=r"tensorrt-rtx cannot (read|compile) the graph: .{10}"):
        run(model, tmp_path, progress, made_by)
    assert not (tmp_path / "1").exists()


def test_float32_attention_cannot_be_compiled(
    model: Path, tmp_path: Path, progress: Progress
) -> None:
    """Why there is no fp32 here; should this pass one day, offer it."""
    made_by = compiler()
    made_by.form.dtype = np.dtype(np.float32)
    with pytest.raises(CompileFailed, match="cannot compile"):
        run(model, tmp_path, progress, made_by)


def test_ctrl_c_stops_the_compilation(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", hidden_size=256, num_layers=24)
    command = ["export", "target", "--model", str(model), "--output", str(tmp_path / "out")]
    command += ["--runtime", "tensorrt-rtx", "--card", "l4", "--max-rows", "128"]
    process = subprocess.Popen(
        [sys.executable, "-m", "specdec.client.cli", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob(".export-*/model.onnx")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_the_summary_of_the_command_line(model: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from specdec.export.cli import app

    command = ["target", "--model", str(model), "--output", str(tmp_path / "target"), "--json"]
    command += ["--runtime", "tensorrt-rtx", "--capability", "SM89", "--memory-gib", "4"]
    result = CliRunner().invoke(app, [*command, "--precision", "fp16", "--max-sequences", "2"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["precision"], summary["check"]) == ("fp16", None)
    assert Plan.read(tmp_path / "target/1").max_sequences == 2
    options = ["--precision", "fp16", "--max-sequences", "2", "--memory-gib", "2"]
    options += ["--beside", str(tmp_path / "target")]
    result = CliRunner().invoke(app, [*command, *options])
    assert result.exit_code != 0
    assert "beside it target 1.0" in result.output
