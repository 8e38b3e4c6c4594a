"""The estimate against what is really written, and against published figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from specdec.errors import InvalidRequest, UnsupportedModel
from specdec.export.architectures.llama import Architecture
from specdec.export.exporter import export
from specdec.export.sources import HuggingFaceSource
from specdec.export.tensorrt import Compiler, Device, Shapes
from specdec.export.tensorrt_graph import TensorRTPrecision
from specdec.export.tensorrt_memory import (
    CARDS,
    GIB,
    Estimate,
    Neighbour,
    estimate,
    find_card,
    refuse_too_large,
    together,
)
from specdec.export.tensorrt_options import Options, find_device, find_precision
from support.tiny import write_tiny_llama

LLAMA_8B = SimpleNamespace(
    num_layers=32,
    num_heads=32,
    num_key_value_heads=8,
    head_size=128,
    hidden_size=4096,
    vocab_size=128256,
    feature_size=4 * 4096,
    config=SimpleNamespace(intermediate_size=14336),
)
SIZES = {"max_sequences": 16, "max_rows": 512, "cache_length": 2112}


def test_llama_8b_has_its_eight_billion_weights_and_128_kib_a_token() -> None:
    needed = estimate(LLAMA_8B, TensorRTPrecision.bf16, **SIZES)
    assert needed.weights / 2 == pytest.approx(8.03e9, rel=0.002)
    assert needed.cache == 16 * 2112 * 128 * 1024
    assert needed.total > sum(needed)


# layers, heads, kv heads, head size, hidden, intermediate, vocabulary: from their config.json
PUBLISHED = {
    "Llama 3.2 1B": (16, 32, 8, 64, 2048, 8192, 128256),
    "Llama 3.2 3B": (28, 24, 8, 128, 3072, 8192, 128256),
    "Llama 3.1 8B": (32, 32, 8, 128, 4096, 14336, 128256),
    "Llama 3.1 70B": (80, 64, 8, 128, 8192, 28672, 128256),
    "Qwen2.5 0.5B": (24, 14, 2, 64, 896, 4864, 151936),
    "Qwen2.5 7B": (28, 28, 4, 128, 3584, 18944, 152064),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_documented_figures(name: str) -> None:
    *sizes, wide, vocab = PUBLISHED[name]
    fields = ("num_layers", "num_heads", "num_key_value_heads", "head_size", "hidden_size")
    model = SimpleNamespace(**dict(zip(fields, sizes, strict=True)), vocab_size=vocab)
    model.config = SimpleNamespace(intermediate_size=wide)
    model.feature_size = 4 * model.hidden_size
    found = [
        f"{estimate(model, TensorRTPrecision(p), **SIZES).total / 2**30:.1f}"
        for p in ("bf16", "int8", "int4")
    ]
    document = (Path(__file__).resolve().parents[2] / "docs/gpu.md").read_text()
    assert f"| {name} | {' | '.join(found)} |" in document


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_more_layers_make_the_plan_as_much_larger_as_the_estimate(
    tmp_path: Path, progress: Progress, precision: str
) -> None:
    """The difference of two plans, which share some megabytes of code and tables; every layer
    also has up to 1 MB of code of its own."""
    pytest.importorskip("tensorrt_rtx")
    compiler = Compiler(
        "tensorrt-rtx",
        TensorRTPrecision(precision),
        shapes=Shapes(2, 448, 128),
        device=Device("SM89"),
    )
    sizes, estimates = [], []
    for num_layers in (1, 5):
        source = HuggingFaceSource(
            write_tiny_llama(tmp_path / f"{num_layers}", hidden_size=512, num_layers=num_layers)
        )
        made = export(source, tmp_path / f"out-{num_layers}", progress=progress, compiler=compiler)
        sizes.append((made.directory / "model.plan").stat().st_size)
        estimates.append(compiler.accept(Architecture(source.config)).weights)
    more = estimates[1] - estimates[0]
    assert 0.99 * more < sizes[1] - sizes[0] < 1.02 * more + 4e6


def test_what_is_too_large_says_what_to_change() -> None:
    needed = estimate(LLAMA_8B, TensorRTPrecision.bf16, **SIZES)
    refuse_too_large(needed, card="rtx-4090", memory_gib=24)
    with pytest.raises(UnsupportedModel, match=r"l4.* \(15 GiB\): weights 14\.96, cache 4\.12"):
        refuse_too_large(needed, card="l4", memory_gib=15)
    smaller = estimate(LLAMA_8B, TensorRTPrecision.int4, **SIZES)
    refuse_too_large(smaller, card="l4", memory_gib=15)


def test_two_models_on_one_card_are_added() -> None:
    target = estimate(LLAMA_8B, TensorRTPrecision.bf16, **SIZES)
    draft = Neighbour("draft", Estimate(2 * GIB, GIB, GIB // 2))
    assert together(target, [draft]) == f"{target}; beside it draft 4.50: 25.35 GiB together"
    assert together(target, []) == str(target)
    refuse_too_large(target, card="rtx-4090", memory_gib=24)
    refuse_too_large(target, card="rtx-5090", memory_gib=32, beside=[draft])
    with pytest.raises(
        UnsupportedModel, match=r"4090 .*beside it draft 4\.50: 25\.35 GiB together"
    ):
        refuse_too_large(target, card="rtx-4090", memory_gib=24, beside=[draft])


def test_cards_are_of_capabilities_that_exist() -> None:
    for card in CARDS.values():
        assert card.capability in (
            "SM75",
            "SM80",
            "SM86",
            "SM89",
            "SM90",
            "SM100",
            "SM120",
            "SM121",
        )
        assert 8 < card.memory_gib < 300
    with pytest.raises(InvalidRequest, match="'voodoo' is not known: known are t4, a100-40gb"):
        find_card("voodoo")


def test_the_card_is_named_or_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from specdec.export import tensorrt_options

    assert find_device(Options(card="l4")) == Device("SM89", "l4", 23)
    assert find_device(Options(card="l4", memory_gib=10)) == Device("SM89", "l4", 10)
    assert find_device(Options(capability="SM120")) == Device("SM120")
    monkeypatch.setattr(tensorrt_options, "present_device", lambda: Device("SM90", "H100", 79.0))
    assert find_device(Options()).name == "H100"
    monkeypatch.setattr(tensorrt_options, "present_device", lambda: None)
    with pytest.raises(InvalidRequest, match="no NVIDIA card: name the one to compile for"):
        find_device(Options())


def test_precisions() -> None:
    assert find_precision(None) is TensorRTPrecision.bf16
    with pytest.raises(InvalidRequest, match="fp32: TensorRT allows bf16, fp16, int8, int4, fp8"):
        find_precision("fp32")
