"""Same request, same bits: over drafter x K x batch x chunking x cached prefix x precision.

Real graphs on ONNX Runtime through the whole stack, compared with plain decoding alone (K = 0).
"""

import random

import pytest

from support.service import InProcessServer
from support.tiny import export_tiny

REQUESTS = {
    "greedy": {},
    "temperature": {"temperature": 0.8, "seed": 11},
    "top-k top-p": {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 5},
    "min-p": {"temperature": 1.0, "min_p": 0.05, "seed": 2**63 + 7},
    "penalties": {
        "temperature": 0.7,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "seed": 3,
    },
    "greedy penalties": {"repetition_penalty": 1.5, "frequency_penalty": 0.8},
}
PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown fox"


@pytest.fixture(scope="module", params=["fp32", "int8", "int4"])
def models(request, tmp_path_factory):
    """A target and a draft that agrees with it now and then: the same weights, fewer bits."""
    root = tmp_path_factory.mktemp(request.param)
    target = export_tiny(root / "target", request.param, hidden_size=128)
    draft = export_tiny(root / "draft", "int4", hidden_size=128)
    return {"target": target, "draft": draft}


def start(models, tmp_path_factory, **config):
    return InProcessServer(tmp_path_factory.mktemp("repository"), models=models, **config)


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    server = start(models, tmp_path_factory)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def reference(models, tmp_path_factory):
    """What the target alone writes: one request at a time, K = 0, nothing cached."""
    answers = {}
    for name, sampling in REQUESTS.items():
        server = start(models, tmp_path_factory)
        client = server.submit(PROMPT, num_draft_tokens=0, **sampling).wait()
        server.stop()
        answers[name] = (client.ids(), client.logprobs(), client.text())
        assert len(client.ids()) > 10
    return answers


def answer(client):
    client.wait()
    assert client.error is None, client.error
    return client.ids(), client.logprobs(), client.text()


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_every_draft_length_gives_the_same_bits(server, reference, name, drafter):
    for num_draft_tokens in range(17):
        client = server.submit(
            PROMPT, num_draft_tokens=num_draft_tokens, drafter=drafter, **REQUESTS[name]
        )
        assert answer(client) == reference[name], (drafter, num_draft_tokens)


@pytest.mark.parametrize("seed", range(3))
def test_any_batch_gives_the_same_bits(server, reference, seed):
    rng = random.Random(seed)
    names = [rng.choice(list(REQUESTS)) for _ in range(24)]
    clients = []
    for name in names:
        clients.append(
            server.submit(
                PROMPT,
                num_draft_tokens=rng.randrange(17),
                drafter=rng.choice(["none", "ngram", "draft_model"]),
                **REQUESTS[name],
            )
        )
        if rng.random() < 0.5:  # a neighbour of another shape
            server.submit("weather " * rng.randrange(1, 30), max_tokens=rng.randrange(1, 40))
    for name, client in zip(names, clients, strict=True):
        assert answer(client) == reference[name]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16])
def test_any_prefill_chunking_gives_the_same_bits(models, tmp_path_factory, reference, chunk):
    server = start(
        models, tmp_path_factory, prefill_chunk_tokens=chunk, idle_prefill_chunk_tokens=chunk
    )
    clients = {name: server.submit(PROMPT, **sampling) for name, sampling in REQUESTS.items()}
    for name, client in clients.items():
        assert answer(client) == reference[name]
    server.stop()


def test_a_cached_prefix_gives_the_same_bits(server, reference):
    for prefix in (PROMPT[:9], PROMPT[:30], PROMPT + " and on", PROMPT):
        server.submit(prefix, max_tokens=5).wait()
        before = server.service.metrics.take()
        client = server.submit(PROMPT, **REQUESTS["temperature"])
        assert answer(client) == reference["temperature"]
        after = server.service.metrics.take()
        assert after.counters["prefix_cache_hits_total"] > 0, before


def test_seeds_differ(server):
    texts = {
        tuple(server.submit(PROMPT, temperature=1.0, seed=seed).wait().ids()) for seed in range(5)
    }
    assert len(texts) == 5
