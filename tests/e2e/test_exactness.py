"""Through the real server: the same request gives the same bits, however it was drafted."""

import itertools
import random

import pytest

from specdec.launcher.server_log import loaded_models
from support.serving import ALL
from support.triton_client import stream_text

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown fox"
REQUESTS = {
    "greedy": {},
    "sampled": {
        "temperature": 0.9,
        "top_p": 0.95,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "seed": 2**63 + 5,
    },
}
DRAFT_LENGTHS = (0, 1, 2, 4, 8, 16)
DRAFTERS = ("ngram", "recycle", "auto", "draft_model", "eagle")


@pytest.fixture(scope="module")
def reference(shared_server):
    """What the target writes by itself, one request at a time. Its head runs in `speculative`."""
    assert "eagle" not in loaded_models(shared_server.server.log.read_text())
    answers = {
        name: shared_server.ask(PROMPT, num_draft_tokens=0, **sampling)
        for name, sampling in REQUESTS.items()
    }
    assert all(len(answer.ids()) == ALL["max_tokens"] for answer in answers.values())
    assert not any(any(row) for a in answers.values() for row in a.rows("from_draft"))
    assert answers["greedy"].ids() != answers["sampled"].ids()
    return {name: answer.bits for name, answer in answers.items()}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_draft_length_alone(served, reference, name, drafter):
    num_accepted = {}
    for k in DRAFT_LENGTHS:
        answer = served.ask(
            PROMPT,
            num_draft_tokens=k,
            drafter=drafter,
            return_perf_metrics=True,
            **REQUESTS[name],
        )
        assert answer.bits == reference[name], k
        num_accepted[k] = answer.count("total_accepted_draft_tokens")
        assert num_accepted[k] == sum(int(row.sum()) for row in answer.rows("from_draft"))
    assert num_accepted[0] == 0
    if drafter == "draft_model":
        assert all(num_accepted[k] for k in DRAFT_LENGTHS[1:])  # or nothing was compared


@pytest.mark.parametrize("seed", range(2))
def test_every_draft_length_among_twelve(served, reference, seed):
    """All combinations, in batches of twelve that differ in everything; some neighbours too."""
    jobs = list(itertools.product(REQUESTS, DRAFTERS, DRAFT_LENGTHS))
    rng = random.Random(seed)
    rng.shuffle(jobs)
    for start in range(0, len(jobs), 12):
        batch = jobs[start : start + 12]
        calls = [
            served.call(
                text_input=PROMPT,
                num_draft_tokens=k,
                drafter=drafter,
                adaptive=rng.random() < 0.3,
                **REQUESTS[name],
            )
            for name, drafter, k in batch
        ]
        neighbours = [
            served.call(text_input="weather " * rng.randrange(1, 60), max_tokens=9)
            for _ in range(4)
        ]
        for job, call in zip(batch, calls, strict=True):
            assert call.finish().bits == reference[job[0]], job
        assert not any(call.finish().errors for call in neighbours)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("model", ["speculative", "ensemble"])
def test_every_protocol_gives_the_same_text(served, reference, name, drafter, model):
    options = {"max_tokens": ALL["max_tokens"], "end_id": -1, "drafter": drafter, **REQUESTS[name]}
    text = reference[name][2]
    whole = served.post(model=model, json={"text_input": PROMPT, **options}).json()
    assert whole["text_output"] == text
    events = list(served.events(model, text_input=PROMPT, stream=True, **options))
    assert "".join(event["text_output"] for event in events) == text
    assert stream_text(served.grpc_url, model, PROMPT, **options) == text


def test_a_prompt_in_chunks_and_a_cached_prompt(served):
    """A long prompt beside a running sequence is read in chunks, and the second time not at all."""
    prompt = "a prompt that is longer than a chunk of the prefill " * 12
    reference = served.ask(prompt, num_draft_tokens=0)
    other = served.call(text_input="other", max_tokens=400)
    other.read()
    longer = served.call(text_input=prompt + "and on", num_draft_tokens=0).finish()
    again = served.ask(prompt, drafter="draft_model", return_perf_metrics=True)
    assert again.bits == reference.bits
    assert again.count("kv_cache_reused_blocks") > 100
    assert not other.finish().errors
    assert served.ask(prompt + "and on").bits == longer.bits
