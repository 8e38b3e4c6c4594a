"""The ONNX Runtime runtime: memory of the cache, bindings, and what it refuses to load."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import psutil
import pytest

from specdec.artifact import FILE, GRAPH, Artifact
from specdec.config import DecoderConfig
from specdec.decoder.batch import Share, build
from specdec.decoder.decoder import load_decoder
from specdec.decoder.runtimes import load_runtime, onnxruntime
from specdec.errors import DecoderFailed, InvalidArtifact


def load(directory, num_slots=4):
    return load_runtime(Artifact.read(directory), directory, num_slots=num_slots, num_threads=2)


def run(runtime, *shares, lengths=(0, 0, 0, 0)):
    batch = build(shares, lengths, length=runtime.length, min_rows=2, max_position=4096)
    return runtime.forward(batch)[: sum(s.num_outputs for s in shares)].copy()


@pytest.fixture
def runtime(tiny_artifacts):
    return load(tiny_artifacts["fp32"])


TEXT = [5, 6, 7, 8, 9, 10]


def test_every_slot_is_its_own_memory(runtime):
    reference = run(runtime, Share(0, 0, TEXT, 6))
    for slot in (3, 1, 2):
        run(runtime, Share(slot, 0, [20 + slot] * 6, 1))
        assert np.array_equal(run(runtime, Share(slot, 0, TEXT, 6)), reference)
    for slot in range(4):
        assert np.array_equal(run(runtime, Share(slot, 4, TEXT[4:], 2)), reference[4:])


def test_bindings_of_slot_ranges_do_not_pile_up(runtime, monkeypatch):
    """Each keeps the inputs of its last pass alive, and there are n (n + 1) / 2 ranges."""
    monkeypatch.setattr(onnxruntime, "MAX_BINDINGS", 2)
    reference = run(runtime, Share(0, 0, TEXT, 6))
    for slot in (0, 1, 0, 2, 0, 3):
        assert np.array_equal(run(runtime, Share(slot, 0, TEXT, 6)), reference)
    assert list(runtime._bindings) == [(0, 1, ("logits",)), (3, 4, ("logits",))]  # the latest


def test_a_pass_writes_only_the_new_positions(runtime):
    run(runtime, *(Share(i, 0, [30 + i] * 10, 0) for i in range(4)))
    before = {name: cache.copy() for name, cache in runtime._caches.items()}
    run(runtime, Share(1, 4, [5, 6, 7], 1), Share(2, 9, [8], 1))
    for name, cache in runtime._caches.items():
        changed = (cache != before[name]).any(axis=(1, 3))
        assert sorted(zip(*map(list, np.nonzero(changed)), strict=True)) == [
            (1, 4), (1, 5), (1, 6), (2, 9), (2, 10), (2, 11)
        ]  # fmt: skip


def test_resize_keeps_what_is_asked_for(runtime):
    reference = run(runtime, Share(2, 0, TEXT, 6))
    runtime.resize(512, [0, 0, 4, 0])
    assert runtime.length == 512
    assert all(not cache[2, :, 4:].any() for cache in runtime._caches.values())
    assert np.array_equal(run(runtime, Share(2, 4, TEXT[4:], 2)), reference[4:])
    runtime.resize(256, [0, 0, 6, 0])
    assert np.array_equal(run(runtime, Share(2, 5, TEXT[5:], 1)), reference[5:])


def test_copy_moves_a_prefix(runtime):
    reference = run(runtime, Share(0, 0, TEXT, 6))
    runtime.copy(0, 3, 4)
    assert np.array_equal(run(runtime, Share(3, 4, TEXT[4:], 2)), reference[4:])


@pytest.mark.parametrize("seed", range(5))
def test_contents_outlast_any_resizes_in_the_same_memory(runtime, seed):
    rng = np.random.default_rng(seed)
    held = [cache[:, :, :0].copy() for cache in runtime._caches.values()]
    counts = [0] * 4
    addresses = set()
    for length in rng.choice([256, 320, 384, 512, 640, 704], 12).tolist():
        counts = [min(count, length) for count in counts]
        runtime.resize(length, counts)
        assert runtime.length == length
        for cache, kept in zip(runtime._caches.values(), held, strict=True):
            assert cache.shape == (4, 2, length, 16)
            for slot, count in enumerate(counts):
                assert np.array_equal(cache[slot, :, :count], kept[slot, :, :count])
        addresses.add(next(iter(runtime._caches.values())).ctypes.data)
        counts = [int(rng.integers(0, length + 1)) * int(rng.random() < 0.8) for _ in range(4)]
        for cache in runtime._caches.values():
            cache[:] = rng.normal(size=cache.shape)
        held = [cache.copy() for cache in runtime._caches.values()]
    assert len(addresses) <= 3  # of 256, 512 and 1024 positions


def test_a_prefix_outside_the_cache_outlasts_a_resize(runtime):
    reference = run(runtime, Share(0, 0, TEXT, 6))
    content = runtime.read(0, 5)
    assert all(part.base is None for part in content)  # the old cache can be freed
    runtime.resize(512, [0] * 4)
    runtime.write(3, content, 4)
    assert np.array_equal(run(runtime, Share(3, 4, TEXT[4:], 2)), reference[4:])


def test_memory_is_aligned_after_any_resize(runtime):
    for length in (256, 704, 512):
        runtime.resize(length, [0] * 4)
        assert {cache.ctypes.data % 64 for cache in runtime._caches.values()} == {0}


def test_a_failed_pass_is_a_short_error_and_the_next_one_works(runtime):
    reference = run(runtime, Share(0, 0, TEXT, 6))
    batch = build([Share(0, 0, TEXT, 6)], [0], length=256, min_rows=2, max_position=4096)
    with pytest.raises(DecoderFailed, match="forward pass failed"):
        runtime.forward(batch._replace(output_rows=np.array([99])))
    assert np.array_equal(run(runtime, Share(0, 0, TEXT, 6)), reference)


def test_memory_stays_flat_over_changing_shapes(runtime):
    rng = np.random.default_rng(0)

    def some(count):
        for _ in range(count):
            size = int(rng.integers(1, 60))
            slot = int(rng.integers(0, 3))
            run(runtime, Share(slot, 0, [7] * size, min(size, 9)), Share(3, 3, [8], 1))

    some(200)
    before = psutil.Process().memory_info().rss
    some(400)
    assert psutil.Process().memory_info().rss - before < 8 << 20


def test_loads_through_links(tiny_artifacts, tmp_path):
    """A served repository links to the artifact's files."""
    for file in tiny_artifacts["int4"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert run(load(tmp_path), Share(0, 0, TEXT, 1)).shape == (1, 320)


def test_no_such_runtime(tiny_artifacts):
    artifact = dataclasses.replace(Artifact.read(tiny_artifacts["fp32"]), runtime="abacus")
    with pytest.raises(InvalidArtifact, match=r"needs runtime 'abacus': known are .*onnxruntime"):
        load_runtime(artifact, tiny_artifacts["fp32"], num_slots=1, num_threads=1)


@pytest.fixture
def damaged(tiny_artifacts, tmp_path):
    """A copy of an artifact to damage."""
    return shutil.copytree(tiny_artifacts["fp32"], tmp_path / "copy")


def test_missing_graph(damaged):
    (damaged / GRAPH).unlink()
    with pytest.raises(InvalidArtifact, match=r"model\.onnx is missing"):
        load(damaged)


def test_cut_graph(damaged):
    path = damaged / GRAPH
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InvalidArtifact, match="cannot be loaded"):
        load(damaged)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 1}, r"past_key_0 is .*, expected \[B, 1, S, 16\]"),
        ({"num_layers": 3}, "past_key_2 is None"),
        ({"num_layers": 1}, r"inputs are .*past_key_1"),
        ({"vocab_size": 321}, "logits have 320 columns, expected 321"),
    ],
)
def test_a_description_of_another_graph(damaged, changes, message):
    path = damaged / FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InvalidArtifact, match=message):
        load(damaged)


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "avx2 avx512f avx512_vnni", False),
        ("x86_64", "avx2 avx_vnni", False),
        ("x86_64", "avx2 avx512f", True),
        ("aarch64", "asimd", False),
        ("x86_64", None, False),
    ],
)
def test_products_of_bytes_saturate_on_x86_without_vnni(monkeypatch, machine, flags, expected):
    class Cpuinfo:
        def __init__(self, path):
            assert path == "/proc/cpuinfo"

        def read_text(self):
            if flags is None:
                raise FileNotFoundError
            return flags

    monkeypatch.setattr(onnxruntime.platform, "machine", lambda: machine)
    monkeypatch.setattr(onnxruntime, "Path", Cpuinfo)
    assert onnxruntime.saturates() == expected


@pytest.mark.parametrize("is_so", [True, False])
def test_a_w8a8_model_says_where_it_rounds_more(tiny_artifacts, monkeypatch, caplog, is_so):
    monkeypatch.setattr(onnxruntime, "saturates", lambda: is_so)
    for precision in ("w8a8", "int8"):
        load_decoder(DecoderConfig(max_sequences=2, num_threads=1), tiny_artifacts[precision])
    assert ["w8a8 on a processor without VNNI" in r.message for r in caplog.records] == (
        [True] if is_so else []
    )
