"""The loop over scripted models: exact output, counted calls, faults, and nothing left behind."""

import random

import pytest

from specdec.errors import Cancelled, DecoderFailed, Overloaded
from support.engine import Harness, make_drafter
from support.fakes import ScriptedDecoder, ScriptedDrafter, hash_text, reference_text

WRONG = {
    "never": lambda position: False,
    "always": lambda position: True,
    "every third": lambda position: position % 3 == 0,
    "random": lambda position: random.Random(position).random() < 0.4,
}
PROMPTS = [[3, 1, 4], [1, 5], [9, 2, 6, 5, 3, 5], [8], [9, 7, 9, 7, 9, 7]]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["none", "ngram", "scripted", "draft_model"])
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 3, 5, 8, 16])
def test_output_is_the_targets_own(name, num_draft_tokens, wrong):
    harness = Harness()
    drafter = make_drafter(name, is_wrong=WRONG[wrong])
    for prompt in PROMPTS:
        harness.submit(prompt, 25, drafter=drafter, num_draft_tokens=num_draft_tokens)
    harness.run()
    for prompt, sink in zip(PROMPTS, harness.sinks, strict=True):
        assert sink.token_ids == reference_text(prompt, 25, hash_text)
        assert sink.logprobs == [-float(t) for t in sink.token_ids]
        assert sink.finish_reason == "length"


def test_a_batch_mixes_drafters_and_lengths():
    harness = Harness()
    kinds = ["none", "ngram", "scripted", "draft_model"]
    drafters = {name: make_drafter(name, is_wrong=WRONG["every third"]) for name in kinds}
    rng = random.Random(0)
    prompts = [[rng.randrange(1, 50) for _ in range(rng.randrange(1, 30))] for _ in range(40)]
    for number, prompt in enumerate(prompts):
        drafter = drafters[kinds[number % 4]]
        harness.submit(prompt, 1 + number, drafter=drafter, num_draft_tokens=number % 7)
    harness.run()
    for number, (prompt, sink) in enumerate(zip(prompts, harness.sinks, strict=True)):
        assert sink.token_ids == reference_text(prompt, 1 + number, hash_text)


def test_a_perfect_draft_is_accepted_whole():
    harness = Harness()
    drafter = ScriptedDrafter()
    sink = harness.submit([5], 21, drafter=drafter, num_draft_tokens=4)
    harness.run()
    # The prompt's pass gives one token; then each pass gives 4 drafts and a bonus: 1 + 4 * 5.
    assert len(harness.target.calls) == 5
    assert drafter.num_calls == 4
    from_draft = [flag for chunk in sink.chunks for flag in chunk.from_draft]
    assert from_draft == [False] + [True, True, True, True, False] * 4


def test_no_draft_call_at_zero():
    harness = Harness()
    drafter = ScriptedDrafter()
    harness.submit([5], 10, drafter=drafter, num_draft_tokens=0)
    harness.run()
    assert drafter.num_calls == 0
    assert len(harness.target.calls) == 10


def test_draft_calls_do_not_grow_with_the_batch():
    harness, draft = Harness(), ScriptedDecoder()
    drafter = make_drafter("draft_model", draft)
    for prompt in PROMPTS:
        harness.submit(prompt, 21, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert len(harness.target.calls) == 5
    assert len(draft.calls) == 4
    assert not draft.caches


def test_the_last_tokens_are_not_overdrafted():
    harness = Harness()
    harness.submit([5], 3, drafter=ScriptedDrafter(), num_draft_tokens=8)
    harness.run()
    # 3 tokens: one from the prompt's pass, then one draft and the bonus.
    assert [len(call[0].token_ids) for call in harness.target.calls] == [1, 2]


@pytest.mark.parametrize("name", ["ngram", "scripted", "draft_model"])
def test_every_token_is_computed_once_plus_rejected_drafts(name):
    harness = Harness()
    drafter = make_drafter(name, is_wrong=WRONG["random"])
    harness.submit([7, 8, 9] * 5, 40, drafter=drafter, num_draft_tokens=5)
    harness.run()
    assert harness.target.num_tokens_fed <= 15 + len(harness.target.calls) * 6


def test_a_draft_with_a_short_context_stops_drafting():
    harness = Harness()
    drafter = make_drafter("draft_model", ScriptedDecoder(max_sequence_length=20))
    sink = harness.submit([5, 6], 60, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert sink.token_ids == reference_text([5, 6], 60, hash_text)


def test_a_long_prompt_is_prefilled_in_chunks_and_nobody_waits():
    harness = Harness(prefill_chunk_tokens=10, idle_prefill_chunk_tokens=20)
    first = harness.submit([1, 2], 60)
    harness.step(3)
    prompt = [1 + i % 40 for i in range(95)]
    second = harness.submit(prompt, 5)
    before = len(first.token_ids)
    harness.step(10)
    assert len(first.token_ids) == before + 10  # one token a step, as if alone
    assert len(second.token_ids) == 1
    harness.run()
    assert second.token_ids == reference_text(prompt, 5, hash_text)
    assert max(len(c.token_ids) for call in harness.target.calls for c in call) == 10


@pytest.mark.parametrize("num_reused", [0, 1, 50, 94, 200])
def test_a_cached_prefix_is_not_computed_again(num_reused):
    harness = Harness(target=ScriptedDecoder(num_reused=num_reused))
    prompt = [1 + i % 40 for i in range(95)]
    sink = harness.submit(prompt, 5)
    harness.run()
    assert sink.token_ids == reference_text(prompt, 5, hash_text)
    assert harness.target.num_tokens_fed == 95 - min(num_reused, 94) + 4


@pytest.mark.parametrize("fail_at", [0, 1, 3])
def test_a_draft_error_degrades_to_plain_decoding(fail_at):
    harness = Harness()
    drafter = make_drafter("draft_model", ScriptedDecoder(fail_at=[fail_at]))
    sink = harness.submit([5, 6], 30, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert sink.token_ids == reference_text([5, 6], 30, hash_text)
    assert harness.metrics.take().counters["draft_errors_total"] == 1


def test_a_draft_without_a_free_slot_fails_only_that_request():
    harness, draft = Harness(), ScriptedDecoder(max_sequences=1)
    drafter = make_drafter("draft_model", draft)
    for prompt in ([5, 6], [7, 8]):
        harness.submit(prompt, 21, drafter=drafter, num_draft_tokens=4)
    harness.run()
    for prompt, sink in zip(([5, 6], [7, 8]), harness.sinks, strict=True):
        assert sink.token_ids == reference_text(prompt, 21, hash_text)
    assert harness.metrics.take().counters["draft_errors_total"] == 1
    assert len(draft.calls) == 4  # the first request kept its draft


def test_a_target_error_ends_the_affected_and_leaves_no_slot():
    harness = Harness(target=ScriptedDecoder(fail_at=[3]))
    drafter = make_drafter("draft_model")
    affected = [harness.submit(p, 30, drafter=drafter, num_draft_tokens=2) for p in PROMPTS]
    harness.run()
    assert all(isinstance(sink.error, DecoderFailed) for sink in affected)
    after = harness.submit([5], 5)
    harness.run()
    assert after.token_ids == reference_text([5], 5, hash_text)


def test_cancel_frees_the_slot_in_one_step():
    harness = Harness()
    drafter = ScriptedDrafter()
    gone = harness.submit([5], 100, drafter=drafter, num_draft_tokens=2)
    stays = harness.submit([6], 30)
    harness.step(2)
    gone.cancelled = True
    calls = len(harness.target.calls)
    harness.step()
    assert isinstance(gone.error, Cancelled)
    assert not drafter.open
    assert [len(call) for call in harness.target.calls[calls:]] == [1]
    harness.run()
    assert stays.token_ids == reference_text([6], 30, hash_text)


def test_cancel_while_waiting():
    harness = Harness(max_running=1)
    harness.submit([5], 10)
    waiting = harness.submit([6], 10)
    harness.step()
    waiting.cancelled = True
    harness.run()
    assert isinstance(waiting.error, Cancelled)
    assert harness.target.num_opened == 1


def test_the_waiting_line_is_bounded():
    harness = Harness(max_running=2, max_waiting=3)
    for number in range(5):
        harness.submit([number + 1], 5)
    with pytest.raises(Overloaded, match="3 may wait"):
        harness.submit([9], 5)
    harness.run()
    assert [sink.finish_reason for sink in harness.sinks] == ["length"] * 5


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4, 16])
def test_an_end_id_inside_an_accepted_block_ends_everything_there(num_draft_tokens):
    text = reference_text([5], 30, hash_text)
    end_id = text[11]
    harness = Harness()
    sink = harness.submit(
        [5], 30, drafter=ScriptedDrafter(), num_draft_tokens=num_draft_tokens, end_ids=(end_id,)
    )
    harness.run()
    end = text.index(end_id) + 1
    assert sink.token_ids == text[:end]
    assert sink.finish_reason == "stop"
    counters = harness.metrics.take().counters
    assert counters["generation_tokens_total"] == end
    accepted = sum(flag for chunk in sink.chunks for flag in chunk.from_draft)
    assert counters.get("spec_decode_num_accepted_tokens_total", 0) == accepted


def test_counters_add_up():
    harness = Harness()
    drafter = ScriptedDrafter(is_wrong=WRONG["every third"])
    for prompt in PROMPTS:
        harness.submit(prompt, 33, drafter=drafter, num_draft_tokens=3)
    harness.run()
    taken = harness.metrics.take()
    assert taken.counters["generation_tokens_total"] == 33 * len(PROMPTS)
    accepted = taken.counters["spec_decode_num_accepted_tokens_total"]
    assert accepted == sum(taken.per_position.values())
    assert taken.counters["requests_finished_total"] == len(PROMPTS)
    assert len(taken.observations["time_to_first_token_seconds"]) == len(PROMPTS)


def test_stop_ends_open_requests_with_an_error():
    harness = Harness()
    sink = harness.submit([5], 100)
    harness.step()
    harness.engine.stop()
    harness.engine.run()
    assert "shutting down" in str(sink.error)
    harness.check_idle()
    with pytest.raises(Exception, match="shutting down"):
        harness.submit([5], 1)


def test_a_bug_in_a_drafter_fails_its_step_and_not_the_server():
    class Broken(ScriptedDrafter):
        def propose(self, views, limits):
            raise ZeroDivisionError

    harness = Harness()
    sink = harness.submit([5], 10, drafter=Broken(), num_draft_tokens=2)
    import threading

    thread = threading.Thread(target=harness.engine.run, daemon=True)
    thread.start()
    for _ in range(200):
        if sink.num_endings:
            break
        threading.Event().wait(0.01)
    assert str(sink.error) == "internal error"
    after = harness.submit([6], 5)
    for _ in range(200):
        if after.num_endings:
            break
        threading.Event().wait(0.01)
    assert after.token_ids == reference_text([6], 5, hash_text)
    harness.engine.stop()
    thread.join(5)
    assert not thread.is_alive()
