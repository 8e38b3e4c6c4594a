import pytest

from specdec.client.bench.fixed import fixed_variants
from specdec.client.bench.records import Arrival, BareRun, Level, PassCost, Results, Variant, Work
from specdec.client.bench.report import render
from specdec.client.bench.tables import WIDTH
from specdec.client.bench.variants import PLAIN
from support import bench
from support.bench import record, wave

DEFAULT = Variant("default", {})
MODEL = Variant("draft_model:16", {"drafter": "draft_model", "num_draft_tokens": 16})
LONG = "math_reasoning"


def show(results):
    return bench.show(*render(results))


def rows(text, title):
    """Cells of the lines under a title, up to the next caption."""
    lines = text[text.index(title) :].splitlines()[1:]
    return [line.split() for line in lines]


def work(steps, **more):
    parts = {"step_seconds": 0.04 * steps, "verify_seconds": 0.038 * steps}
    return Work(num_steps=steps, num_finished=1, num_prompt_tokens=100, **parts, **more)


@pytest.fixture
def results():
    """K=0: 1 s, then 4 s for 4 tokens; default: 1 s, then 2 s for them; a model: no records."""
    found = Results(variants=(PLAIN, DEFAULT, MODEL))
    for name in ("chat/1", f"{LONG}/1"):
        category = name.partition("/")[0]
        common = {"category": category, "ttft": 1.0, "gap": 1.0}
        found.prefills.append(record(name, **common, chunks=(1,), work=work(2)))
        found.records.append(record(name, "K=0", **common, chunks=[1] * 5, work=work(6)))
        found.records.append(
            record(
                name,
                "default",
                **common,
                chunks=(1, 2, 2),
                drafted=8,
                accepted=2,
                work=work(4, num_drafts=2, num_cached_tokens=25),
            )
        )
        found.bare_runs.append(BareRun(name, category, 0, tuple(range(5)), 10, 0.5, 3.8, 256))
    found.pass_costs += [PassCost(256, 1, 1.0), PassCost(256, 5, 1.2)]
    return found


def test_the_main_table_states_each_speedup(results):
    table = rows(show(results), "One request at a time")
    assert ["chat", "K=0", "1000", "1000.0", "1.0", "1.00", "1.00"] in table
    # 5 tokens: 5 s against 3 s; after the first 4 s against 2 s; 2 of 8 drafted were accepted.
    gain = ["default", "1000", "500.0", "1.7", "25.0", "2.00", "1.67", "1.67", "2.00", "1.67"]
    assert gain in table
    both = [
        "default",
        "1000",
        "500.0",
        "1.7",
        "25.0",
        "2.00",
        "1.67",
        "1.67",
        "1.67-1.67",
        "2.00",
        "1.67",
    ]
    assert both in table
    assert not any("draft_model:16" in line for line in table)


def test_equal_ids_are_counted_and_others_named(results):
    assert "same ids in all variants: 2 of 2 prompts\n" in show(results)
    results.records.append(record("chat/1", "default", token_ids=(0, 1, 9)))
    assert "same ids in all variants: 1 of 2 prompts; not chat/1" in show(results)


def test_steps_are_split_without_the_prefill(results):
    table = rows(show(results), "One step while decoding")
    assert ["K=0", "8", "40.00", "0.00", "38.00", "2.00", "5.0", "0.0"] in table
    assert ["default", "4", "40.00", "0.00", "38.00", "2.00", "5.0", "25.0"] in table
    assert "the prompts' prefill is subtracted" in show(results)
    results.is_cold = False
    assert ["K=0", "12", "40.00", "0.00", "38.00", "2.00", "5.0", "0.0"] in rows(
        show(results), "One step while decoding"
    )


def test_without_metrics_there_is_no_table_of_steps(results):
    results.records = [record("chat/1", "K=0"), record("chat/1", "default")]
    results.prefills = []
    assert "One step" not in show(results)


def test_the_bare_table_compares_with_the_ideal(results):
    text = show(results)
    # K=0 against bare: 4/4 s against 4/3.8 s; 5/5 s against 5/4.3 s. Ideal: 4 passes of 1.0 s
    # against 2 of 1.2 s; with the prefill of 0.5 s 4.5 s against 2.9 s.
    line = ["chat", "default", "0.950", "0.860", "5.00", "2.00", "1.67", "120.0"]
    assert [*line, "1.67", "1.55", "107.4"] in rows(text, "Against the bare graph")
    assert ["256", "1000.0", "1200.0"] in rows(text, "One pass of the bare graph")
    assert "the same ids as K=0 for 2 of 2 prompts" in text


def test_load_and_arrivals(results):
    one = tuple(record(f"p/{i}", "K=0", started_at=5.0 * i, gap=1.0) for i in range(2))
    two = tuple(record(f"p/{i}", "K=0", gap=1.0) for i in range(2))
    results.levels = [Level("K=0", 1, one, work(8)), Level("K=0", 2, two, work(4))]
    results.arrivals = [
        Arrival("K=0", "b", 90, 4, 0.5, 0.7, 0.1),
        Arrival("K=0", "a", 12, 4, 0.1, 0.2, 0.1),
    ]
    text = show(results)
    table = rows(text, "Many requests at once, in detail")
    assert table[3] == [
        *("K=0", "1", "2", "0.9", "1.00", "0.9", "1000", "1000", "1000.0", "40.0", "5.0", "0.0"),
    ]
    assert table[4][:4] == ["2", "2", "2.0", "2.25"]
    table = rows(text, "A request that arrives while 4 others decode")
    assert table[3] == ["K=0", "a", "12", "100", "200", "100.0", "1.00"]
    assert table[4] == ["b", "90", "500", "700", "100.0", "2.00"]


def test_no_line_is_too_wide_and_no_number_is_cut(results):
    for name in ("chat/1", f"{LONG}/1"):
        category = name.partition("/")[0]
        results.records.append(record(name, MODEL.name, category=category, drafted=9, work=work(4)))
    results.levels = [
        Level(v.name, n, (record("x", v.name),), work(4))
        for v in results.variants
        for n in (1, 1024)
    ]
    results.environment = {"server": {"max_running": 16}}
    results.fixed_variants = fixed_variants([16])
    results.fixed = [record("x", v.name) for v in results.fixed_variants]
    results.random = [record("x", v.name, drafted=123456) for v in results.variants]
    results.waves = [wave(), wave(num_chunks=36)]
    results.wave_plain = [results.waves[0].calm]
    results.arrivals = [Arrival(MODEL.name, f"{LONG}/12", 1234, 4, 1.0, 2.0, 0.1)]
    text = show(results)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "…" not in text


def test_a_run_that_was_stopped_early_still_has_a_report():
    results = Results(variants=(PLAIN, DEFAULT))
    assert show(results) == ""
    results.note("stopped before the end")
    results.note("stopped before the end")
    results.records.append(record("chat/1", "default"))
    results.bare_runs.append(BareRun("chat/1", "chat", 0, (1,), 10, 0.5, 3.8, 256))
    text = show(results)
    assert "nothing to compare yet" in text
    assert text.count("note: stopped before the end") == 1
