from dataclasses import replace

import pytest

from specdec.client.bench.bare import BareModel
from specdec.client.bench.fixed import fixed_variants
from specdec.client.bench.load import Driver, Settings
from specdec.client.bench.metrics import Scraper
from specdec.client.bench.plan import Plan
from specdec.client.bench.records import Prompt, Results, Variant
from specdec.client.bench.run import Bench
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import RequestRejected, ServerFailed
from support.bench import FakeClient, Recorder
from support.runtimes import TokenRuntime, artifact

VARIANTS = (PLAIN, Variant("default", {}), Variant("ngram:8", {"drafter": "ngram"}))
PROMPTS = [Prompt(f"chat/{i}", "chat", "word " * i) for i in range(1, 5)]


class _Tokenizer:
    def encode_chat(self, messages):
        return tuple(range(3, 3 + len(messages[0]["content"])))


def bench(client, plan, **settings):
    settings = {"max_tokens": 5, "clears_cache": False, **settings}
    driver = Driver(client, Settings(**settings), Scraper(client.metrics, poll_seconds=0))
    results, progress = Results(variants=tuple(plan.variants)), Recorder()
    return Bench(driver, plan, results, progress=progress), results, progress


def test_every_variant_of_a_prompt_runs_before_the_next_prompt_and_the_first_one_changes():
    run, results, progress = bench(FakeClient(), Plan(PROMPTS, VARIANTS))
    run.run()
    assert [(r.prompt, r.variant) for r in results.records] == [
        *(("chat/1", v) for v in ("K=0", "default", "ngram:8")),
        *(("chat/2", v) for v in ("default", "ngram:8", "K=0")),
        *(("chat/3", v) for v in ("ngram:8", "K=0", "default")),
        *(("chat/4", v) for v in ("K=0", "default", "ngram:8")),
    ]
    assert [(r.prompt, r.num_tokens) for r in results.prefills] == [(p.name, 1) for p in PROMPTS]
    assert progress.begun[:3] == ["warm-up", "chat/1, prefill", "chat/1, K=0"]
    assert results.is_complete
    assert not results.notes


def test_repeats_rotate_too():
    run, results, _ = bench(FakeClient(), Plan(PROMPTS[:1], VARIANTS[:2], repeats=2))
    run.run()
    assert [(r.repeat, r.variant) for r in results.records] == [
        (0, "K=0"),
        (0, "default"),
        (1, "default"),
        (1, "K=0"),
    ]


def test_the_progress_bar_ends_at_its_end():
    plan = Plan(
        PROMPTS,
        VARIANTS[:2],
        repeats=2,
        concurrency=(1, 3),
        num_load_prompts=3,
        num_arrivals=2,
        fixed=fixed_variants([2, 4]),
        num_random=2,
    )
    run, results, progress = bench(FakeClient(step_seconds=0.001), plan)
    run.run()
    assert progress.effort == pytest.approx(plan.effort(with_bare=False))
    assert len(results.levels) == 4 * plan.rounds
    assert len(results.arrivals) == 4


def test_a_level_has_whole_rounds_of_texts_that_differ():
    plan = Plan(PROMPTS, VARIANTS, num_load_prompts=2)
    assert [(p.name, i) for p, i in plan.jobs(1)] == [("chat/2", 0), ("chat/4", 0)]
    jobs = plan.jobs(3)
    assert [i for _, i in jobs] == [0, 0, 1, 1, 2, 2]
    assert len({p.name for p, _ in jobs}) == len({p.text for p, _ in jobs}) == 6
    assert jobs[0][0] == PROMPTS[1]


def test_each_part_can_be_left_out():
    plan = Plan(PROMPTS, VARIANTS, with_single=False, num_random=1, rounds=1)
    run, results, progress = bench(FakeClient(), plan)
    run.run()
    assert results.records == results.prefills == results.levels == results.fixed == []
    assert len(results.random) == 3
    assert progress.effort == pytest.approx(plan.effort(with_bare=False))


@pytest.mark.parametrize("calls", [True, False])
def test_the_server_shows_which_variants_call_a_draft_model(calls):
    """Or the model's cache would not be cleared for those, or slowly for all."""

    class Counted(FakeClient):
        def _count(self, *counts):
            super()._count(*counts)
            if not calls:
                self.work = replace(self.work, draft_seconds=0.0)

    client = Counted()
    run, _, _ = bench(client, Plan(PROMPTS[:1], VARIANTS[:2]), clears_cache=True)
    run.run()
    drafts = [o for _, o in client.requests if o.get("adaptive") is False]
    # One to see it; then all slots before the variant's one request.
    assert len(drafts) == (1 + 16 if calls else 1)


def test_the_bare_loop_takes_its_turn():
    bare = BareModel(TokenRuntime(1), artifact(end_ids=()), _Tokenizer(), prefill_chunk=8)
    plan = Plan(PROMPTS[:2], VARIANTS[:2])
    run, results, progress = bench(FakeClient(), plan)
    run.run(bare)
    turns = [what for what in progress.begun if what.startswith("chat/2")]
    assert turns == ["chat/2, prefill", "chat/2, default", "chat/2, bare loop", "chat/2, K=0"]
    assert [(r.prompt, len(r.token_ids)) for r in results.bare_runs] == [
        ("chat/1", 5),
        ("chat/2", 5),
    ]
    assert results.pass_costs
    assert progress.effort == pytest.approx(plan.effort(with_bare=True))


def test_a_refused_prompt_is_noted_and_left_out():
    client = FakeClient()
    client.failures[PROMPTS[2].text] = RequestRejected("the prompt is too long")
    plan = Plan(PROMPTS[:3], VARIANTS[:2], concurrency=(1,))
    run, results, progress = bench(client, plan)
    run.run()
    assert {r.prompt for r in results.records} == {"chat/1", "chat/2"}
    assert [len(level.records) for level in results.levels] == [2] * 6
    assert results.notes == ["chat/3 was left out: the prompt is too long"]
    # The load no longer asks for the third one, in three rounds of two variants.
    assert progress.effort == pytest.approx(plan.effort(with_bare=False) - 6)


def test_a_prompt_that_is_too_long_with_its_answer_is_left_out_too():
    class Short(FakeClient):
        def stream(self, prompt=None, **options):
            if options["max_tokens"] == 5:
                raise RequestRejected("too long together")
            return super().stream(prompt, **options)

    plan = Plan(PROMPTS[:2], VARIANTS[:2])
    run, results, progress = bench(Short(), plan)
    with pytest.raises(RequestRejected, match="refused every prompt"):
        run.run()
    assert len(results.notes) == len(results.prefills) == 2
    assert progress.effort == pytest.approx(plan.effort(with_bare=False))


def test_a_failing_server_ends_the_run_and_keeps_what_there_is():
    client = FakeClient()
    client.failures[PROMPTS[2].text] = ServerFailed("the target broke")
    run, results, _ = bench(client, Plan(PROMPTS[:3], VARIANTS[:2]))
    with pytest.raises(ServerFailed):
        run.run()
    assert len(results.records) == 4
    assert not results.is_complete


def test_what_the_server_does_not_offer_is_refused_before_anything_is_measured():
    client = FakeClient()
    client.failures["Count from one"] = RequestRejected("no drafter draft_model")
    run, results, _ = bench(client, Plan(PROMPTS, VARIANTS))
    with pytest.raises(RequestRejected, match="draft_model"):
        run.run()
    assert not results.records


def test_a_second_client_on_the_server_is_noticed():
    class Busy(FakeClient):
        def _count(self, *counts):
            super()._count(*counts)
            super()._count(*counts)

    run, results, _ = bench(Busy(), Plan(PROMPTS[:1], VARIANTS))
    run.run()
    assert results.notes == ["another client used the server: its work is counted as ours"]
