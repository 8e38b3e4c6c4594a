"""How long a request waits that arrives while others decode, in steps: seconds would be a guess."""

import math

import pytest

from support.engine import Harness, make_drafter
from support.fakes import ScriptedDecoder


@pytest.mark.parametrize("drafter", ["none", "scripted", "draft_model"])
@pytest.mark.parametrize("prompt_tokens", [1, 10, 95])
def test_an_arrival_gets_its_first_token_within_its_own_prefill_and_two_steps(
    drafter, prompt_tokens
):
    """Even when it comes while the target computes, and the four that decode do not wait for it."""
    target = ScriptedDecoder()
    harness = Harness(target=target, prefill_chunk_tokens=10)
    drafting = make_drafter(drafter, is_wrong=lambda position: position % 3 == 0)
    others = [
        harness.submit(prompt, 90, drafter=drafting, num_draft_tokens=4)
        for prompt in ([3, 1, 4], [1, 5], [9, 2, 6], [8])
    ]
    harness.step(3)
    compute, arrivals = target.extend, []

    def extend(calls):
        if not arrivals:
            arrivals.append(harness.submit([1 + i % 40 for i in range(prompt_tokens)], 3))
        return compute(calls)

    target.extend = extend
    num_steps = 0
    while not (arrivals and arrivals[0].token_ids):
        before = [len(sink.chunks) for sink in others]
        harness.step()
        assert [len(sink.chunks) for sink in others] == [n + 1 for n in before]
        num_steps += 1
    assert num_steps <= math.ceil(prompt_tokens / 10) + 2
