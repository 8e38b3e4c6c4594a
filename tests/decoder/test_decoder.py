"""The decoder over a runtime one can compute by hand: every call, every refusal, every failure."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from specdec.errors import DecoderFailed
from specdec.types import Extend, Extended, SamplingParams
from support.decoding import GREEDY, drafts_from, generate, run_together, steps
from support.runtimes import VOCAB_SIZE, TokenRuntime
from support.token_decoder import (
    PROMPT,
    SAMPLED,
    check,
    drawn,
    likeliest_of,
    make,
    texts_of,
)
from support.trees import trunk


def expected(prompt, sampling=GREEDY, num_tokens=12):
    """Plain decoding by hand: the scripted model and the sampler, nothing else."""
    tokens, logprobs = list(prompt), []
    for _ in range(num_tokens):
        token, logprob = drawn(tokens, sampling, len(prompt))
        tokens.append(token)
        logprobs.append(logprob)
    return tokens[len(prompt) :], logprobs


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_plain_decoding_is_the_model_and_the_sampler(sampling, chunk):
    decoder, runtime = make()
    assert generate(decoder, PROMPT, sampling, chunk=chunk) == expected(PROMPT, sampling)
    check(decoder, runtime)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_drafts", [1, 3, 16])
@pytest.mark.parametrize("wrong_at", [None, 0, 1, 2])
def test_drafts_change_nothing(sampling, num_drafts, wrong_at):
    """Penalties, min_tokens and noise of a row see the drafts before it, right or wrong."""
    decoder, runtime = make()
    reference = expected(PROMPT, sampling, 20)
    drafter = drafts_from(PROMPT + reference[0], num_drafts, wrong_at)
    assert generate(decoder, PROMPT, sampling, 20, drafter=drafter) == reference
    check(decoder, runtime)


def test_draft_steps_are_the_same_tokens_as_single_calls():
    decoder, runtime = make()
    reference = expected(PROMPT, SAMPLED, 6)
    decoder.open(4, PROMPT, SAMPLED)
    result = decoder.extend([Extend(4, 0, PROMPT, num_outputs=1, num_draft_steps=5)])
    assert (list(result.sequences[0].token_ids), list(result.sequences[0].logprobs)) == reference
    assert result.compute_seconds > 0
    assert len(runtime.batches) == 6
    assert decoder._sequences[4].slot.length == len(PROMPT) + 5
    check(decoder, runtime)


def test_draft_steps_of_a_batch_run_only_over_those_that_have_some():
    decoder, runtime = make()
    wanted = {1: 0, 2: 3, 3: 1}
    for i in wanted:
        decoder.open(i, [i, 9, 9], GREEDY)
    calls = [Extend(i, 0, [i, 9, 9], 1, num_draft_steps=n) for i, n in wanted.items()]
    result = decoder.extend(calls)
    for (i, n), extended in zip(wanted.items(), result.sequences, strict=True):
        assert list(extended.token_ids) == expected([i, 9, 9], num_tokens=n + 1)[0]
    widths = [b.last - b.first for b in runtime.batches]
    assert widths == [3, 2, 1, 1]


def test_a_prefill_chunk_without_outputs_returns_none():
    decoder, _ = make()
    decoder.open(1, PROMPT, GREEDY)
    result = decoder.extend([Extend(1, 0, PROMPT[:4], 0)])
    assert result.sequences == [Extended((), ())]


def test_an_empty_call_is_fine():
    decoder, runtime = make()
    assert decoder.extend([]).sequences == []
    assert runtime.batches == []


def test_results_come_in_the_order_of_the_calls_whatever_the_passes():
    decoder, runtime = make(num_slots=8, max_length=1000)
    prompts = [[i, 4, 5] for i in range(8)]
    for i, prompt in enumerate(prompts):
        decoder.open(i, prompt, GREEDY)
    decoder.extend([Extend(i, 0, p[:2], 0) for i, p in enumerate(prompts)])
    long = {3: list(range(3, 38)) * 3}
    calls = [Extend(i, 2, long.get(i, [p[2]]), 1) for i, p in enumerate(prompts)]
    random.Random(0).shuffle(calls)
    before = len(runtime.batches)
    result = decoder.extend(calls)
    assert len(runtime.batches) - before > 1  # the long one ran apart
    for call, extended in zip(calls, result.sequences, strict=True):
        text = prompts[call.sequence_id][:2] + list(call.token_ids)
        assert list(extended.token_ids) == expected(text, num_tokens=1)[0]
    check(decoder, runtime)


@pytest.mark.parametrize("min_rows", [1, 2, 8, 16])
def test_a_sequence_can_fill_its_slot_to_the_last_position(min_rows):
    decoder, _ = make(max_length=256, min_rows=min_rows)
    prompt = [3 + i % 30 for i in range(250)]
    reference = expected(prompt, num_tokens=7)
    assert generate(decoder, prompt, num_tokens=7) == reference
    drafter = drafts_from(prompt + reference[0], 3, 1)
    assert generate(decoder, prompt, num_tokens=7, drafter=drafter) == reference
    decoder.open(1, prompt, GREEDY)
    with pytest.raises(DecoderFailed, match="would hold 257 tokens: allowed are 256"):
        decoder.extend([Extend(1, 0, [*prompt, *range(7)], 1)])


# --- prefix reuse --------------------------------------------------------------------------------


def test_a_cached_prefix_changes_nothing_and_is_not_computed_again():
    decoder, runtime = make()
    prompt = [3 + i % 30 for i in range(100)]
    reference = expected([*prompt, 4, 5], SAMPLED)
    generate(decoder, prompt, num_tokens=1)
    before = len(runtime.batches)
    assert generate(decoder, [*prompt, 4, 5], SAMPLED) == reference
    assert len(runtime.batches[before].input_ids) == 2  # in place
    assert generate(decoder, [*prompt, 4, 5], SAMPLED) == reference
    check(decoder, runtime)


def test_open_reports_what_is_cached():
    decoder, _ = make()
    assert decoder.open(1, PROMPT, GREEDY) == 0
    decoder.extend([Extend(1, 0, PROMPT, 1)])
    assert decoder.open(2, PROMPT, GREEDY) == len(PROMPT) - 1
    assert decoder.open(3, [*PROMPT[:3], 8, 8], GREEDY) == 3
    decoder.close([(1, len(PROMPT)), (2, 2), (3, 3), (99, 5)])
    assert decoder.open(4, [*PROMPT, 9], GREEDY) == len(PROMPT)


def test_what_was_not_committed_is_not_reused():
    decoder, _ = make()
    decoder.open(1, PROMPT, GREEDY)
    decoder.extend([Extend(1, 0, PROMPT, 1)])
    decoder.close([(1, 3)])
    assert decoder.open(2, PROMPT, GREEDY) == 3


def test_rejected_drafts_can_be_reused_because_their_keys_are_right():
    decoder, runtime = make()
    decoder.open(1, PROMPT, GREEDY)
    decoder.extend([Extend(1, 0, [*PROMPT, 11, 12], 3)])
    assert decoder.open(2, [*PROMPT, 11, 12, 13], GREEDY) == len(PROMPT) + 2
    decoder.extend([Extend(1, len(PROMPT), [20], 1)])
    result = decoder.extend([Extend(2, len(PROMPT) + 2, [13], 1)])
    assert list(result.sequences[0].token_ids) == expected([*PROMPT, 11, 12, 13], num_tokens=1)[0]
    check(decoder, runtime)


@pytest.mark.parametrize("wrong_at", range(5))
def test_two_sequences_share_a_prefix_and_one_rejects(wrong_at):
    """The other one is unaffected, wherever the rejection is."""
    decoder, runtime = make()
    shared = [3 + i % 30 for i in range(40)]
    prompts = [[*shared, 4], [*shared, 6, 7]]
    references = [expected(p, s, 25) for p, s in zip(prompts, (SAMPLED, GREEDY), strict=True)]
    generate(decoder, shared, num_tokens=1, sequence_id=9)
    both = [
        steps(
            decoder, i, prompts[i], s, 25,
            drafter=drafts_from(prompts[i] + references[i][0], 4, wrong_at if i == 0 else None),
        )
        for i, s in enumerate((SAMPLED, GREEDY))
    ]  # fmt: skip
    assert run_together(decoder, both) == references
    check(decoder, runtime)


def test_reset_closes_everything_and_keeps_the_cache():
    decoder, runtime = make(num_slots=2)
    for i in range(2):
        decoder.open(i, [*PROMPT, i], GREEDY)
    decoder.extend([Extend(0, 0, [*PROMPT, 0], 1)])
    decoder.reset()
    assert decoder.open(5, [*PROMPT, 9], GREEDY) == len(PROMPT)
    assert decoder.open(6, [30, 31], GREEDY) == 0
    check(decoder, runtime)


def test_rows_fed_stay_bounded():
    """A rejection costs the rejected rows, never the prefix again."""
    decoder, runtime = make()
    reference = expected(PROMPT, num_tokens=40)
    drafter = drafts_from(PROMPT + reference[0], 5, 0)
    generate(decoder, PROMPT, num_tokens=40, drafter=drafter)
    assert sum(len(b.input_ids) for b in runtime.batches) <= len(PROMPT) + 41 * 6


# --- refusals and failures -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Extend(8, 0, [3], 1), "sequence 8 is not open"),
        (Extend(1, 7, [3], 1), "start 7, the cache holds 6 rows"),
        (Extend(1, -1, [3], 1), "start -1"),
        (Extend(1, 6, [], 0), "0 outputs of 0 tokens"),
        (Extend(1, 6, [3], 2), "2 outputs of 1 tokens"),
        (Extend(1, 6, [3], -1), "-1 outputs"),
        (Extend(1, 6, [3], 0, 1), "1 draft steps after 0 outputs"),
        (Extend(1, 6, [3], 1, -1), "-1 draft steps"),
        (Extend(1, 6, [VOCAB_SIZE], 1), f"token id {VOCAB_SIZE}: allowed are 0 to"),
        (Extend(1, 6, [3, -4], 1), "token id -4"),
        (Extend(1, 6, [3] * 295, 1), "would hold 301 tokens: allowed are 300"),
        (Extend(1, 6, [3], 1, 294), "would hold 301 tokens: allowed are 300"),
        (Extend(2, 0, [3], 1), "named twice"),
        (Extend(1, 6, [3], 1, num_candidates=-1), "sequence 1: -1 candidates: allowed are 0 to 38"),
        (Extend(1, 6, [3], 1, num_candidates=39), "39 candidates: allowed are 0 to 38"),
        (Extend(1, 6, [3, 4], 2, 1, [-1]), "sequence 1: draft steps cannot follow a tree"),
        (Extend(1, 6, [3, 4], 1, 0, [-1]), "sequence 1: 1 parents with 1 outputs"),
        (Extend(1, 6, [3, 4], 2, 0, [0]), "sequence 1: token 0 of a tree follows 0"),
        (Extend(1, 6, [3] * 66, 66, 0, [-1] * 65), "a tree of 65 tokens: allowed are 1 to 64"),
    ],
)
def test_a_refused_call_changes_nothing(call, message):
    decoder, runtime = make()
    reference = [expected(p, SAMPLED, 3) for p in (PROMPT, [8, 9])]
    decoder.open(1, PROMPT, SAMPLED)
    decoder.open(2, [8, 9], SAMPLED)
    first = decoder.extend([Extend(1, 0, PROMPT, 1)]).sequences[0]
    passes = len(runtime.batches)
    with pytest.raises(DecoderFailed, match=message):
        decoder.extend([Extend(2, 0, [8, 9], 1), call])
    assert len(runtime.batches) == passes
    result = decoder.extend(
        [Extend(1, len(PROMPT), first.token_ids, 1, 1), Extend(2, 0, [8, 9], 1, 2)]
    )
    assert [*first.token_ids, *result.sequences[0].token_ids] == reference[0][0]
    assert list(result.sequences[1].token_ids) == reference[1][0]


def test_open_refuses():
    decoder, _ = make(num_slots=2)
    decoder.open(1, PROMPT, GREEDY)
    with pytest.raises(DecoderFailed, match="sequence 1 is open already"):
        decoder.open(1, PROMPT, GREEDY)
    for prompt, message in (
        ([], "a prompt of 0 tokens: allowed are 1 to 300"),
        ([3] * 301, "a prompt of 301 tokens"),
        ([3, VOCAB_SIZE], f"token id {VOCAB_SIZE}"),
        ([-1], "token id -1"),
    ):
        with pytest.raises(DecoderFailed, match=message):
            decoder.open(2, prompt, GREEDY)
    decoder.open(2, PROMPT, GREEDY)
    with pytest.raises(DecoderFailed, match="all 2 slots are in use"):
        decoder.open(3, PROMPT, GREEDY)


@pytest.mark.parametrize("fail_at", range(6))
def test_after_a_failed_pass_the_next_request_equals_the_reference(fail_at):
    decoder, runtime = make(num_slots=3, fail_at=[fail_at])
    prompts = [[*PROMPT, i] for i in range(3)]
    reference = [expected(p, SAMPLED, 9) for p in prompts]

    def all_together():
        return run_together(
            decoder,
            [
                steps(decoder, i, p, SAMPLED, 9, chunk=4, drafter=drafts_from(p + r[0], 3, i))
                for i, (p, r) in enumerate(zip(prompts, reference, strict=True))
            ],
        )

    with pytest.raises(DecoderFailed, match=f"pass {fail_at} was told to fail"):
        all_together()
    check(decoder, runtime)
    decoder.close([(i, len(p)) for i, p in enumerate(prompts)])
    check(decoder, runtime)
    assert all_together() == reference


def test_a_failed_pass_leaves_other_sequences_alone():
    decoder, runtime = make(fail_at=[1])
    reference = expected(PROMPT, SAMPLED, 4)
    decoder.open(1, PROMPT, SAMPLED)
    decoder.open(2, [8, 9, 10], GREEDY)
    first = decoder.extend([Extend(1, 0, PROMPT, 1)]).sequences[0]
    with pytest.raises(DecoderFailed, match="told to fail"):
        decoder.extend([Extend(2, 0, [8, 9, 10], 1)])
    decoder.close([(2, 3)])
    rest = decoder.extend([Extend(1, len(PROMPT), first.token_ids, 1, 2)]).sequences[0]
    assert [*first.token_ids, *rest.token_ids] == reference[0]
    check(decoder, runtime)


def test_logits_that_are_not_finite_fail_the_call():
    decoder, runtime = make()
    runtime._row = lambda batch, row: np.full(VOCAB_SIZE, np.nan, np.float32)
    decoder.open(1, PROMPT, GREEDY)
    with pytest.raises(DecoderFailed, match="are not finite"):
        decoder.extend([Extend(1, 0, PROMPT, 1)])


# --- everything at once --------------------------------------------------------------------------


class Traffic:
    """Random operations on one decoder; every token is checked against the scripted model."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.runtime = TokenRuntime(rng.choice([1, 3, 6]))
        self.top = rng.choice([64, 700])
        self.decoder, _ = make(self.runtime, max_length=self.top, min_rows=rng.choice([1, 2, 8]))
        self.texts: dict[int, list[int]] = {}  # what each open sequence has in the cache
        self.prompts: dict[int, list[int]] = {}
        self.samplings: dict[int, SamplingParams] = {}
        self.ids = itertools.count()
        self.stems = [self.tokens(n) for n in (5, 40, 260)]

    def tokens(self, size: int) -> list[int]:
        return [self.rng.randrange(VOCAB_SIZE) for _ in range(size)]

    def open(self) -> None:
        if len(self.texts) < self.runtime.num_slots:
            i, stem = next(self.ids), self.rng.choice(self.stems)
            self.prompts[i] = (stem + self.tokens(self.rng.randint(1, 8)))[: self.top]
            self.samplings[i] = dataclasses.replace(self.rng.choice([GREEDY, SAMPLED]), seed=i)
            cached = self.decoder.open(i, self.prompts[i], self.samplings[i])
            assert cached < len(self.prompts[i])
            self.texts[i] = self.prompts[i][:cached]

    def close(self) -> None:
        if self.texts:
            i = self.rng.choice(list(self.texts))
            self.decoder.close([(i, self.rng.randint(0, len(self.texts.pop(i)) + 1))])

    def reset(self) -> None:
        self.decoder.reset()
        self.texts.clear()

    def call(self, i: int) -> Extend:
        """More of the prompt or anything else, after a rewind or not."""
        choice = self.rng.choice
        start = min(max(len(self.texts[i]) - choice([0, 0, 0, 1, 3]), 0), self.top - 1)
        given = self.prompts[i][start:] or self.tokens(self.rng.randint(1, 8))
        given = given[: min(choice([1, 3, 17, 90]), self.top - start)]
        draft_steps = choice([0, 0, 2]) if start + len(given) + 2 <= self.top else 0
        num_outputs = self.rng.randint(1 if draft_steps else 0, min(len(given), 6))
        parents: list[int] = []
        if num_outputs and not draft_steps and choice([True, False]):
            parents = [self.rng.choice([j - 1, -1, j // 2]) for j in range(num_outputs - 1)]
            parents = [min(p, j - 1) for j, p in enumerate(parents)]
        return Extend(i, start, given, num_outputs, draft_steps, parents, choice([0, 0, 2]))

    def extend(self) -> None:
        some = self.rng.sample(list(self.texts), self.rng.randint(0, len(self.texts)))
        calls = [self.call(i) for i in some]
        fails = self.rng.random() < 0.1
        passes = len(self.runtime.batches)
        self.runtime.fail_at = {passes + self.rng.randrange(2)} if fails else set()
        try:
            result = self.decoder.extend(calls)
        except DecoderFailed:
            assert fails
            check(self.decoder, self.runtime)
            self.decoder.close([(call.sequence_id, call.start) for call in calls])
            for i in some:
                del self.texts[i]
            return
        for call, extended in zip(calls, result.sequences, strict=True):
            self.verify(call, extended)

    def verify(self, call: Extend, found: Extended) -> None:
        i = call.sequence_id
        text = self.texts[i][: call.start] + list(call.token_ids)
        texts = [text[: len(text) - k] for k in reversed(range(call.num_outputs))]
        if call.parents:
            texts = texts_of(call, text[: call.start])
            num_branches = len(call.parents) - len(trunk(call.parents))
            text = text[: len(text) - num_branches]
        for token in found.token_ids[call.num_outputs - 1 : -1][: call.num_draft_steps]:
            text.append(token)
            texts.append(list(text))
        self.texts[i] = text
        pairs = list(zip(found.token_ids, found.logprobs, strict=True))
        assert pairs == [drawn(t, self.samplings[i], len(self.prompts[i])) for t in texts]
        count = call.num_candidates
        rows = texts[: call.num_outputs] if count else []
        assert found.candidate_ids == tuple(likeliest_of(t, count) for t in rows)


@pytest.mark.parametrize("seed", range(12))
def test_random_operations_always_equal_plain_decoding(seed):
    """Opens, chunks, drafts, trees, draft steps, rewinds, closes, resets and failures, in any
    order."""
    traffic = Traffic(seed)
    actions = [traffic.open, traffic.close, traffic.reset, traffic.extend]
    for _ in range(100):
        traffic.rng.choices(actions, [25, 10, 2, 55])[0]()
        check(traffic.decoder, traffic.runtime)
    assert len(traffic.runtime.batches) >= 10
