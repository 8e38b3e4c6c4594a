"""One pass: what the target is asked, and what becomes of its answer."""

import pytest

from specdec.errors import DecoderFailed
from specdec.speculation.sequence import Sequence
from specdec.speculation.verifier import Work, verify
from specdec.types import Proposal, Request
from support.engine import Harness, make_drafter
from support.fakes import ScriptedDecoder


def count_up(token_ids):
    """The target writes 1 2 3 ..."""
    return token_ids[-1] + 1


def sequence_of(prompt_ids, drafter=None, sequence_id=1):
    request = Request(tuple(prompt_ids), 20)
    return Sequence(sequence_id, request, None, None, drafter, 8 if drafter else 0)


def run(*batch):
    target = ScriptedDecoder(count_up)
    for work in batch:
        request = work.sequence.request
        target.open(work.sequence.sequence_id, request.prompt_ids, request.sampling)
    outcomes, _ = verify(target, batch)
    return [outcome.verdict for outcome in outcomes], target.calls


def test_a_chain():
    work = Work(sequence_of([1, 2]), [1, 2], Proposal((3, 4, 9, 6)))
    (verdict,), ((call,),) = run(work)
    assert (call.start, call.token_ids, call.num_outputs) == (0, [1, 2, 3, 4, 9, 6], 5)
    assert (call.parents, call.num_candidates) == ((), 0)
    assert verdict.output_ids == (3, 4, 5)
    assert verdict.logprobs == (-3.0, -4.0, -5.0)
    assert (verdict.num_draft_tokens, verdict.num_accepted) == (4, 2)
    assert (verdict.carry, verdict.candidate_ids) == ((), ())


#   3 - 9        the trunk, wrong at its second token
#     \ 4 - 5    the branch that holds
TREE = Proposal((3, 9, 4, 5), (), (-1, 0, 0, 2))


def test_a_tree_with_candidates_of_what_is_emitted_only():
    """What was drawn on the branch is carried; it teaches once it is emitted."""
    drafter = make_drafter("recycle")
    (verdict,), ((call,),) = run(Work(sequence_of([1, 2], drafter), [1, 2], TREE))
    assert (call.parents, call.num_outputs, call.num_candidates) == ((-1, 0, 0, 2), 5, 3)
    assert verdict.output_ids == (3, 4)
    assert verdict.logprobs == (-3.0, -4.0)
    assert verdict.carry == (5, 6)
    assert verdict.candidate_ids == ((3, 4, 5), (4, 5, 6))
    assert (verdict.num_draft_tokens, verdict.num_accepted) == (4, 1)


def test_prompt_chunks_ask_for_nothing_but_the_last():
    drafter = make_drafter("auto")
    first = Work(sequence_of([1, 2, 3], drafter), [1, 2], samples=False)
    last = Work(sequence_of([7, 8], drafter, sequence_id=2), [7, 8])
    (nothing, verdict), ((one, two),) = run(first, last)
    assert nothing is None
    assert (one.num_outputs, one.num_candidates) == (0, 0)
    assert (two.num_outputs, two.num_candidates) == (1, 3)
    assert verdict.output_ids == (9,)
    assert verdict.candidate_ids == ((9, 10, 11),)


@pytest.mark.parametrize("name", ["none", "ngram"])
def test_candidates_are_not_asked_for_where_nobody_learns_from_them(name):
    (verdict,), ((call,),) = run(Work(sequence_of([1, 2], make_drafter(name)), [1, 2]))
    assert call.num_candidates == 0
    assert verdict.candidate_ids == ()


def test_no_candidates_while_the_drafter_rests():
    work = Work(sequence_of([1, 2], make_drafter("auto")), [1, 2], is_resting=True)
    _, ((call,),) = run(work)
    assert call.num_candidates == 0


def test_a_failed_pass_is_the_callers():
    with pytest.raises(DecoderFailed, match="scripted"):
        verify(ScriptedDecoder(fail_at=[0]), [Work(sequence_of([1]), [1])])


def test_a_pass_with_drafts_draws_only_where_draws_lead():
    """The others cost time, and nobody would look at them."""
    harness = Harness()
    harness.submit([5, 6], drafter=make_drafter("scripted"), num_draft_tokens=3)
    harness.run()
    calls = [call for step in harness.target.calls for call in step]
    assert {c.follows_draws for c in calls if c.num_outputs > 1} == {True}
