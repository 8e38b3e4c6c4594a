"""What every drafter keeps to, whatever it knows: found by name, so a new file is held to it."""

import pickle
import random
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specdec.drafters import NONE, drafter_class, drafter_names
from specdec.drafters.base import DraftView, Judge
from specdec.speculation.acceptance import lay_out
from specdec.types import SamplingParams, Verdict
from support.engine import DRAFTERS, Harness, make_drafter
from support.fakes import VOCAB_SIZE, ScriptedDecoder, hash_text, reference_text
from support.scripted_head import ScriptedHead, show

NAMES = [*(name for name in drafter_names() if name != NONE), "auto+head"]
# A carry comes from a branch: a drafter of chains that keeps a cache of its own never meets one,
# and its model has no place for an empty text, which no request has.
MODEL_FREE = [
    name for name in NAMES if name == "auto" or ("+" not in name and not drafter_class(name).model)
]
TOKENS = st.integers(0, 4)  # few: texts repeat themselves


def make(name, next_token=hash_text):
    kind = drafter_class(name.removesuffix("+head"))
    if name in MODEL_FREE:
        return kind()
    return kind((ScriptedHead if kind.model == "head" else ScriptedDecoder)(next_token))


def model_of(drafter):
    """The scripted model behind it."""
    return drafter._head._head if drafter.needs_features else drafter._decoder


def view_of(token_ids, sequence_id=1, carry=(), num_prompt_tokens=None):
    size = len(token_ids) if num_prompt_tokens is None else num_prompt_tokens
    return DraftView(sequence_id, token_ids, size, SamplingParams(), carry)


def propose(drafter, views, limits, **options):
    show(drafter, views)
    proposals = drafter.propose(views, limits, Judge(odds_of, **options)).proposals
    assert len(proposals) == len(views)
    for proposal, limit in zip(proposals, limits, strict=True):
        check(proposal, limit)
    return proposals


def odds_of(sequence_id):
    """Any odds: 1 and small ones among them."""
    return lambda omen, depth: (1.0, 0.7, 0.3, 0.05)[(7 * omen + 3 * depth + sequence_id) % 4]


def check(proposal, limit):
    size = len(proposal.token_ids)
    assert size <= limit
    assert all(0 <= token_id < VOCAB_SIZE for token_id in proposal.token_ids)
    for length in range(size + 1):
        beginning = proposal.first(length)
        assert len(beginning.token_ids) == length
        assert len(beginning.omens) in (0, length)
        assert len(beginning.parents) in (0, length)
        assert bool(beginning.parents) == bool(proposal.parents and length)
    assert all(-1 <= parent < node for node, parent in enumerate(proposal.links))
    siblings = list(zip(proposal.links, proposal.token_ids, strict=True))
    assert len(set(siblings)) == size


def candidates(drafter, token_ids, output_ids):
    """[num_accepted + 1][num_candidates], the target's own token first as a greedy one has it."""
    count = drafter.num_candidates
    return tuple(tuple((t + i) % VOCAB_SIZE for i in range(count)) for t in output_ids)


def footprint(drafter):
    """Of all it remembers, beside what its model does."""
    known = {k: v for k, v in vars(drafter).items() if k not in {"_decoder", "_head"}}
    if drafter.needs_features:
        known |= {k: v for k, v in vars(drafter._head).items() if k != "_head"}
    return len(pickle.dumps(known))


class Lifecycle(RuleBasedStateMachine):
    """Every order of verbs that the engine may use, for up to four sequences at once."""

    name = ""

    def __init__(self):
        super().__init__()
        self.drafter = make(self.name)
        self.texts = {}  # by sequence id
        self.prompts = {}
        self.carries = {}
        self.proposed = {}  # the step under way
        self.next_id = 1

    def some(self, data):
        return data.draw(st.lists(st.sampled_from(list(self.texts)), unique=True))

    @precondition(lambda self: len(self.texts) < 4)
    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=30))
    def begin(self, prompt):
        self.texts[self.next_id], self.prompts[self.next_id] = prompt, len(prompt)
        self.drafter.begin(view_of(prompt, self.next_id))
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), least=st.sampled_from((0.0, 0.02, 0.5)))
    def propose(self, data, least):
        ids = [i for i in self.some(data) if i not in self.proposed]
        limits = [data.draw(st.integers(1, 16)) for _ in ids]
        views = [view_of(self.texts[i], i, self.carries.get(i, ()), self.prompts[i]) for i in ids]
        before = [list(text) for text in self.texts.values()]
        self.proposed |= zip(ids, propose(self.drafter, views, limits, least=least), strict=True)
        assert [list(text) for text in self.texts.values()] == before  # read only

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def observe(self, data):
        for i in self.some(data):
            proposal = self.proposed.pop(i, None)
            carry = self.carries.pop(i, ())
            drafts = [*carry]
            if proposal is not None:
                laid = lay_out(proposal)
                pairs = enumerate(laid.links)
                drafts += [laid.token_ids[n] for n, parent in pairs if parent == n - 1]
            accepted = drafts[: data.draw(st.integers(0, len(drafts)))]
            output_ids = (*accepted, data.draw(TOKENS))
            self.texts[i].extend(output_ids)
            if self.drafter.num_candidates and data.draw(st.booleans()):
                self.carries[i] = tuple(data.draw(st.lists(TOKENS, max_size=4)))
            verdict = Verdict(
                output_ids,
                (0.0,) * len(output_ids),
                len(drafts),
                self.carries.get(i, ()),
                candidates(self.drafter, self.texts[i], output_ids),
            )
            view = view_of(self.texts[i], i, self.carries.get(i, ()), self.prompts[i])
            self.drafter.observe(view, verdict)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), unknown=st.lists(st.integers(1000, 1010), max_size=2))
    def end(self, data, unknown):
        ids = self.some(data)
        self.drafter.end([*unknown, *ids])
        self.drafter.end(ids)
        for i in ids:
            for known in (self.texts, self.prompts, self.carries, self.proposed):
                known.pop(i, None)

    def teardown(self):
        """Whatever happened, nothing of a sequence is left once all have ended."""
        fresh = make(self.name)
        if self.name not in MODEL_FREE:  # it asks its model once
            propose(fresh, [view_of([1])], [1])
            fresh.end([1])
        self.drafter.end([*self.texts])
        assert abs(footprint(self.drafter) - footprint(fresh)) < 100
        if self.name not in MODEL_FREE:
            assert not model_of(self.drafter).caches


@pytest.mark.parametrize("name", NAMES)
def test_any_order_of_the_verbs(name):
    machine = type(name, (Lifecycle,), {"name": name})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=25, deadline=None)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [1, 2, 5, 16])
def test_limits_are_kept(name, limit):
    drafter = warm(make(name), range(1, 9))
    texts = [[*range(1, 9)] * 5, [1, 2, 1, 2, 1], [3] * 20]
    views = [view_of(text, i) for i, text in enumerate(texts, start=1)]
    sizes = [len(p.token_ids) for p in propose(drafter, views, [limit] * 3)]
    assert max(sizes) == limit


def warm(drafter, tokens):
    """Let it see `tokens` come one after the other, round and round, in another sequence."""
    text = [*tokens]
    verdict = Verdict(tuple(text), (0.0,) * len(text), 0)
    verdict = verdict._replace(candidate_ids=candidates(drafter, text, text))
    drafter.begin(view_of(text, 99))
    drafter.observe(view_of([*text, *text], 99), verdict)
    drafter.end([99])
    return drafter


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", [[], [5]])
def test_a_text_of_nothing_or_one_token(name, text):
    if not text and name not in MODEL_FREE:
        pytest.skip("a model has no place for an empty text")
    drafter = make(name)
    drafter.begin(view_of(text))
    propose(drafter, [view_of(text)], [4])
    if name in MODEL_FREE:
        propose(drafter, [view_of(text, carry=(7,))], [4])
    after = [*text, 6]
    verdict = Verdict((6,), (0.0,), 0, (), candidates(drafter, after, (6,)))
    drafter.observe(view_of(after, num_prompt_tokens=len(text)), verdict)
    propose(drafter, [view_of(after, num_prompt_tokens=len(text))], [4])


@pytest.mark.parametrize("name", MODEL_FREE)
@pytest.mark.parametrize("carry", [(4,), (4, 5), (4, 5, 6, 7)])
def test_proposals_go_behind_text_and_carry(name, carry):
    """1 2 ... 8 round and round, up to 3, and 4 ... is carried."""
    drafter = warm(make(name), range(1, 9))
    text = [*range(1, 9)] * 3 + [1, 2, 3]
    (proposal,) = drafter.propose([view_of(text, carry=carry)], [3]).proposals
    check(proposal, 3)
    likeliest, node = [], -1
    while node in proposal.links:
        node = proposal.links.index(node)
        likeliest.append(proposal.token_ids[node])
    assert likeliest[0] == carry[-1] % 8 + 1
    assert all(b == a % 8 + 1 for a, b in pairwise(likeliest))


@pytest.mark.parametrize("name", NAMES)
def test_sequences_do_not_disturb_one_another(name):
    """The other writes other tokens: all that the two share is a memory of what follows what."""

    def run(with_other):
        drafter, rng, found = make(name, lambda text: text[-1]), random.Random(0), []
        texts = (
            {1: [1, 2, 3, 1, 2], 2: [20, 21, 20, 21, 22]} if with_other else {1: [1, 2, 3, 1, 2]}
        )
        for i, text in texts.items():
            drafter.begin(view_of(text, i, num_prompt_tokens=5))
        for _ in range(60):
            views = [view_of(text, i, num_prompt_tokens=5) for i, text in reversed(texts.items())]
            found.append(propose(drafter, views, [6] * len(views))[-1])
            token_id = rng.randrange(1, 5)
            for i, text in texts.items():
                text.append(token_id if i == 1 else token_id + 20)
                verdict = Verdict((text[-1],), (0.0,), 6, (), candidates(drafter, text, text[-1:]))
                drafter.observe(view_of(text, i, num_prompt_tokens=5), verdict)
        return found

    alone = run(with_other=False)
    assert any(proposal.token_ids for proposal in alone)
    assert run(with_other=True) == alone


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_runs_long_remembers_no_more(name):
    """10,000 steps of sequences that come and go."""
    drafter, rng, sizes = make(name), random.Random(0), []
    for sequence_id in range(1000):
        text = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 20))]
        size = len(text)
        drafter.begin(view_of(text, sequence_id))
        for _ in range(10):
            propose(drafter, [view_of(text, sequence_id, num_prompt_tokens=size)], [4])
            text.append(rng.randrange(VOCAB_SIZE))
            verdict = Verdict((text[-1],), (0.0,), 4, (), candidates(drafter, text, text[-1:]))
            drafter.observe(view_of(text, sequence_id, num_prompt_tokens=size), verdict)
        drafter.end([sequence_id])
        if sequence_id in (10, 999):
            sizes.append(footprint(drafter))
    assert sizes[1] - sizes[0] < 100


def test_the_engines_tests_know_every_drafter():
    assert set(drafter_names()) <= set(DRAFTERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_proposal_only_changes_how_fast(name):
    """The same drafter over request after request, as it learns."""
    drafter, rng = make_drafter(name), random.Random(0)
    for _ in range(12):
        harness = Harness()
        prompts = [[rng.randrange(1, 50) for _ in range(rng.randrange(1, 9))] for _ in range(3)]
        for prompt in prompts:
            harness.submit(prompt, 30, drafter=drafter, num_draft_tokens=rng.randrange(1, 17))
        harness.run()
        for prompt, sink in zip(prompts, harness.sinks, strict=True):
            assert sink.token_ids == reference_text(prompt, 30, hash_text)
