"""The public contract: batches, ends, prompts, outputs."""

import itertools
import json

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.serving import ALL, infer_request
from support.tiny import CHATML
from support.triton_client import Stream, infer_inputs

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox"
MODELS = ["speculative", "ensemble"]


@pytest.fixture(scope="module")
def reference(shared_server):
    return shared_server.ask(PROMPT, num_draft_tokens=0)


def column(values, dtype):
    return np.array(values, dtype=dtype)[:, None]


# ---- batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_batch_of_prompts(served, model, stream):
    prompts = [PROMPT, "def add(a, b):", "é", PROMPT]
    ks, seeds = [0, 4, 16, 8], [1, 2, 3, 4]
    inputs = {
        "text_input": column([p.encode() for p in prompts], np.object_),
        "max_tokens": column([24, 9, 1, 30], np.int32),
        "temperature": column([0, 1, 0.7, 0], np.float32),
        "num_draft_tokens": column(ks, np.int32),
        "seed": column(seeds, np.uint64),
        "end_id": column([-1] * 4, np.int32),
    }
    flags = ("return_output_ids", "return_log_probs", "return_num_output_tokens")
    inputs |= {name: column([True] * 4, np.bool_) for name in flags}
    inputs["stream"] = column([stream] * 4, np.bool_)
    answer = served.call(infer_request(model, **inputs)).finish()
    assert answer.num_final == 1
    assert len(answer.bodies) == 1 or stream
    if not stream:
        assert answer.bodies[0].as_numpy("text_output").shape == (4,)
        assert answer.bodies[0].as_numpy("batch_index").ravel().tolist() == [0, 1, 2, 3]
    for i, prompt in enumerate(prompts):
        alone = served.ask(
            prompt,
            max_tokens=[24, 9, 1, 30][i],
            temperature=[0, 1, 0.7, 0][i],
            seed=seeds[i],
            num_draft_tokens=0,
        )
        ids = alone.ids()
        assert answer.ids(i) == ids
        assert answer.text(i) == alone.text()
        assert answer.logprobs(i)[: len(ids)] == alone.logprobs()  # shorter rows are padded
        assert answer.count("num_output_tokens", i) == len(ids)
        assert answer.finish_reason(i) == "length"


# ---- where it ends -----------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_stop_words_cut_the_text(served, reference, model):
    """For every place in the text and every draft length the same end, ids and counts included."""
    text = reference.text()
    words = [text[start : start + 3] for start in (3, 11, 20)]
    for word, k, stream in itertools.product(words, (0, 3, 16), (True, False)):
        inputs = {**ALL, "text_input": PROMPT, "stop_words": [word, "never"], "stream": stream}
        inputs |= {"num_draft_tokens": k, "drafter": "draft_model"}
        answer = served.call(infer_request(model, **inputs)).finish()
        assert answer.text() == text[: text.index(word)]
        assert answer.finish_reason() == "stop"
        num_tokens = len(answer.ids())
        assert answer.ids() == reference.ids()[:num_tokens]
        assert answer.logprobs() == reference.logprobs()[:num_tokens]
        assert answer.count("num_output_tokens") == num_tokens


def test_an_end_id_inside_an_accepted_block(served, reference):
    for position, k in itertools.product((0, 5, 17), (0, 4, 16)):
        end_id = reference.ids()[position]
        expected = reference.ids()[: reference.ids().index(end_id) + 1]
        answer = served.ask(PROMPT, end_id=end_id, num_draft_tokens=k, drafter="draft_model")
        assert answer.ids() == expected
        assert answer.finish_reason() == "stop"
        longer = served.ask(
            PROMPT, end_id=end_id, num_draft_tokens=k, drafter="draft_model", min_tokens=20
        )
        assert end_id not in longer.ids()[:19]
        assert len(longer.ids()) >= 20


def test_the_longest_possible_sequence(served):
    """The prompt and max_tokens fill the slot to the last place; drafts do not overrun it."""
    ids = list(range(3, 300)) * 7
    room = 2048 - len(ids[:2000])
    answers = [
        served.ask(input_ids=ids[:2000], max_tokens=room, num_draft_tokens=k, drafter="draft_model")
        for k in (0, 16)
    ]
    assert len(answers[0].ids()) == room
    assert answers[0].bits == answers[1].bits


# ---- the prompt --------------------------------------------------------------------------


def test_input_ids_and_text_are_the_same_prompt(served, reference):
    counted = served.ask(PROMPT, return_num_input_tokens=True, stream=False)
    from tokenizers import Tokenizer

    path = served.server.log.parent / "models" / "target" / "1" / "tokenizer.json"
    ids = Tokenizer.from_file(str(path)).encode(PROMPT).ids
    assert counted.rows("num_input_tokens")[0][0] == len(ids)
    assert served.ask(input_ids=ids).bits == reference.bits
    whole = served.ask(input_ids=ids, stream=False, exclude_input_in_output=False)
    assert whole.text() == PROMPT + reference.text()


def test_messages_go_through_the_models_template(served):
    import jinja2

    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüße 👋"},
    ]
    text = jinja2.Template(CHATML).render(messages=messages, add_generation_prompt=True)
    answer = served.ask(messages=json.dumps(messages))
    assert answer.bits == served.ask(text).bits
    body = {"text_input": "", "messages": json.dumps(messages), "max_tokens": 24, "end_id": -1}
    assert served.generate(**body)["text_output"] == answer.text()


# ---- what comes back ---------------------------------------------------------------------


def test_only_what_was_asked_for_comes_back(served):
    always = {"text_output", "finish_reason", "batch_index", "sequence_index"}
    flags = {
        "return_log_probs": {"output_log_probs", "cum_log_probs"},
        "return_num_input_tokens": {"num_input_tokens"},
        "return_num_output_tokens": {"num_output_tokens"},
        "return_output_ids": {"output_ids", "from_draft", "text_lengths"},
    }
    for flag, names in {"": set(), **flags}.items():
        inputs = {"text_input": PROMPT, "max_tokens": 3} | ({flag: True} if flag else {})
        body = served.call(infer_request(**inputs)).finish().bodies[0]
        assert {output.name for output in body.get_response().outputs} == always | names


def test_perf_metrics_come_with_the_last_response(served):
    served.ask(PROMPT)  # so that some of it is cached
    answer = served.ask(
        PROMPT, return_perf_metrics=True, drafter="draft_model", num_draft_tokens=4, max_tokens=60
    )
    names = {f"kv_cache_{what}_blocks" for what in ("alloc_new", "reused", "alloc_total")} | {
        "acceptance_rate",
        "total_accepted_draft_tokens",
        "total_draft_tokens",
        "num_target_passes",
        "draft_reasons",
        "predicted_gain",
        "measured_gain",
    }
    times = [
        "arrival_time_ns",
        "first_scheduled_time_ns",
        "first_token_time_ns",
        "last_token_time_ns",
    ]
    assert all(len(answer.rows(name)) == 1 for name in [*names, *times])
    values = [int(answer.rows(name)[0][0]) for name in times]
    assert values == sorted(values)
    drafted, accepted = (answer.count(f"total_{kind}draft_tokens") for kind in ("", "accepted_"))
    assert 0 < accepted <= drafted
    assert answer.rows("acceptance_rate")[0][0] == pytest.approx(accepted / drafted)
    assert accepted == sum(int(row.sum()) for row in answer.rows("from_draft"))
    # One reason for each step but the prompt's and the last.
    reasons = json.loads(answer.rows("draft_reasons")[0])
    assert 0 < sum(reasons.values()) <= answer.count("num_target_passes") - 1
    assert min(answer.rows(f"{kind}_gain")[0][0] for kind in ("predicted", "measured")) > 0
    new, reused, total = (
        answer.count(f"kv_cache_{what}_blocks") for what in ("alloc_new", "reused", "alloc_total")
    )
    assert reused > 0
    assert new + reused == total


def test_deltas_sum_up(served, reference):
    answer = served.ask(PROMPT, drafter="draft_model", num_draft_tokens=8)
    assert len(answer.bodies) < 24  # several tokens in one response
    lengths = [len(row) for row in answer.rows("output_ids")]
    assert lengths == [int(row[0]) for row in answer.rows("num_output_tokens")]
    assert lengths == [row.size for row in answer.rows("output_log_probs")]
    assert lengths == [len(row) for row in answer.rows("text_lengths")]
    assert answer.rows("cum_log_probs")[-1] == pytest.approx(sum(reference.logprobs()), rel=1e-5)


def test_a_client_may_name_the_outputs_it_wants(served, reference):
    stream = Stream(served.grpc_url)
    stream.client.async_stream_infer(
        "speculative",
        infer_inputs(text_input=PROMPT, max_tokens=24, end_id=-1),
        outputs=[triton.InferRequestedOutput("text_output")],
        enable_empty_final_response=True,
    )
    result, error = stream.read()
    stream.close()
    assert error is None
    assert [output.name for output in result.get_response().outputs] == ["text_output"]
    assert result.as_numpy("text_output")[0].decode() == reference.text()


# ---- what a request leaves behind ---------------------------------------------------------


@pytest.mark.parametrize("drafter", ["auto", "draft_model"])
def test_requests_of_another_salt_find_nothing(served, drafter):
    """Of target and draft model; the text is the same all the same."""
    inputs = {"return_perf_metrics": True, "drafter": drafter}
    salts = [f"{drafter} 1", f"{drafter} 1", f"{drafter} 2"]
    answers = [served.ask(PROMPT * 12, **inputs, cache_salt=salt) for salt in salts]
    reused = [answer.count("kv_cache_reused_blocks") for answer in answers]
    assert reused[0] == reused[2] == 0 < reused[1]
    assert answers[0].bits == answers[1].bits == answers[2].bits
