"""`--check` passes a faithful export and fails every broken one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdec.export import runner
from specdec.export.check import (
    LIMITS,
    PROMPTS,
    CheckFailed,
    check,
    compare,
    encode,
    exported_logits,
)
from specdec.export.quantize import Precision
from specdec.export.runner import GraphRunner
from specdec.export.sources import load_reference
from support.tiny import export_tiny, write_tiny_llama


def test_a_faithful_export_passes(tiny: Path) -> None:
    result = check(tiny / "artifact/1", load_reference(str(tiny / "model")), Precision.fp32)
    assert result.max_difference <= LIMITS[Precision.fp32].max_difference
    assert result.agreement == 1.0
    assert result.num_rows > 100


def test_another_model_s_weights_fail(tiny: Path, tmp_path: Path) -> None:
    other = load_reference(str(write_tiny_llama(tmp_path, seed=1)))
    for precision in Precision:
        with pytest.raises(CheckFailed, match="max logit difference"):
            check(tiny / "artifact/1", other, precision)


def test_int8_passes_and_is_not_mistaken_for_fp32(tmp_path: Path) -> None:
    artifact = export_tiny(tmp_path, "int8")
    reference = load_reference(str(tmp_path / "model"))
    result = check(artifact, reference, Precision.int8)
    assert 0 < result.mean_divergence < 0.05
    with pytest.raises(CheckFailed, match=r"allowed are 0\.001"):
        check(artifact, reference, Precision.fp32)


def test_a_graph_that_loses_positions_fails(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = runner.flat_inputs

    def shifted(*args: object, **kwargs: object) -> dict[str, np.ndarray]:
        inputs = plain(*args, **kwargs)  # type: ignore[arg-type]
        later = inputs["write_index"] > 0
        inputs["write_index"] = inputs["write_index"] + later  # one place too far after a rewind
        return inputs

    reference = load_reference(str(tiny / "model"))
    monkeypatch.setattr(runner, "flat_inputs", shifted)
    with pytest.raises(CheckFailed):
        check(tiny / "artifact/1", reference, Precision.fp32)


def test_the_check_goes_through_chunks_and_a_rewind(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[int], list[int]]] = []
    plain = GraphRunner.extend

    def recorded(self: GraphRunner, token_ids: list[list[int]], starts: list[int]) -> object:
        calls.append(([len(t) for t in token_ids], list(starts)))
        return plain(self, token_ids, starts)

    monkeypatch.setattr(GraphRunner, "extend", recorded)
    prompts = encode(tiny / "artifact/1")
    exported_logits(tiny / "artifact/1", prompts)
    (first, zeros), (wrong, halves), (second, again) = calls
    assert zeros == [0] * len(PROMPTS)
    assert halves == again == first  # the wrong tokens are rewound
    assert wrong == [3] * len(PROMPTS)
    assert [a + b for a, b in zip(first, second, strict=True)] == [len(p) for p in prompts]


def test_compare_by_hand() -> None:
    expected = np.log(np.array([[0.5, 0.5, 0.0001], [0.8, 0.1, 0.1]], np.float32))
    found = np.log(np.array([[0.5, 0.5, 0.0001], [0.1, 0.8, 0.1]], np.float32))
    result = compare(expected, found)
    assert result.num_rows == 2
    assert result.agreement == 0.5
    assert result.max_difference == pytest.approx(np.log(8), rel=1e-5)
    assert result.mean_divergence == pytest.approx(0.5 * 0.7 * np.log(8), rel=1e-4)


def test_not_a_number_fails(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = load_reference(str(tiny / "model"))
    monkeypatch.setattr(
        "specdec.export.check.exported_logits",
        lambda directory, prompts: [np.full((len(p), 320), np.nan, np.float32) for p in prompts],
    )
    for precision in Precision:
        with pytest.raises(CheckFailed):
            check(tiny / "artifact/1", reference, precision)
