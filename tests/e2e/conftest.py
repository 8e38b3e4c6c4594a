"""Servers for the end-to-end tests. Starting one takes some seconds, so most tests share one."""

import functools
import hashlib
import json

import pytest

from specdec.export.download import cache_directory
from support.heads import export_tiny_head, random_head
from support.serving import MAX_RUNNING, MAX_WAITING, serve
from support.tiny import export_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """One random model at any precision: each is a draft that often agrees with the others."""
    root = tmp_path_factory.mktemp("tiny")

    @functools.cache
    def exported(precision):
        return export_tiny(root / precision, precision, hidden_size=128).parent

    return exported


@pytest.fixture(scope="session")
def tiny_head(tiny, tmp_path_factory):
    """A random head for it: its trees are right now and then."""
    model = tiny("fp32").parent / "model"
    head, _ = random_head(model)
    return export_tiny_head(tmp_path_factory.mktemp("head"), tiny("fp32") / "1", head).parent


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="session")
def shared_server(tiny, tiny_head, run_dir):
    speculative = {"max_running": str(MAX_RUNNING), "max_waiting": str(MAX_WAITING)}
    with serve(run_dir, tiny("fp32"), tiny("int8"), tiny_head, speculative=speculative) as served:
        yield served


@pytest.fixture
def served(shared_server):
    """The shared server; whatever a test does to it, no sequence may be left afterwards."""
    shared_server.wait_idle()
    yield shared_server
    shared_server.wait_idle()


@pytest.fixture(scope="session")
def smollm2_source():
    from rich.progress import Progress

    from specdec.export.sources import resolve

    with Progress(disable=True) as progress:
        yield resolve("smollm2", progress)


@pytest.fixture(scope="session")
def smollm2(smollm2_source):
    """SmolLM2-135M-Instruct in fp32; exported once into the cache."""
    from rich.progress import Progress

    from specdec.export.exporter import export
    from specdec.export.quantize import Precision

    with Progress(disable=True) as progress:
        return export(
            smollm2_source,
            cache_directory() / "tests" / "smollm2-fp32",
            precision=Precision.fp32,
            progress=progress,
        )


@pytest.fixture(scope="session")
def smollm2_server(smollm2, run_dir):
    with serve(run_dir, smollm2.directory.parent) as served:
        yield served


@pytest.fixture(scope="session")
def transformers_greedy(smollm2, smollm2_source):
    """(prompt, number of tokens) -> (prompt ids, ids that transformers' `generate` appends).

    Answers are kept beside the artifact, for loading the model takes half a minute.
    """
    import transformers

    identity = f"{smollm2.artifact.weights_sha256} {transformers.__version__}"

    def answer(prompt, max_tokens):
        key = hashlib.sha256(f"{identity} {max_tokens} {prompt}".encode()).hexdigest()[:16]
        path = smollm2.directory.parent / f"greedy-{key}.json"
        if not path.is_file():
            ids = smollm2_source.tokenizer(prompt, return_tensors="pt").input_ids
            model = smollm2_source.reference
            output = model.generate(ids, max_new_tokens=max_tokens, do_sample=False)[0].tolist()
            num_prompt = ids.shape[1]
            path.write_text(json.dumps([output[:num_prompt], output[num_prompt:]]))
        return json.loads(path.read_text())

    return answer
