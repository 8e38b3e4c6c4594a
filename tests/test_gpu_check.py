"""The script of `make test-gpu`, on the fake card: it passes what is right and sees what is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress

from specdec.decoder import device_sampling
from specdec.decoder.device_sampling import likeliest
from specdec.decoder.runtimes import tensorrt
from specdec.export.sources import HuggingFaceSource
from specdec.export.tensorrt import Device
from support import gpu_check, gpu_checks, gpu_report
from support.fake_tensorrt import FakeCompiler, FakeCuda, FakeTensorRT
from support.tiny import write_tiny_llama

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture
def cuda(monkeypatch):
    trt = FakeTensorRT()
    fake = FakeCuda(trt)
    monkeypatch.setattr(tensorrt, "import_tensorrt", lambda runtime: trt)
    monkeypatch.setattr(tensorrt, "Cuda", lambda device: fake)
    monkeypatch.setattr(gpu_check, "NUM_TOKENS", 10)
    monkeypatch.setattr(gpu_check, "DRAFT_LENGTHS", (1, 4))
    monkeypatch.setattr(gpu_check, "STEPS", ((1, 1), (4, 5)))
    return fake


@pytest.fixture
def row(cuda, tmp_path):
    source = HuggingFaceSource(write_tiny_llama(tmp_path / "model"))

    def run():
        with Progress(disable=True) as progress:
            compiler = FakeCompiler(gpu_check.SHAPES)
            return gpu_check.check("tiny", source, compiler, tmp_path / "made", progress)

    return run


def test_a_right_plan_passes(row, cuda):
    found = row()
    assert found.failures == []
    assert found.divergence < 1e-9
    assert (found.exactness, found.num_other_texts, found.same_replay) == ("bitwise", 0, True)
    assert found.num_texts == 8
    assert cuda.num_replays > 20
    assert found.tree.same_trunk
    assert found.tree.divergence < 1e-9
    assert (found.same_candidates, found.num_wrong_draws) == (True, 0)
    assert found.feature_error < 1e-5
    console = Console(width=240, record=True)
    console.print(gpu_report.table([found]))
    assert "bitwise" in console.export_text()


def test_a_graph_that_replays_something_else_is_seen(row, cuda, monkeypatch):
    capture = cuda.capture

    def wrong(run):
        replay = capture(run)
        return lambda: (replay(), runtimes[-1]._logits.add_(0.5))

    runtimes = []
    plain = tensorrt.TensorRTRuntime.__init__

    def note(self, *arguments, **options):
        plain(self, *arguments, **options)
        runtimes.append(self)

    monkeypatch.setattr(tensorrt.TensorRTRuntime, "__init__", note)
    monkeypatch.setattr(cuda, "capture", wrong)
    assert "a CUDA graph gives other bits" in row().failures


def test_what_is_wrong_beside_texts_is_seen(row, monkeypatch):
    features = tensorrt.TensorRTRuntime.forward_with_features
    keys = device_sampling._keys
    for owner, name, wrong in (
        (gpu_checks, "path", lambda parents, index: [index]),  # every token follows the root
        (gpu_checks, "trunk", lambda parents: [0, 1, 5]),
        (device_sampling, "_keys", lambda *a: keys(*a) + len(a[2])),  # looks at its neighbours
        (device_sampling, "likeliest", lambda *a: [ids[::-1] for ids in likeliest(*a)]),
        (
            tensorrt.TensorRTRuntime,
            "forward_with_features",
            lambda *a: (features(*a)[0], np.roll(features(*a)[1], 1, axis=0)),
        ),
    ):
        monkeypatch.setattr(owner, name, wrong)
    found = [message.split(" KL")[0] for message in row().failures]
    assert found[:4] == [
        "text depends on drafts or batch",
        "a trunk is not a chain",
        "a branch is far from its path:",
        "candidates are not the host's",
    ]
    assert found[4].endswith(" draws are not the host's")
    assert found[5].startswith("features are ")


def test_draws_from_a_large_vocabulary(cuda, monkeypatch):
    assert gpu_checks.check_large_draws(cuda, num_rows=3) == 0
    monkeypatch.setattr(device_sampling, "_shifted", lambda words, count: words >> count)
    assert gpu_checks.check_large_draws(cuda, num_rows=1) > 0
    console = Console(width=240, record=True)
    console.print(gpu_checks.draw_table(dict.fromkeys(gpu_checks.SAMPLINGS, 0.125), 0))
    assert "all the host's" in console.export_text()


def test_wrong_logits_are_seen(row, monkeypatch):
    plain = gpu_check.logits

    def wrong(decoder, texts):
        found = plain(decoder, texts)
        is_plan = isinstance(decoder._runtime, tensorrt.TensorRTRuntime)
        return np.roll(found, 1, axis=0) if is_plan else found

    monkeypatch.setattr(gpu_check, "logits", wrong)
    assert any(x.startswith("KL ") for x in row().failures)


class Broken(FakeCompiler):
    """Cannot compile, as a parser that does not know a precision."""

    def compile(self, *arguments, **options) -> None:
        raise RuntimeError("no kernel for it")


def test_what_cannot_be_run_is_a_row_and_ends_no_other(cuda, tmp_path, monkeypatch, capsys):
    compilers = [Broken(gpu_check.SHAPES), FakeCompiler(gpu_check.SHAPES)]
    source = HuggingFaceSource(write_tiny_llama(tmp_path / "real", seed=1))
    for name, stand_in in (
        ("present_device", lambda: Device("SM89", "a card", 24.0)),
        ("compilers", lambda device: compilers),
        ("resolve", lambda model, progress: source),
        ("Cuda", lambda: cuda),
    ):
        monkeypatch.setattr(gpu_check, name, stand_in)
    monkeypatch.setattr(gpu_checks, "check_large_draws", lambda cuda: 0)
    monkeypatch.setattr(gpu_checks, "time_draws", lambda cuda: {"greedy": 0.1})
    assert gpu_check.main(["--json", str(tmp_path / "found.json")]) == 1
    shown = capsys.readouterr().out
    assert shown.count("RuntimeError: no kernel for it") >= 2
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["device"] == "a card, SM89"
    rows = [(row["model"], bool(row["failures"])) for row in found["rows"]]
    models = ("tiny", "SmolLM2-135M")
    assert rows == [(model, broken) for model in models for broken in (True, False)]
    assert found["rows"][1]["milliseconds"].keys() == {"1x1", "4x5"}
    monkeypatch.setattr(gpu_check, "compilers", lambda device: compilers[1:])
    assert gpu_check.main([]) == 0
    monkeypatch.setattr(gpu_check, "compilers", lambda device: [])
    assert gpu_check.main([]) == 1
    monkeypatch.setattr(gpu_check, "present_device", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert gpu_check.main([]) == 1  # a card that torch cannot see is no pass


def test_make_test_gpu_without_a_card_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    makefile = (PROJECT / "Makefile").read_text()
    (recipe,) = [x for x in makefile.splitlines() if "support.gpu_check" in x]
    assert recipe.strip().endswith(
        "PYTHONPATH=tests exec $(BIN)/python -m support.gpu_check $(GPU_ARGS)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "support.gpu_check"],
        cwd=PROJECT,
        env={"PYTHONPATH": "tests", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "test-gpu: this machine has no NVIDIA card, nothing was run\n"
