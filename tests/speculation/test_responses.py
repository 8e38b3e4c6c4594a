"""Responses: deltas that add up, one body for all, shapes clients index, numbers JSON has."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.speculation.contract import NUMPY_TYPES, OUTPUTS
from specdec.speculation.responses import Responder
from specdec.types import Chunk, SpeculationStats, Speedup
from support.requests import column, parse_inputs

EVERYTHING = {
    "return_log_probs": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
    "return_perf_metrics": True,
    "return_output_ids": True,
}
TIMES = (
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
)


@dataclass
class Progress:
    stats: SpeculationStats = field(
        default_factory=lambda: SpeculationStats(num_draft_tokens=8, num_accepted_tokens=6)
    )
    num_reused: int = 1
    arrival_ns: int = 10
    scheduled_ns: int = 20
    first_token_ns: int = 30
    last_token_ns: int = 40


def chunk(text, ids, reason=None, from_draft=None):
    flags = (False,) * len(ids) if from_draft is None else from_draft
    lengths = (len(text), *(0 for _ in ids))[: len(ids)]
    logprobs = tuple(-float(i) for i in ids)
    return Chunk(text, tuple(ids), logprobs, tuple(flags), lengths, reason)


def responder(**inputs):
    return Responder(parse_inputs(**inputs))


def batch(*prompts, **inputs):
    limits = column([8] * len(prompts), np.int32)
    return responder(text_input=column(list(prompts)), max_tokens=limits, **inputs)


def test_a_stream_sends_each_delta():
    stream = responder(stream=True)
    first = stream.add(0, Progress(), chunk("Hel", [5, 6]))
    last = stream.add(0, Progress(), chunk("lo", [7], "length"))
    assert [r["text_output"].tolist() for r in (first, last)] == [[b"Hel"], [b"lo"]]
    assert [r["finish_reason"].tolist() for r in (first, last)] == [[b""], [b"length"]]
    assert set(first) == {"text_output", "finish_reason", "batch_index", "sequence_index"}
    assert first["batch_index"].tolist() == first["sequence_index"].tolist() == [[0]]


def test_clients_index_the_text_as_one_string_per_sequence():
    response = responder(stream=True).add(0, Progress(), chunk("é", [5]))
    assert response["text_output"][0].decode() == "é"
    assert response["batch_index"][0][0] == 0


def test_a_delta_that_holds_nothing_is_not_sent():
    stream = responder(stream=True)
    assert stream.add(0, Progress(), chunk("", [])) is None
    assert stream.add(0, Progress(), chunk("", [5])) is not None, "a token counts without text"
    assert stream.add(0, Progress(), chunk("", [], "cancelled")) is not None


def test_prompts_of_a_stream_are_told_apart():
    stream = batch("a", "b", stream=True, return_num_input_tokens=True)
    second = stream.add(1, Progress(), chunk("x", [5]))
    first = stream.add(0, Progress(), chunk("y", [6], "stop"))
    assert (second["batch_index"].item(), first["batch_index"].item()) == (1, 0)
    assert stream.add(1, Progress(), chunk("z", [7], "stop"))["batch_index"].item() == 1


def test_without_stream_one_body_comes_at_the_end():
    body = responder(**EVERYTHING)
    assert body.add(0, Progress(), chunk("Hel", [5, 6], from_draft=[False, True])) is None
    response = body.add(0, Progress(), chunk("lo", [7], "stop", from_draft=[True]))
    assert response["text_output"].tolist() == [b"Hello"]
    assert response["finish_reason"].tolist() == [b"stop"]
    assert response["output_ids"].tolist() == [[5, 6, 7]]
    assert response["from_draft"].tolist() == [[False, True, True]]
    assert response["output_log_probs"].tolist() == [[[-5.0, -6.0, -7.0]]]
    assert response["cum_log_probs"].tolist() == [[-18.0]]
    assert response["num_output_tokens"].tolist() == [[3]]


def test_a_batch_is_one_body_with_rows_filled_up():
    body = batch("a", "b", pad_id=99, **EVERYTHING)
    assert body.add(1, Progress(), chunk("long", [7, 8, 9], "length", [True] * 3)) is None
    response = body.add(0, Progress(), chunk("x", [5], "stop", [True]))
    assert response["text_output"].tolist() == [b"x", b"long"]
    assert response["finish_reason"].tolist() == [b"stop", b"length"]
    assert response["batch_index"].tolist() == [[0], [1]]
    assert response["output_ids"].tolist() == [[5, 99, 99], [7, 8, 9]]
    assert response["from_draft"].tolist() == [[True, False, False], [True] * 3]
    assert response["output_log_probs"].tolist() == [[[-5.0, 0.0, 0.0]], [[-7.0, -8.0, -9.0]]]
    assert response["num_output_tokens"].tolist() == [[1], [3]]


def test_the_body_starts_with_the_prompt_when_asked():
    body = responder(text_input="the fox", exclude_input_in_output=False)
    response = body.add(0, Progress(), chunk(" runs", [5], "stop"))
    assert response["text_output"].tolist() == [b"the fox runs"]


def test_performance_comes_with_the_last_chunk_only():
    stream = responder(text_input="", input_ids=[5, 6, 7], stream=True, **EVERYTHING)
    first = stream.add(0, Progress(), chunk("x", [5, 6]))
    assert not {"acceptance_rate", "total_draft_tokens", *TIMES} & set(first)
    last = stream.add(0, Progress(), chunk("y", [7], "length"))
    assert last["acceptance_rate"].tolist() == [[0.75]]
    assert last["total_draft_tokens"].tolist() == [[8]]
    assert last["total_accepted_draft_tokens"].tolist() == [[6]]
    assert [last[name].item() for name in TIMES] == [10, 20, 30, 40]
    # 3 prompt tokens of which 1 was cached, and 3 output tokens; a block is a token.
    assert last["kv_cache_alloc_total_blocks"].item() == 6
    assert last["kv_cache_reused_blocks"].item() == 1
    assert last["kv_cache_alloc_new_blocks"].item() == 5
    assert last["num_input_tokens"].item() == 3


def test_what_was_decided_is_told_with_the_last_chunk():
    stats = SpeculationStats(num_steps=5)
    for reason, tokens in (("cap", 3.0), ("load", 1.0), ("cap", 2.0), (None, 1.0)):
        stats.decided(reason, Speedup(2.0 * tokens, 2.5), Speedup(2.0 * tokens, 2.0))
    stats.decided("cost", None, Speedup(2.0, 2.0))  # beside a prompt nothing is predicted
    stream = responder(stream=True, return_perf_metrics=True)
    last = stream.add(0, Progress(stats), chunk("x", [5], "stop"))
    assert json.loads(last["draft_reasons"].item()) == {"cap": 2, "load": 1, "cost": 1}
    assert last["predicted_gain"].item() == pytest.approx(14 / 10)
    assert last["measured_gain"].item() == pytest.approx(16 / 10)
    assert last["num_target_passes"].item() == 5


def test_each_prompt_of_a_body_has_its_own_figures():
    body = batch("a", "b", return_perf_metrics=True)
    body.add(
        1,
        Progress(SpeculationStats(num_draft_tokens=4, num_accepted_tokens=1)),
        chunk("", [5], "stop"),
    )
    response = body.add(0, Progress(num_reused=0), chunk("", [5], "stop"))
    assert response["acceptance_rate"].tolist() == [[0.75], [0.25]]
    assert response["kv_cache_reused_blocks"].tolist() == [[0], [1]]


def test_no_drafts_is_a_rate_of_zero_not_nan():
    body = responder(return_perf_metrics=True)
    response = body.add(0, Progress(SpeculationStats()), chunk("x", [5], "stop"))
    assert response["acceptance_rate"].tolist() == [[0.0]]


def test_a_probability_of_zero_stays_a_json_number():
    stream = responder(stream=True, return_log_probs=True)
    lost = Chunk("x", (5,), (-float("inf"),), (False,), (1,), None)
    for _ in range(2):
        response = stream.add(0, Progress(), lost)
        assert np.isfinite(response["output_log_probs"]).all()
        assert np.isfinite(response["cum_log_probs"]).all()


def test_a_chunk_after_the_end_is_a_bug():
    for stream in (True, False):
        ended = batch("a", "b", stream=stream)
        ended.add(0, Progress(), chunk("", [5], "stop"))
        with pytest.raises(AssertionError):
            ended.add(0, Progress(), chunk("", [5]))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.text(max_size=3), st.lists(st.integers(3, 300), max_size=4)),
        min_size=1,
        max_size=6,
    )
)
def test_a_stream_adds_up_to_the_body(deltas):
    stream, body = responder(stream=True, **EVERYTHING), responder(**EVERYTHING)
    responses, whole = [], None
    for i, (text, ids) in enumerate(deltas):
        delta = chunk(text, ids, "length" if i == len(deltas) - 1 else None)
        responses.append(stream.add(0, Progress(), delta))
        whole = body.add(0, Progress(), delta)
    responses = [response for response in responses if response is not None]
    assert b"".join(r["text_output"][0] for r in responses) == whole["text_output"][0]
    assert (
        sum(r["num_output_tokens"].item() for r in responses) == whole["num_output_tokens"].item()
    )
    per_token = {"output_ids", "from_draft", "output_log_probs", "text_lengths"}
    for name in per_token:
        joined = np.concatenate([r[name] for r in responses], axis=-1)
        np.testing.assert_array_equal(joined, whole[name])
    last = responses[-1]
    for name in set(last) - {"text_output", "num_output_tokens"} - per_token:
        np.testing.assert_array_equal(last[name], whole[name])


@pytest.mark.parametrize("stream", [True, False])
def test_every_output_is_declared_and_of_its_type(stream):
    fields = {field.name: field for field in OUTPUTS}
    response = responder(stream=stream, **EVERYTHING).add(0, Progress(), chunk("x", [5], "stop"))
    for name, array in response.items():
        assert array.dtype == NUMPY_TYPES[fields[name].datatype], name
        is_text = fields[name].datatype == "STRING"
        assert array.ndim == (1 if is_text else 1 + len(fields[name].dims)), name
    never_sent = {"context_logits", "generation_logits"}
    assert set(response) == set(fields) - never_sent
