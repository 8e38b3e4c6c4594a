"""The loop over scripted models: exact output, counted calls, faults, and nothing left behind."""

import random
from itertools import takewhile

import pytest

from specdec.errors import Cancelled, DecoderFailed, Overloaded
from specdec.speculation.controller import Controller
from support.engine import DRAFTERS, Harness, make_drafter
from support.fakes import ScriptedDecoder, ScriptedDrafter, hash_text, reference_text

WRONG = {
    "never": lambda position: False,
    "always": lambda position: True,
    "every third": lambda position: position % 3 == 0,
    "random": lambda position: random.Random(position).random() < 0.4,
}
PROMPTS = [[3, 1, 4], [1, 5], [9, 2, 6, 5, 3, 5], [8], [9, 7, 9, 7, 9, 7]]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", DRAFTERS)
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
    kinds = DRAFTERS
    drafters = {name: make_drafter(name, is_wrong=WRONG["every third"]) for name in kinds}
    rng = random.Random(0)
    prompts = [[rng.randrange(1, 50) for _ in range(rng.randrange(1, 30))] for _ in range(40)]
    for number, prompt in enumerate(prompts):
        drafter = drafters[kinds[number % len(kinds)]]
        harness.submit(prompt, 1 + number, drafter=drafter, num_draft_tokens=number % 7)
    harness.run()
    for number, (prompt, sink) in enumerate(zip(prompts, harness.sinks, strict=True)):
        assert sink.token_ids == reference_text(prompt, 1 + number, hash_text)


# The others learn from every request: the text is the same, its blocks need not be.
@pytest.mark.parametrize("name", ["ngram", "scripted", "scripted_tree", "draft_model"])
def test_the_same_request_is_accepted_in_the_same_blocks(name):
    """Alone, once more, and beside others: as many tokens in every step."""

    def blocks(num_others):
        harness = Harness()
        drafter = make_drafter(name, is_wrong=WRONG["random"])
        for number in range(num_others):
            harness.submit([number + 1] * 9, 30, drafter=drafter, num_draft_tokens=number % 6)
        sink = harness.submit([9, 7] * 5, 60, drafter=drafter, num_draft_tokens=5)
        harness.run()
        return [len(chunk.token_ids) for chunk in sink.chunks]

    alone = blocks(0)
    assert max(alone) > 1
    assert blocks(0) == blocks(1) == blocks(7) == alone


@pytest.mark.parametrize("num_draft_tokens", [1, 8, 16])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_sequence_may_fill_its_slot_to_the_last_place(name, num_draft_tokens):
    """The scripted decoders assert that nothing is written behind it."""
    harness = Harness(target=ScriptedDecoder(max_sequence_length=40))
    drafter = make_drafter(name, max_sequence_length=40)
    prompt = [3, 1, 4] * 4
    sink = harness.submit(prompt, 28, drafter=drafter, num_draft_tokens=num_draft_tokens)
    harness.run()
    assert sink.token_ids == reference_text(prompt, 28, hash_text)
    assert (sink.finish_reason, sink.error) == ("length", None)


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


@pytest.mark.parametrize("name", DRAFTERS[1:])
def test_every_token_is_computed_once_plus_rejected_drafts(name):
    harness = Harness()
    drafter = make_drafter(name, is_wrong=WRONG["random"])
    harness.submit([7, 8, 9] * 5, 40, drafter=drafter, num_draft_tokens=5)
    harness.run()
    assert harness.target.num_tokens_fed <= 15 + len(harness.target.calls) * 6


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 8])
@pytest.mark.parametrize("wrong", WRONG)
def test_the_draft_follows_every_committed_token(wrong, num_draft_tokens):
    """It errs for good once its cache lacks a token: this one's next token depends on all."""

    def next_token(token_ids):
        return hash_text(token_ids, memory=1000)

    is_wrong = WRONG[wrong]
    draft = ScriptedDecoder(lambda ids: 0 if is_wrong(len(ids)) else next_token(ids))
    harness = Harness(target=ScriptedDecoder(next_token))
    drafter = make_drafter("draft_model", draft)
    sink = harness.submit([7, 8, 9], 40, drafter=drafter, num_draft_tokens=num_draft_tokens)
    harness.run()
    position = 4  # of the first draft token: the prompt's pass gave one token
    for chunk in sink.chunks[1:]:
        drafted = range(position, position + min(num_draft_tokens, 42 - position))
        right = list(takewhile(lambda place: not is_wrong(place), drafted))
        assert chunk.from_draft == (*[True] * len(right), False)
        position += len(chunk.token_ids)
    assert position == 43
    # It is fed the prompt once, then what is new: after a full acceptance two tokens.
    assert draft.num_tokens_fed <= 3 + len(draft.calls) * (num_draft_tokens + 1)


def test_a_draft_with_a_short_context_stops_drafting():
    harness = Harness()
    drafter = make_drafter("draft_model", ScriptedDecoder(max_sequence_length=20))
    sink = harness.submit([5, 6], 60, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert sink.token_ids == reference_text([5, 6], 60, hash_text)


def test_a_prompt_the_draft_cannot_hold_is_decoded_plainly():
    harness, draft = Harness(), ScriptedDecoder(max_sequence_length=20)
    drafter = make_drafter("draft_model", draft)
    prompt = [1 + i % 40 for i in range(25)]
    sink = harness.submit(prompt, 30, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert sink.token_ids == reference_text(prompt, 30, hash_text)
    assert (draft.num_opened, draft.calls) == (0, [])
    assert "draft_errors_total" not in harness.metrics.take().counters


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


@pytest.mark.parametrize("fail_at", [0, 1, 3])
def test_a_draft_error_leaves_no_slot_and_the_next_request_drafts(fail_at):
    harness, draft = Harness(), ScriptedDecoder(fail_at=[fail_at])
    drafter = make_drafter("draft_model", draft)
    harness.submit([5, 6], 30, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert not draft.caches
    after = harness.submit([5, 6], 21, drafter=drafter, num_draft_tokens=4)
    harness.run()
    assert [len(chunk.token_ids) for chunk in after.chunks] == [1, 5, 5, 5, 5]
    assert not draft.caches


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


def test_prompts_of_a_failed_request_are_dropped_but_nobody_cancelled_them():
    harness = Harness(max_running=2)
    running, gone = harness.submit([5], 10), harness.submit([6], 10)
    waiting = harness.submit([7], 10)
    harness.step()
    running.closed = waiting.closed = gone.cancelled = True
    harness.run()
    assert harness.target.num_opened == 2
    assert harness.metrics.take().counters["requests_cancelled_total"] == 1


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


@pytest.mark.parametrize("ending", ["end id", "stop word", "length"])
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4, 16])
@pytest.mark.parametrize("name", ["scripted", "draft_model"])
def test_the_caches_keep_what_was_returned_and_no_more(name, num_draft_tokens, ending):
    """Drafts accepted behind the end must not become the prefix of the next turn."""
    prompt, text = [5], reference_text([5], 30, hash_text)
    last = text[11]
    options = {
        "end id": {"max_tokens": 30, "end_ids": (last,)},
        "stop word": {"max_tokens": 30, "stop_words": [f" {last} "]},
        "length": {"max_tokens": text.index(last) + 1},
    }[ending]
    harness, draft = Harness(), ScriptedDecoder()
    drafter = make_drafter(name, draft)
    sink = harness.submit(prompt, drafter=drafter, num_draft_tokens=num_draft_tokens, **options)
    harness.run()
    assert sink.token_ids == text[: text.index(last) + 1]
    assert sink.finish_reason == ("length" if ending == "length" else "stop")
    num_committed = len(prompt) + len(sink.token_ids)
    # The last token never was in the cache.
    assert harness.target.closed == [(1, num_committed - 1)]
    assert all(length < num_committed for _, length in draft.closed)
    assert bool(draft.closed) == (name == "draft_model" and num_draft_tokens > 0)


def test_draft_tokens_are_counted_as_the_target_saw_them(monkeypatch):
    """Lengths vary by step and by request, proposals are cut, and texts end early: nothing is
    taken from the cap or from what was offered."""

    trim = Controller.trim

    def cut(control, candidates, proposals, **options):
        trim(control, candidates, proposals, **options)
        pairs = zip(candidates, proposals, strict=True)
        return [p.first(2 + c.sequence_id % 3) for c, p in pairs]

    monkeypatch.setattr(Controller, "trim", cut)
    harness = Harness()
    kinds = DRAFTERS
    drafters = [make_drafter(kind, is_wrong=WRONG["random"]) for kind in kinds]
    for number in range(16):
        harness.submit(
            [1 + number % 3, 9, 4] * 3,
            3 + 4 * number,
            drafter=drafters[number % len(kinds)],
            num_draft_tokens=number % 7,
            end_ids=(1 + number, 2 + number),
        )
    sequences = list(harness.engine.scheduler.waiting)
    harness.run()
    assert {sink.finish_reason for sink in harness.sinks} == {"length", "stop"}
    verified = {s.sequence_id: [] for s in sequences}
    for share in (share for call in harness.target.calls for share in call):
        if share.num_outputs > 1:
            verified[share.sequence_id].append(share.num_outputs - 1)
    assert len({length for lengths in verified.values() for length in lengths}) >= 3
    for sequence, sink in zip(sequences, harness.sinks, strict=True):
        stats, drafted = sequence.stats, verified[sequence.sequence_id]
        assert (stats.num_draft_tokens, stats.num_drafts) == (sum(drafted), len(drafted))
        assert stats.num_accepted_tokens == sum(sum(c.from_draft) for c in sink.chunks)
        assert (stats.num_output_tokens, stats.num_steps) == (
            len(sink.token_ids),
            len(sink.chunks),
        )
    counters = harness.metrics.take().counters
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        total = sum(getattr(s.stats, f"num_{name}") for s in sequences)
        assert counters[f"spec_decode_num_{name}_total"] == total > 0


def test_the_draft_length_shown_is_that_of_the_last_step():
    harness = Harness()
    harness.submit([5], 11, drafter=ScriptedDrafter(), num_draft_tokens=4)
    harness.submit([6], 30)
    shown = []
    for _ in range(5):
        harness.step()
        shown.append(harness.metrics.take().gauges.get("spec_decode_draft_length"))
    # Nothing decodes in the prompts' step; the first text ends with its third.
    assert shown == [None, 2.0, 2.0, 0.0, 0.0]


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
        def propose(self, views, limits, judge):
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


def test_every_model_and_drafter_is_told_the_salt():
    harness, draft, seen = Harness(), ScriptedDecoder(), ScriptedDrafter(hash_text)
    observe, salts = seen.observe, []
    seen.observe = lambda view, verdict: (salts.append(view.cache_salt), observe(view, verdict))
    for drafter in (make_drafter("draft_model", draft), seen):
        harness.submit([5, 6], drafter=drafter, num_draft_tokens=2, cache_salt=9)
    harness.run()
    assert set(harness.target.salts.values()) == set(draft.salts.values()) == set(salts) == {9}
