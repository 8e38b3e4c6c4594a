"""The TensorRT runtime on a fake module whose engine is ONNX Runtime at the given addresses."""

from __future__ import annotations

import gc
import json
import shutil

import numpy as np
import pytest

from specdec.artifact import Artifact
from specdec.config import DecoderConfig
from specdec.decoder.batch import Share, build
from specdec.decoder.cuda import Cuda, DeviceLogits
from specdec.decoder.decoder import load_decoder
from specdec.decoder.runtimes import load_runtime, onnxruntime, tensorrt
from specdec.errors import DecoderFailed, InvalidArtifact
from specdec.export.tensorrt import Shapes
from specdec.plan import FILE, PLAN
from specdec.types import Extend, SamplingParams
from support.decoding import GREEDY, drafts_from, generate, run_together, steps
from support.fake_tensorrt import FakeCuda, FakeRTX, FakeTensorRT, export_fake
from support.trees import path

SHAPES = Shapes(max_sequences=4, max_sequence_length=448, max_rows=128)
TEXT = [5, 6, 7, 8, 9, 10]
PROMPT = [3 + (7 * i + i * i) % 290 for i in range(37)]


@pytest.fixture(scope="module")
def plan_dir(tmp_path_factory):
    return export_fake(tmp_path_factory.mktemp("plan"), SHAPES)


@pytest.fixture
def machine(monkeypatch):
    """Puts the fakes in place; returns the function that does, and its (trt, cuda)."""

    def install(trt: FakeTensorRT | None = None, **options):
        trt = trt or FakeTensorRT()
        cuda = FakeCuda(trt, **options)
        monkeypatch.setattr(tensorrt, "import_tensorrt", lambda runtime: trt)
        monkeypatch.setattr(tensorrt, "Cuda", lambda device: cuda)
        return trt, cuda

    return install


def load(directory, num_slots=4):
    artifact = Artifact.read(directory)
    return load_runtime(artifact, directory, num_slots=num_slots, num_threads=2)


def run(runtime, *shares, lengths=(0, 0, 0, 0)):
    batch = build(shares, lengths, length=runtime.length, min_rows=2, max_position=4096)
    logits = runtime.forward(batch)
    return logits[0 : sum(s.num_outputs for s in shares)].copy()


@pytest.fixture
def parts(machine, plan_dir):
    trt, cuda = machine()
    return load(plan_dir), trt, cuda


def reference(plan_dir):
    """ONNX Runtime's own runtime on the same model."""
    artifact = Artifact.read(plan_dir)
    graph = json.loads((plan_dir / PLAN).read_text())["graph"]
    session = onnxruntime.ort.InferenceSession(graph, providers=["CPUExecutionProvider"])
    runtime = onnxruntime.OnnxRuntime(session, artifact, num_slots=4)
    runtime.resize(SHAPES.cache_length, [0] * 4)
    return runtime


def test_logits_are_those_of_the_graph(parts, plan_dir):
    runtime, _, _ = parts
    expected = reference(plan_dir)
    for shares in (
        [Share(0, 0, PROMPT, 37)],
        [Share(1, 0, TEXT, 3), Share(3, 0, PROMPT[:5], 5)],
        [Share(0, 30, PROMPT[30:], 2), Share(1, 6, [9], 1), Share(3, 3, PROMPT[3:8], 1)],
    ):
        lengths = [37, 6, 0, 5]
        assert np.array_equal(
            run(runtime, *shares, lengths=lengths), run(expected, *shares, lengths=lengths)
        )


def test_features_are_those_of_the_graph(parts, plan_dir):
    """Of all rows of a pass and no row of its padding; queued, recorded and replayed alike."""
    runtime, _, cuda = parts
    shares = [Share(1, 0, TEXT, 1), Share(3, 0, PROMPT[:5], 5)]
    batch = build(shares, [0] * 4, length=runtime.length, min_rows=2, max_position=4096)
    expected = reference(plan_dir)
    same = build(shares, [0] * 4, length=expected.length, min_rows=2, max_position=4096)
    logits, features = (array.copy() for array in expected.forward_with_features(same))
    assert features.shape == (11, Artifact.read(plan_dir).feature_size)
    assert features.std(axis=1).min() > 0
    for _ in range(3):
        found, rows = runtime.forward_with_features(batch)
        assert np.array_equal(found[0:6], logits)
        assert np.array_equal(rows, features)
        runtime.forward(
            build([Share(0, 0, [9], 1)], [0] * 4, length=256, min_rows=2, max_position=4096)
        )
    assert cuda.num_replays


def test_addresses_and_shapes_are_set_before_each_pass(parts):
    runtime, trt, _ = parts
    trt.calls.clear()
    run(runtime, Share(1, 0, TEXT, 3), Share(2, 0, TEXT[:2], 1))
    names = [call[0] for call in trt.calls]
    assert names.count("execute") == 1
    assert names[-1] == "synchronize"
    assert names.index("execute") == len(names) - 2
    shapes = {call[1]: call[2] for call in trt.calls if call[0] == "set_input_shape"}
    length = SHAPES.cache_length
    assert shapes["row_index"] == (2, 6)
    assert shapes["attention_mask"] == (2, 1, 6, length)
    assert shapes["past_key_0"] == (2, 2, length, 16)
    addresses = {call[1]: call[2] for call in trt.calls if call[0] == "set_tensor_address"}
    for i in range(2):
        for kind in ("key", "value"):
            address = addresses[f"past_{kind}_{i}"]
            assert address == addresses[f"present_{kind}_{i}"]
            cache = runtime._caches[f"{kind}_{i}"]
            assert address == cache.data_ptr() + 2 * length * 16 * 4  # one slot of floats
    assert len({addresses[n] for n in addresses if "present" not in n}) == 7 + 4 + 2


def test_a_pass_that_comes_again_is_recorded_then_replayed(parts):
    runtime, trt, cuda = parts
    first = run(runtime, Share(0, 0, TEXT, 6))
    assert "capture" not in {call[0] for call in trt.calls}
    second = run(runtime, Share(0, 0, TEXT, 6))
    assert trt.calls[-3:] == [("execute",), ("capture",), ("synchronize",)]
    trt.calls.clear()
    run(runtime, Share(2, 0, [11, 12, 13, 14, 15, 16, 17], 1))  # the context has other shapes now
    trt.calls.clear()
    third = run(runtime, Share(0, 0, TEXT, 6))
    assert trt.calls == [("synchronize",)]
    assert cuda.num_replays == 1
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
    other = run(runtime, Share(0, 0, [t + 1 for t in TEXT], 6))
    assert cuda.num_replays == 2
    assert not np.array_equal(first, other)


def test_each_recording_has_a_context_of_its_own_and_all_share_their_scratch(machine, plan_dir):
    """Another pass changes the state of the context it runs in: the fake then refuses to replay."""
    trt, cuda = machine()
    runtime = load(plan_dir)
    sizes = (2, 3, 5)
    for size in sizes * 3:
        run(runtime, Share(0, 0, TEXT[:size], 1))
    assert cuda.num_replays == len(sizes)
    made = [call[1] for call in trt.calls if call[0] == "create_execution_context"]
    assert made == ["user managed"] * (1 + len(sizes))
    assert len({call[1] for call in trt.calls if call[0] == "set_device_memory"}) == 1


def test_a_plan_without_scratch_memory_runs(machine, plan_dir):
    trt, _ = machine()
    trt.scratch_bytes = 0
    runtime = load(plan_dir)
    for _ in range(3):
        assert np.isfinite(run(runtime, Share(0, 0, TEXT, 6))).all()


def test_the_oldest_recording_goes(parts, monkeypatch):
    monkeypatch.setattr(tensorrt, "_MAX_GRAPHS", 2)
    runtime, trt, cuda = parts
    for size in (2, 3, 4):
        for _ in range(2):
            run(runtime, Share(0, 0, TEXT[:size], 1))
    run(runtime, Share(0, 0, TEXT[:2], 1))
    assert cuda.num_replays == 0
    run(runtime, Share(0, 0, TEXT[:4], 1))
    assert cuda.num_replays == 1
    gc.collect()
    assert len(trt.contexts) == 1 + 2  # its own context is gone too


def test_passes_that_come_once_push_out_no_recording(parts, monkeypatch):
    monkeypatch.setattr(tensorrt, "_MAX_GRAPHS", 1)
    runtime, _, cuda = parts
    for _ in range(2):
        run(runtime, Share(0, 0, TEXT, 1))
    for size in range(2, 6):
        run(runtime, Share(1, 0, TEXT[:size], 1))
    run(runtime, Share(0, 0, TEXT, 1))
    assert cuda.num_replays == 1


def test_where_no_more_contexts_fit_passes_go_on_unrecorded(machine, plan_dir, caplog):
    trt, cuda = machine()
    runtime = load(plan_dir)
    trt.max_contexts = 2
    sizes = (2, 3) * 4
    found = [run(runtime, Share(0, 0, TEXT[:size], size)) for size in sizes]
    assert cuda.num_replays == 2, "what was recorded before goes on"
    assert all(np.array_equal(found[i], found[i % 2]) for i in range(len(sizes)))
    assert [r.message for r in caplog.records if "CUDA graphs" in r.message] == [
        "no more CUDA graphs are recorded: out of memory"
    ]


def test_a_new_context_that_cannot_run_leaves_its_pass_to_the_first(machine, plan_dir, caplog):
    """Memory that a context takes when it first runs."""
    trt, cuda = machine()
    runtime = load(plan_dir)
    expected = run(runtime, Share(0, 0, TEXT, 6))
    trt.fail_first_run = True  # of every context from now on
    found = [run(runtime, Share(0, 0, TEXT, 6)) for _ in range(3)]
    assert all(np.array_equal(expected, rows) for rows in found)
    assert cuda.num_replays == 0
    (message,) = [r.message for r in caplog.records if "CUDA graphs" in r.message]
    assert message == "no more CUDA graphs are recorded: out of memory"


def test_a_card_too_small_for_one_context(machine, plan_dir):
    trt, _ = machine()
    trt.max_contexts = 0
    with pytest.raises(InvalidArtifact, match="does not fit the card: out of memory"):
        load(plan_dir)


def test_long_passes_are_not_recorded(parts):
    runtime, trt, _ = parts
    for _ in range(3):
        run(runtime, Share(0, 0, list(range(3, 40)), 1))
    assert [c for c in trt.calls if c[0] == "capture"] == []


def test_what_cannot_be_recorded_runs_unrecorded(machine, plan_dir, caplog):
    trt, _ = machine(can_record=False)
    runtime = load(plan_dir)
    results = [run(runtime, Share(0, 0, TEXT, 6)) for _ in range(4)]
    assert all(np.array_equal(results[0], r) for r in results)
    assert [c[0] for c in trt.calls].count("execute") == 4
    assert [r.message for r in caplog.records if "CUDA graphs" in r.message] == [
        "no more CUDA graphs are recorded: operation not permitted when stream is capturing"
    ]


def test_rtx_records_by_itself(machine, tmp_path):
    trt, _ = machine(FakeRTX())
    runtime = load(export_fake(tmp_path, SHAPES, runtime="tensorrt-rtx"))
    assert trt.calls[0] == ("create_execution_context", "whole graph")
    for _ in range(3):
        run(runtime, Share(0, 0, TEXT, 6))
    assert "capture" not in {call[0] for call in trt.calls}


def test_a_failed_pass_says_why_and_the_next_one_works(parts):
    runtime, trt, _ = parts
    expected = run(runtime, Share(0, 0, TEXT, 6))
    trt.fail_with = "an illegal memory access was encountered"
    with pytest.raises(DecoderFailed, match="forward pass failed: an illegal memory access"):
        run(runtime, Share(0, 0, TEXT, 6))
    trt.fail_with = None
    assert np.array_equal(run(runtime, Share(0, 0, TEXT, 6)), expected)


def test_copy_moves_a_prefix_and_resize_keeps_everything(parts):
    runtime, _, _ = parts
    expected = run(runtime, Share(0, 0, TEXT, 6))
    runtime.copy(0, 3, 4)
    runtime.resize(512, [6, 0, 0, 4])
    assert runtime.length == 512
    assert np.array_equal(run(runtime, Share(3, 4, TEXT[4:], 2)), expected[4:])
    assert np.array_equal(run(runtime, Share(0, 5, TEXT[5:], 1)), expected[5:])


def test_a_prefix_is_read_to_the_host_and_written_back(parts):
    runtime, _, _ = parts
    expected = run(runtime, Share(0, 0, TEXT, 6))
    content = runtime.read(0, 5)
    run(runtime, Share(0, 0, PROMPT, 1))  # overwrites it
    runtime.write(3, content, 4)
    assert np.array_equal(run(runtime, Share(3, 4, TEXT[4:], 2)), expected[4:])


# --- through the decoder ---------------------------------------------------------------------


@pytest.fixture
def decoder(machine, plan_dir):
    machine()
    return load_decoder(DecoderConfig(max_sequences=4, num_threads=2), plan_dir)


def test_the_decoder_knows_the_plan_s_limits_and_its_exactness(decoder):
    info = decoder.describe()
    assert (info.exactness, info.min_rows) == ("bitwise", 2)
    assert info.max_sequence_length == SHAPES.cache_length - 64
    assert info.precision == "bf16"


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=0.9, top_p=0.9, seed=5)]
)
def test_every_draft_length_gives_the_same_text(decoder, sampling):
    plain = generate(decoder, PROMPT, sampling, 20)
    for count in (1, 3, 8):
        drafter = drafts_from(PROMPT + plain[0], count, wrong_at=count - 1)
        assert generate(decoder, PROMPT, sampling, 20, drafter=drafter) == plain
    together = run_together(
        decoder,
        [
            steps(decoder, 1, PROMPT, sampling, 20, drafter=drafts_from(PROMPT + plain[0], 4)),
            steps(decoder, 2, TEXT, sampling, 20),
            steps(decoder, 3, PROMPT, sampling, 20, chunk=5),
        ],
    )
    assert together[0] == together[2] == plain


def test_a_prompt_longer_than_a_pass_is_cut(decoder):
    text = [3 + (11 * i + i * i // 3) % 290 for i in range(300)]
    whole = generate(decoder, text, num_tokens=6)
    trt_shapes = [
        c[2] for c in decoder._runtime._loaded.engine.trt.calls if c[1:2] == ("input_ids",)
    ]
    assert {(128,), (48,)} <= set(trt_shapes)  # 300 = 128 + 128 + 44, padded to a bucket
    assert whole == generate(decoder, text, num_tokens=6, chunk=50, sequence_id=2)


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=2),
    ],
)
def test_draws_on_the_card_are_those_of_the_host(decoder, monkeypatch, sampling):
    with monkeypatch.context() as patch:
        patch.delattr(DeviceLogits, "__getitem__")  # not one row goes to the host
        on_card = generate(decoder, PROMPT, sampling, 20)
    monkeypatch.setattr(decoder._runtime, "draw", lambda *_: None)
    on_host = generate(decoder, PROMPT, sampling, 20, sequence_id=2)
    assert on_card[0] == on_host[0]
    np.testing.assert_allclose(on_card[1], on_host[1], atol=2e-6, rtol=0)


def test_requests_of_every_kind_share_a_pass_and_one_question(decoder, monkeypatch):
    samplings = [
        SamplingParams(temperature=0.9, top_p=0.9, seed=1),
        SamplingParams(temperature=0.9, repetition_penalty=1.2, seed=1),
        GREEDY,
        SamplingParams(temperature=1.0, seed=4),
    ]
    alone = [generate(decoder, PROMPT, sampling, 12) for sampling in samplings]
    questions = []
    draw = decoder._runtime.draw
    monkeypatch.setattr(decoder._runtime, "draw", lambda *a: questions.append(a[1]) or draw(*a))
    together = run_together(
        decoder,
        [steps(decoder, i, PROMPT, s, 12) for i, s in enumerate(samplings)],
    )
    assert together == alone
    assert [p.row for p in questions[-1]] == [0, 2, 3]
    assert len(questions) <= 12 + 4  # at most a pass each for prompts that cannot share one


def test_a_tree_needs_nothing_but_other_arrays(decoder, monkeypatch):
    """Behind a prompt that is cut, padded to a bucket, replayed: the trunk is a chain's, to the
    bit, and the candidates are those of the host."""
    text = [3 + (11 * i + i * i // 3) % 290 for i in range(250)]
    parents, drafts = (-1, 0, 0, 2, 1, -1, 5), text[:7]
    tree = Extend(1, 0, text + drafts, 8, parents=parents, num_candidates=5)
    chain = Extend(2, 0, text + drafts[:2], 3, num_candidates=5)
    for call in (tree, chain):
        decoder.open(call.sequence_id, text, GREEDY)
    (found,) = decoder.extend([tree]).sequences
    (expected,) = decoder.extend([chain]).sequences
    for kept, whole in zip(expected[:3], found[:3], strict=True):
        assert whole[:3] == kept
    for _ in range(3):  # queued, recorded, replayed
        again = tree._replace(start=249, token_ids=tree.token_ids[249:])
        assert decoder.extend([again]).sequences == [found]
    monkeypatch.setattr(decoder._runtime, "likeliest", lambda *_: None)
    assert decoder.extend([again]).sequences == [found]
    for index in range(7):
        tokens = [text[-1], *(drafts[i] for i in path(parents, index))]
        (beside,) = decoder.extend([Extend(2, 249, tokens, 1)]).sequences
        assert beside.token_ids == found.token_ids[1 + index : 2 + index]
        assert beside.logprobs[0] == pytest.approx(found.logprobs[1 + index], abs=1e-4)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0, seed=1)])
def test_draft_steps_stop_where_the_card_drew_something_unlikely(decoder, monkeypatch, sampling):
    """One pass for each step that somebody takes, over those alone."""
    for i in range(3):
        decoder.open(i, PROMPT, sampling)
    calls = [Extend(i, 0, PROMPT, 1, 9) for i in range(3)]
    whole = decoder.extend(calls).sequences[0]
    sizes, questions = (4, 1, 7), []
    draw = decoder._runtime.draw
    monkeypatch.setattr(decoder._runtime, "draw", lambda *a: questions.append(a[1]) or draw(*a))
    found = decoder.extend(
        [
            call._replace(least_logprob=sum(whole.logprobs[:size]) + 1e-4)
            for call, size in zip(calls, sizes, strict=True)
        ]
    ).sequences
    assert [each.token_ids for each in found] == [whole.token_ids[:size] for size in sizes]
    assert [len(places) for places in questions[-6:]] == [2, 2, 2, 1, 1, 1]


def test_a_tree_with_more_branches_than_a_pass_has_rows_is_refused(decoder):
    decoder._limits = decoder._limits._replace(max_rows=32)
    decoder.open(1, PROMPT, GREEDY)
    with pytest.raises(DecoderFailed, match="a tree of 33 tokens: allowed are 1 to 32"):
        decoder.extend([Extend(1, 0, [*PROMPT, *[5] * 33], 34, parents=[-1] * 33)])


# --- what is refused -------------------------------------------------------------------------


@pytest.fixture
def damaged(plan_dir, tmp_path):
    return shutil.copytree(plan_dir, tmp_path / "copy")


def change(directory, name, **changes):
    path = directory / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runtime_version": "10.0"}, r"compiled by tensorrt 10\.0, installed is 11\.1\.0\.106"),
        ({"compute_capability": "SM120"}, r"for SM120, this card is SM89: .* --capability SM89"),
        ({"weights_sha256": "feedfeed"}, "of weights feedfeed, the model is tensorrt of"),
        ({"num_bytes": 7}, r"plan\.json says 7: copy or export it again"),
        ({"format": 0}, "another version of this exporter"),
        ({"max_sequences": 3}, "the plan holds at most 3: lower it, or .* --max-sequences 4"),
        ({"cache_length": 1024}, r"past_key_0 is not \[-1, 2, 1024, 16\]"),
    ],
)
def test_a_plan_that_does_not_fit(machine, damaged, changes, message):
    machine()
    change(damaged, FILE, **changes)
    with pytest.raises(InvalidArtifact, match=message):
        load(damaged)


def test_a_plan_of_the_same_size_from_other_weights(machine, damaged):
    """Two fine-tunes of one model: nothing but what the plan calls itself tells them apart."""
    machine()
    other = json.loads((damaged / PLAN).read_text())
    other["name"] = "f" * 64
    (damaged / PLAN).write_text(json.dumps(other))
    with pytest.raises(InvalidArtifact, match=r"calls itself 'f{12}', plan\.json says"):
        load(damaged)


@pytest.mark.parametrize("name", [FILE, PLAN])
def test_a_missing_file(machine, damaged, name):
    machine()
    (damaged / name).unlink()
    with pytest.raises(InvalidArtifact, match=f"{name}.*export again"):
        load(damaged)


def test_a_damaged_plan_brings_tensorrt_s_own_reason(machine, damaged):
    machine()
    data = (damaged / PLAN).read_bytes()
    (damaged / PLAN).write_bytes(b"x" * len(data))
    with pytest.raises(InvalidArtifact, match="cannot be loaded: magic tag does not match"):
        load(damaged)


def test_a_cache_larger_than_the_card(machine, plan_dir, monkeypatch):
    _, cuda = machine()

    def too_large(*_: object, **__: object):
        raise cuda.torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cuda.torch, "zeros", too_large)
    with pytest.raises(InvalidArtifact, match="4 sequences of 512 positions does not fit the card"):
        load(plan_dir)


def test_no_card(plan_dir, monkeypatch):
    monkeypatch.setattr(tensorrt, "import_tensorrt", lambda runtime: FakeTensorRT())
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    with pytest.raises(InvalidArtifact, match="needs an NVIDIA card: torch finds none"):
        load(plan_dir)
    with pytest.raises(InvalidArtifact):
        Cuda()


def test_the_card_of_the_configuration(machine, plan_dir, monkeypatch):
    _, cuda = machine()
    chosen: list[int] = []
    monkeypatch.setattr(tensorrt, "Cuda", lambda device: chosen.append(device) or cuda)
    load_decoder(DecoderConfig(max_sequences=4, num_threads=2, device=1), plan_dir)
    assert chosen == [1]


def test_a_card_that_is_not_there(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: device)
    cuda = Cuda(1)
    assert (cuda.name, cuda._stream) == ("cuda:1", "cuda:1")
    with pytest.raises(InvalidArtifact, match="device is 2: this process sees 2 NVIDIA cards"):
        Cuda(2)


def test_no_tensorrt(plan_dir, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(InvalidArtifact, match="tensorrt is not installed: pip install tensorrt-cu"):
        load(plan_dir)
