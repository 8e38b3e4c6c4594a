"""A sharded checkpoint passes through memory tensor by tensor, whatever its size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN, WIDE, HEADS, LAYERS, VOCAB = 512, 2048, 8, 8, 8192
LAYERS_PER_SHARD = 4  # a shard is 4.6 embedding tables, as those of Llama 3.1 8B are

# Runs in a process of its own: its heap is the exporter's alone. Prints the bytes that writing
# the graph needed on top of what was there before; mapped pages of the checkpoint do not count,
# the system drops them when it wants to.
SCRIPT = """
import gc, sys, threading, time
from pathlib import Path
import numpy as np, onnx, torch, ml_dtypes, onnxruntime.capi._pybind_state
from specdec.export import architectures
from specdec.export.forms import OnnxForm
from specdec.export.graph import GraphWriter
from specdec.export.quantize import Precision
from specdec.export.tensorrt_graph import TensorRTForm, TensorRTPrecision
from specdec.export.sources import HuggingFaceSource

def heap():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

def form(precision):
    if precision == "fp32":
        return OnnxForm(Precision.fp32)
    return TensorRTForm(TensorRTPrecision(precision), cache_length=512)

def watch():
    global peak
    while not done:
        peak = max(peak, heap())
        time.sleep(0.001)

model, output, *precisions = sys.argv[1:]
source = HuggingFaceSource(Path(model))
architecture = architectures.find(source.config.model_type)(source.config)
architecture.rotary_tables()  # imports the model's code
for precision in precisions:
    gc.collect()
    before, peak, done = heap(), 0, False
    thread = threading.Thread(target=watch)
    thread.start()
    folder = Path(output, precision)
    folder.mkdir()
    writer = GraphWriter(folder, form=form(precision))
    architecture.write(writer, source.weights)
    writer.finish(vocab_size=architecture.vocab_size, metadata={})
    done = True
    thread.join()
    print(peak - before)
    del writer
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random bf16 weights in shards, in the proportions of a real model's."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig

    folder = tmp_path_factory.mktemp("sharded")
    AutoConfig.for_model(
        "llama",
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 4,
        num_hidden_layers=LAYERS,
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    ).save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).mul_(0.02).bfloat16()

    narrow = HIDDEN // 4
    weight_map: dict[str, str] = {}
    for first in range(0, LAYERS, LAYERS_PER_SHARD):
        tensors = {}
        for i in range(first, first + LAYERS_PER_SHARD):
            prefix = f"model.layers.{i}"
            for name, size in (("q", HIDDEN), ("k", narrow), ("v", narrow), ("o", HIDDEN)):
                tensors[f"{prefix}.self_attn.{name}_proj.weight"] = random(size, HIDDEN)
            for name in ("gate", "up"):
                tensors[f"{prefix}.mlp.{name}_proj.weight"] = random(WIDE, HIDDEN)
            tensors[f"{prefix}.mlp.down_proj.weight"] = random(HIDDEN, WIDE)
            for name in ("input", "post_attention"):
                tensors[f"{prefix}.{name}_layernorm.weight"] = random(HIDDEN)
        if first == 0:
            tensors["model.embed_tokens.weight"] = random(VOCAB, HIDDEN)
        if first + LAYERS_PER_SHARD == LAYERS:
            tensors["lm_head.weight"] = random(VOCAB, HIDDEN)
            tensors["model.norm.weight"] = random(HIDDEN)
        shard = f"model-{first}.safetensors"
        save_file(tensors, folder / shard)
        weight_map |= dict.fromkeys(tensors, shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


# Precision -> bytes of the written file for each byte of the checkpoint, at least.
PRECISIONS = {"fp32": 1.9, "bf16": 0.95, "int4": 0.28}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_memory_stays_below_one_and_a_half_of_the_largest_shard(
    checkpoint: Path, tmp_path: Path
) -> None:
    shards = [path.stat().st_size for path in checkpoint.glob("*.safetensors")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, checkpoint, tmp_path, *PRECISIONS],
        # The C library gives freed blocks back to the system at once, as it does by itself with
        # those above 32 MB, which a real model's matrices are.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for needed, (precision, ratio) in zip(done.stdout.split(), PRECISIONS.items(), strict=True):
        written = (tmp_path / precision / "model.onnx.data").stat().st_size
        assert written > ratio * sum(shards), precision
        assert int(needed) < 1.5 * max(shards), (precision, needed, max(shards))
