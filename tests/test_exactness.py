"""Same request, same bits: over drafter x K x batch x chunking x cached prefix x precision.

Real graphs on ONNX Runtime through the whole stack, compared with plain decoding alone (K = 0).
"""

import random
import string

import numpy as np
import pytest

from specdec.config import DecoderConfig
from specdec.decoder.decoder import load_decoder
from specdec.drafters._memory import Memory
from specdec.speculation import verifier
from specdec.speculation.acceptance import accept
from specdec.speculation.tokenization import TextTokenizer
from specdec.types import SamplingParams
from specdec.wire import RemoteDecoder
from support.decoding import generate
from support.heads import export_tiny_head, random_head
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
DRAFTERS = ["ngram", "recycle", "auto", "draft_model", "eagle"]  # chains and trees
PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown fox"


@pytest.fixture(scope="module", params=["fp32", "int8", "w8a8", "int4"])
def models(request, tmp_path_factory):
    """A target, a draft that agrees with it now and then (the same weights, fewer bits), and a
    random head, whose trees are wide enough to be right by chance."""
    root = tmp_path_factory.mktemp(request.param)
    target = export_tiny(root / "target", request.param, hidden_size=128)
    draft = export_tiny(root / "draft", "int4", hidden_size=128)
    whole = export_tiny(root / "whole", hidden_size=128)  # whose tables a head can read
    head, _ = random_head(root / "whole/model")
    return {"target": target, "draft": draft, "eagle": export_tiny_head(root, whole, head)}


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
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_draft_length_gives_the_same_bits(server, reference, name, drafter):
    for num_draft_tokens in range(17):
        client = server.submit(
            PROMPT, num_draft_tokens=num_draft_tokens, drafter=drafter, **REQUESTS[name]
        )
        assert answer(client) == reference[name], (drafter, num_draft_tokens)


@pytest.fixture
def stops(monkeypatch):
    """Lets a draft model lose its confidence anywhere; returns how many draft tokens were left out
    of each of its calls."""
    rng, missing = random.Random(0), []
    extend = RemoteDecoder.extend

    def losing(decoder, calls):
        if not any(call.num_draft_steps for call in calls):
            return extend(decoder, calls)  # the target's
        leasts = [rng.choice((float("-inf"), -10 * rng.random())) for _ in calls]
        result = extend(
            decoder,
            [c._replace(least_logprob=p) for c, p in zip(calls, leasts, strict=True)],
        )
        for call, found in zip(calls, result.sequences, strict=True):
            missing.append(call.num_outputs + call.num_draft_steps - len(found.token_ids))
        return result

    monkeypatch.setattr(RemoteDecoder, "extend", losing)
    return missing


def test_drafts_that_stop_give_the_same_bits(server, reference, stops):
    """Each sequence of a batch somewhere else, in every step."""
    server.service.metrics.take()
    clients = [
        (name, server.submit(PROMPT, num_draft_tokens=k, drafter="draft_model", **sampling))
        for name, sampling in REQUESTS.items()
        for k in (2, 5, 16)
    ]
    for name, client in clients:
        assert answer(client) == reference[name]
    assert "draft_errors_total" not in server.service.metrics.take().counters
    assert 0.1 * len(stops) < sum(size > 0 for size in stops) < 0.8 * len(stops)


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
                drafter=rng.choice(["none", *DRAFTERS]),
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


def alone(models, prompt_ids, sampling, num_tokens=24):
    """Plain decoding of the target by hand, nothing cached: ids and float32 log-probabilities."""
    decoder = load_decoder(DecoderConfig(max_sequences=1, num_threads=1), models["target"])
    ids, logprobs = generate(decoder, prompt_ids, sampling, num_tokens)
    return ids, [float(np.float32(p)) for p in logprobs]


SAMPLED = {"temperature": 1.0, "seed": 9}
# Each changes SAMPLED. Penalties are negative: a reward for repetition shows in every text.
NUMBERS = [
    {"temperature": 0.5},
    {"seed": 2**64 - 1},
    {"top_k": 3},
    {"top_p": 0.5},
    {"min_p": 0.25},
    {"repetition_penalty": 0.25},
    {"presence_penalty": -6.0},
    {"frequency_penalty": -3.0},
]
LETTERS = [*string.ascii_letters]


def cases(encode):
    """(inputs, what the sampler must be told); `encode`: text -> token ids."""
    yield from ((numbers, numbers) for numbers in NUMBERS)
    bad_words = tuple(encode(text) for letter in LETTERS for text in (letter, f" {letter}"))
    yield {"bad_words": LETTERS}, {"bad_words": bad_words}
    bias = tuple((encode(letter)[0], 4.0) for letter in LETTERS)
    words = {"embedding_bias_words": LETTERS, "embedding_bias_weights": [4.0] * len(LETTERS)}
    yield words, {"logit_bias": bias}


def test_every_sampling_input_reaches_the_sampler(server, models):
    """Were one dropped on the way, all draft lengths would still agree with each other."""
    tokenizer = TextTokenizer.from_directory(models["target"])
    prompt_ids = tokenizer.encode(PROMPT)
    without = alone(models, prompt_ids, SamplingParams(**SAMPLED))
    for inputs, told in cases(tokenizer.encode_plain):
        expected = alone(models, prompt_ids, SamplingParams(**SAMPLED | told))
        assert expected != without, told
        clients = [server.submit(PROMPT, drafter=d, **SAMPLED | inputs) for d in DRAFTERS]
        assert [answer(client)[:2] for client in clients] == [expected] * len(clients), told


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_min_tokens_masks_the_same_rows_at_every_draft_length(server, models, drafter):
    """An end id that the text wants as its third token, inside a block or not."""
    prompt_ids = TextTokenizer.from_directory(models["target"]).encode(PROMPT)
    plain, _ = alone(models, prompt_ids, SamplingParams(), 10)
    end_id = plain[2]
    for min_tokens in range(7):
        sampling = SamplingParams(min_tokens=min_tokens, end_ids=(end_id,))
        ids, logprobs = alone(models, prompt_ids, sampling, 10)
        end = ids.index(end_id) + 1 if end_id in ids else 10
        clients = [
            server.submit(
                PROMPT,
                num_draft_tokens=k,
                drafter=drafter,
                max_tokens=10,
                min_tokens=min_tokens,
                end_id=end_id,
            )
            for k in range(5)
        ]
        for k, client in enumerate(clients):
            assert answer(client)[:2] == (ids[:end], logprobs[:end]), (min_tokens, k)


def test_a_target_that_drafts_for_itself_is_always_right(models, tmp_path_factory):
    """Turn after turn over what earlier turns left in both caches, each with another sampling and
    draft length, and ended inside an accepted block."""
    itself = {"target": models["target"], "draft": models["target"]}
    server = start(itself, tmp_path_factory)
    tokens = [*TextTokenizer.from_directory(models["target"]).encode(PROMPT)]
    num_cached = 0
    for k, sampling in zip((4, 1, 16, 2, 8, 3), REQUESTS.values(), strict=True):
        ids, logprobs = alone(models, tokens, SamplingParams(**in_float32(sampling)))
        end = ids.index(ids[12]) + 1
        client = server.submit(
            input_ids=tokens,
            drafter="draft_model",
            num_draft_tokens=k,
            end_id=ids[12],
            return_perf_metrics=True,
            **sampling,
        )
        assert answer(client)[:2] == (ids[:end], logprobs[:end])
        assert client.finish_reason() == "stop"
        assert client.rows("kv_cache_reused_blocks") == [num_cached]
        blocks = [row.tolist() for row in client.rows("from_draft")]
        whole = [True] * k + [False]
        assert blocks[0] == [False]
        assert all(block == whole for block in blocks[1:-1])
        assert blocks[-1] == whole[: len(blocks[-1])]
        num_cached = len(tokens) + end - 1  # the last token is never evaluated
        tokens += [*ids[:end], 5, 9]
    server.stop()


def in_float32(sampling):
    """The values as they arrive."""
    return {n: float(np.float32(v)) if isinstance(v, float) else v for n, v in sampling.items()}


@pytest.fixture
def carries(monkeypatch):
    """What passes emitted and drew on a branch behind it; many, for of every other pair of tokens
    the memory takes the likeliest for the second and so leads trunks astray."""
    found, learn = [], Memory.learn

    def watched(proposal, sampled_ids):
        accepted = accept(proposal, sampled_ids)
        if accepted.carry:
            emitted = sampled_ids[: accepted.num_accepted + 1]
            found.append((list(emitted), list(accepted.carry)))
        return accepted

    def turned(self, before, last, candidate_ids, salt=0):
        first, second, third = candidate_ids
        is_turned = (before + last) % 2
        ids = [second, first, third] if is_turned else candidate_ids
        learn(self, before, last, ids, salt)

    monkeypatch.setattr(verifier, "accept", watched)
    monkeypatch.setattr(Memory, "learn", turned)
    return found


# What a row forbids or favours depends on the tokens before it: on those of its own branch.
PATHS = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 11},
    "penalties": REQUESTS["penalties"],
    "greedy penalties": REQUESTS["greedy penalties"],
    "bad words": {"bad_words": ["e", " t", "th", "qu", "a b"], "temperature": 0.9, "seed": 4},
    "rewarded repetition": {"frequency_penalty": -1.5, "presence_penalty": -1.0, "seed": 6},
}


@pytest.mark.parametrize("name", [*PATHS, "min tokens"])
@pytest.mark.parametrize("drafter", ["recycle", "auto"])
def test_branches_that_are_taken_give_the_same_bits(
    models, tmp_path_factory, carries, name, drafter
):
    server = start(models, tmp_path_factory, drafter=drafter)
    sampling = {"max_tokens": 40, **PATHS.get(name, {})}
    if name == "min tokens":  # an end id that the text wants from its sixth token on
        wanted = server.submit(PROMPT, num_draft_tokens=0).wait().ids()[5]
        sampling |= {"min_tokens": 25, "end_id": wanted}
    plain = answer(server.submit(PROMPT, num_draft_tokens=0, **sampling))
    for num_draft_tokens in (16, 3, 8, 16):  # the first finds an empty memory
        clients = [
            server.submit(PROMPT, num_draft_tokens=k, **sampling) for k in (num_draft_tokens, 5)
        ]
        assert [answer(client) for client in clients] == [plain] * 2, num_draft_tokens
    server.stop()
    assert len(carries) >= 5
    # What a branch drew is what the text goes on with: penalties and masks follow the branch.
    right = [follows(plain[0], emitted, carry) for emitted, carry in carries]
    assert sum(right) >= 0.9 * len(right)


def follows(token_ids, emitted, carry):
    """Whether the text goes on like that somewhere, as far as it goes."""
    for start in range(len(token_ids) - len(emitted) + 1):
        there = token_ids[start : start + len(emitted) + len(carry)]
        if there == [*emitted, *carry][: len(there)]:
            return True
    return False
