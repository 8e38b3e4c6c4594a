"""The graph of a head computes what the trained head computes: on features, on itself, in trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from specdec.artifact import GRAPH
from specdec.errors import UnsupportedModel
from specdec.export import head_graph
from specdec.export.forms import draft_form
from specdec.export.graph import INPUTS
from specdec.export.head_graph import HeadArchitecture, HeadWriter
from specdec.export.head_source import TargetTables, TrainedHead
from specdec.export.quantize import Precision
from specdec.export.runner import flat_inputs
from specdec.export.training import batches
from specdec.export.training.head import Inputs
from specdec.export.training.norms import normalised
from specdec.export.training.target import Target
from support.heads import LAYERS, STATIC_IDS, random_head, write_head
from support.tiny import export_tiny

TOLERANCE = 1e-4
HIDDEN = 64
CACHE = 64
EXTRA = [4, 7, 310, 1]


class Built(NamedTuple):
    head: Any
    target: Any
    session: onnxruntime.InferenceSession


def build(directory: Path, precision: str = "fp32", num_blocks: int = 1, **tiny: Any) -> Built:
    artifact = export_tiny(directory, **tiny)
    head, target = random_head(directory / "model", num_blocks=num_blocks)
    trained = TrainedHead.read(write_head(directory / "trained", head))
    graph = HeadWriter(
        directory,
        form=draft_form(Precision(precision)),
        feature_size=trained.feature_size,
        hidden_size=HIDDEN,
    )
    tables = TargetTables.read(artifact)
    HeadArchitecture(trained, tables).write(graph)
    graph.finish(vocab_size="C + M", metadata={})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(directory / GRAPH), options)
    return Built(head, with_rounded_tables(target, tables), session)


def with_rounded_tables(target: Target, tables: TargetTables) -> Target:
    """As the graph keeps them: its static rows aside, in float16."""
    rows = target.head.half().float()
    rows[list(STATIC_IDS)] = target.head[list(STATIC_IDS)]
    embedding = torch.tensor(tables.embedding).half()
    unit = normalised(embedding, target.config.rms_norm_eps)
    return replace(target, head=rows, unit_embedding=unit)


@dataclass
class Sample:
    """As much of a corpus's text as a batch is built from."""

    token_ids: np.ndarray
    features: np.ndarray
    num_prompt_tokens: int = 2

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def likeliest(self) -> np.ndarray:
        return self.token_ids[self.num_prompt_tokens :]


class Runner:
    """One sequence, rows appended pass by pass."""

    def __init__(self, session: onnxruntime.InferenceSession, num_blocks: int = 1) -> None:
        self.session = session
        self.cache = {
            f"past_{kind}_{i}": np.zeros((1, 2, CACHE, 16), np.float32)
            for kind in ("key", "value")
            for i in range(num_blocks)
        }
        self.length = 0

    def feed(
        self,
        token_ids: list[int],
        *,
        features: np.ndarray | None = None,
        hidden: np.ndarray | None = None,
        source: list[int] | None = None,
        sees: list[list[int]] | None = None,
        positions: list[int] | None = None,
        extra: list[int] = EXTRA,
        allowed: np.ndarray | None = None,
        width: int = 4,
    ) -> tuple[np.ndarray, np.ndarray]:
        """hidden_out [N, H] and logits [N, C + M]. `sees`: cache places of each row."""
        inputs = flat_inputs([token_ids], [self.length], cache_length=CACHE, max_position=4095)
        if positions is not None:
            inputs["position_ids"][0] = positions
        if sees is not None:
            inputs["attention_mask"][:] = False
            for row, places in enumerate(sees):
                inputs["attention_mask"][0, 0, row, places] = True
        size = len(LAYERS) * HIDDEN
        inputs["features"] = np.zeros((0, size), np.float16) if features is None else features
        inputs["hidden"] = np.zeros((0, HIDDEN), np.float32) if hidden is None else hidden
        default = np.arange(len(token_ids), dtype=np.int64)
        inputs["source"] = default if source is None else np.array(source)
        inputs["extra_ids"] = np.array(extra, np.int64)
        every = np.ones((len(token_ids), len(extra)), np.bool_)
        inputs["allowed"] = every if allowed is None else allowed
        inputs["width"] = np.array([width])
        names = [o.name for o in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(names, {**inputs, **self.cache}), strict=True))
        self.cache = {n: found[n.replace("past", "present")] for n in self.cache}
        self.length += len(token_ids)
        self.best = found["best_columns"], found["best_logprobs"]
        return found["hidden_out"], found["logits"]


def text(num_tokens: int = 12, seed: int = 0) -> Sample:
    generator = np.random.default_rng(seed)
    ids = generator.integers(3, 320, num_tokens)
    scale = np.repeat([1.0, 30.0, 200.0], HIDDEN)  # as residual streams grow
    features = generator.standard_normal((num_tokens - 1, len(LAYERS) * HIDDEN)) * scale
    return Sample(ids, features.astype(np.float16))


def expected(built: Built, of: Sample, num_steps: int) -> list[np.ndarray]:
    """Logits [Q, C + M] of every step of training's own unrolling along a text."""
    inputs = Inputs.of(
        batches.build([of], num_steps=num_steps),
        config=built.head.config,
        corpus_layers=LAYERS,
        hidden_size=HIDDEN,
        device=torch.device("cpu"),
    )
    rows = built.target.head[torch.tensor([*STATIC_IDS, *EXTRA])]
    with torch.inference_mode():
        return [(z @ rows.T).numpy() for z in built.head.unroll(inputs, built.target, num_steps)]


@pytest.mark.parametrize(
    ("tiny", "num_blocks", "num_steps"),
    [({}, 1, 3), ({"tie_word_embeddings": True}, 1, 3), ({}, 2, 1)],
    ids=["llama", "tied head", "two blocks"],
)
def test_rows_with_features_and_rows_of_its_own(
    tmp_path: Path, tiny: dict[str, Any], num_blocks: int, num_steps: int
) -> None:
    """Every draft that training unrolls, served: features up to row i, then the head's own."""
    built, sample = build(tmp_path, num_blocks=num_blocks, **tiny), text()
    wanted = expected(built, sample, num_steps)
    assert np.abs(wanted[0]).max() > 1
    first = 1  # the row before the first answer token's
    for i in range(first, len(sample) - num_steps - 1):
        runner = Runner(built.session, num_blocks)
        ids = sample.token_ids[1 : i + 2].tolist()
        hidden, logits = runner.feed(ids[:-1], features=sample.features[:i])
        hidden, logits = runner.feed(ids[-1:], features=sample.features[i : i + 1])
        for step in range(num_steps):
            np.testing.assert_allclose(logits[-1], wanted[step][i - first], atol=TOLERANCE)
            hidden, logits = runner.feed([int(sample.token_ids[i + 2 + step])], hidden=hidden)


def test_a_tree_equals_its_paths(tmp_path: Path) -> None:
    """Two tokens after the root and two after the first of them, in two passes."""
    built, sample = build(tmp_path), text()
    ids = sample.token_ids[1:6].tolist()

    def root() -> tuple[Runner, np.ndarray]:
        runner = Runner(built.session)
        return runner, runner.feed(ids, features=sample.features[:5])[0][-1:]

    tree, hidden = root()
    before = list(range(5))
    level, _ = tree.feed(
        [40, 50], hidden=hidden, source=[0, 0], sees=[[*before, 5], [*before, 6]], positions=[5, 5]
    )
    _, found = tree.feed(
        [60, 70],
        hidden=level,
        source=[0, 1],
        sees=[[*before, 5, 7], [*before, 6, 8]],
        positions=[6, 6],
    )
    for row, path in enumerate(([40, 60], [50, 70])):
        chain, hidden = root()
        for token_id in path:
            hidden, logits = chain.feed([token_id], hidden=hidden)
        np.testing.assert_allclose(found[row], logits[-1], atol=1e-5)


def test_rows_of_both_kinds_in_one_pass(tmp_path: Path) -> None:
    """As in a batch where one sequence catches up and another drafts."""
    built, sample = build(tmp_path), text()
    apart = Runner(built.session)
    ids = sample.token_ids[1:4].tolist()
    hidden, _ = apart.feed(ids, features=sample.features[:3])
    _, wanted = apart.feed([9], hidden=hidden[-1:])
    together = Runner(built.session)
    together.feed(ids, features=sample.features[:3])
    _, found = together.feed(
        [9, 9],
        features=sample.features[5:6],
        hidden=hidden,
        source=[3, 0],  # the last of `hidden`; the features
        sees=[[0, 1, 2, 3], [0, 1, 2, 4]],
        positions=[3, 3],
    )
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
    assert np.abs(found[1] - wanted[0]).max() > 0.1


def test_no_extra_ids_leave_the_static_columns(tmp_path: Path) -> None:
    built, sample = build(tmp_path), text()
    ids = sample.token_ids[1:4].tolist()
    runs = [
        Runner(built.session).feed(ids, features=sample.features[:3], extra=extra)[1]
        for extra in ([], EXTRA)
    ]
    assert [r.shape[1] for r in runs] == [len(STATIC_IDS), len(STATIC_IDS) + len(EXTRA)]
    np.testing.assert_array_equal(runs[0], runs[1][:, : len(STATIC_IDS)])


def test_the_likeliest_columns_that_a_row_may_propose(tmp_path: Path) -> None:
    """Against all logits, row by row: every column is wanted, then four."""
    built, sample = build(tmp_path), text()
    ids = sample.token_ids[1:4].tolist()
    size, width = len(STATIC_IDS) + len(EXTRA), 4
    allowed = np.random.default_rng(0).random((3, len(EXTRA))) < 0.5
    allowed[0] = False
    runners = [Runner(built.session) for _ in range(2)]
    for runner, count in zip(runners, (size, width), strict=True):
        feed = {"features": sample.features[:3], "allowed": allowed, "width": count}
        logits = runner.feed(ids, **feed)[1]
    columns, logprobs = runners[0].best
    assert np.isneginf(logits[:, len(STATIC_IDS) :]).tolist() == (~allowed).tolist()
    for row, wanted in enumerate(logits.astype(np.float64)):
        order = np.argsort(-wanted, kind="stable")
        count = len(STATIC_IDS) + int(allowed[row].sum())
        assert columns[row, :count].tolist() == order[:count].tolist()
        assert np.isneginf(logprobs[row, count:]).all()
        mass = np.log(np.exp(wanted).sum())
        np.testing.assert_allclose(logprobs[row, :count], wanted[order[:count]] - mass, atol=1e-5)
    assert runners[1].best[0].tolist() == columns[:, :width].tolist()
    np.testing.assert_array_equal(runners[1].best[1], logprobs[:, :width])


def test_int8_matrices_stay_close(tmp_path: Path) -> None:
    whole, packed = build(tmp_path / "fp32"), build(tmp_path / "int8", "int8")
    sample = text()
    ids = sample.token_ids[1:6].tolist()
    wanted, found = (
        Runner(b.session).feed(ids, features=sample.features[:5])[1] for b in (whole, packed)
    )
    assert np.corrcoef(wanted.ravel(), found.ravel())[0, 1] > 0.999


def test_declared_ports_are_the_tables(tmp_path: Path) -> None:
    build(tmp_path)
    graph = onnx.load(tmp_path / GRAPH, load_external_data=False).graph
    found = {
        port.name: tuple(d.dim_param or d.dim_value for d in port.type.tensor_type.shape.dim)
        for port in [*graph.input, *graph.output]
    }
    names = [port.name for port in graph.input]
    caches = ["past_key_0", "past_value_0"]
    assert names == [*INPUTS, *caches, *head_graph.INPUTS]
    assert found["features"] == ("P", len(LAYERS) * HIDDEN)
    assert found["hidden"] == ("Q", HIDDEN)
    assert found["hidden_out"] == ("N", HIDDEN)
    assert found["best_columns"] == found["best_logprobs"] == ("R", "K")
    assert found["logits"] == ("R", "C + M")


@pytest.mark.parametrize("precision", ["fp32", "int8", "w8a8", "int4"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_tables_come_from_the_target_at_any_precision(
    tmp_path: Path, precision: str, is_tied: bool
) -> None:
    artifact = export_tiny(tmp_path, precision, tie_word_embeddings=is_tied)
    if not is_tied and precision != "fp32":
        with pytest.raises(UnsupportedModel, match="--precision fp32"):
            TargetTables.read(artifact)
        return
    tables = TargetTables.read(artifact)
    _, target = random_head(tmp_path / "model")
    assert tables.is_tied == is_tied
    np.testing.assert_array_equal(tables.head, target.head.numpy())
    np.testing.assert_array_equal(tables.cos, target.cos.numpy())
    norms = np.sqrt(np.square(tables.embedding).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(tables.embedding / norms, target.unit_embedding, rtol=1e-5)
