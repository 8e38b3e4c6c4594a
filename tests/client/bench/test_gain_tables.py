import pytest

from specdec.client.bench.fixed import compare_fixed, fixed_variants
from specdec.client.bench.gain_tables import fixed_table, random_table, wave_table
from specdec.client.bench.load_tables import level_table
from specdec.client.bench.random_text import summarize_random
from specdec.client.bench.records import Level, Results, Variant
from specdec.client.bench.variants import PLAIN
from support.bench import record, show, table_rows, wave

DEFAULT = Variant("default", {})
LONG = Variant("draft_model:16", {"drafter": "draft_model", "num_draft_tokens": 16})


def test_the_best_fixed_length_is_named_and_adaptive_measured_by_it():
    seconds = {"K=0": 4.0, "adaptive": 2.0, "K=2": 3.0, "K=4": 2.5}
    fixed = [record("a", name, ttft=total, gap=0.0) for name, total in seconds.items()]
    found = compare_fixed(Results(fixed_variants=fixed_variants([2, 4]), fixed=fixed))
    text = show(fixed_table(found))
    assert "One draft length for all 1 prompts" in text
    rows = table_rows(text)
    assert ["K=2", "1.3", "1.00", "1.500"] in rows
    assert ["K=4,", "the", "best", "1.6", "1.00", "1.250"] in rows
    assert ["adaptive", "2.0", "1.00", "1"] in rows
    assert "adaptive is 1.250 of the best single length, K=4" in text
    assert "same ids in all of them: 1 of 1 prompts" in text


def test_random_text_shows_what_drafting_costs_and_that_nothing_repeats():
    records = [
        record("random/1", "K=0", gap=1.0),
        record("random/1", "default", gap=1.25, drafted=40, accepted=1),
    ]
    text = show(random_table(summarize_random(Results(variants=(PLAIN, DEFAULT), random=records))))
    assert "Random text: nothing to gain; 1 texts" in text
    assert ["K=0", "1.0", "0", "0", "1"] in table_rows(text)
    line = ["default", "0.8", "40", "1", "0.800", "0.800", "0.800", "0.800", "1/1"]
    assert line in table_rows(text)
    assert "100.0 % of an answer's tokens stand in it for the first time" in text


def waves(*found):
    plain = record("lone", "K=0", ttft=0.2, gap=0.2, chunks=[2] * 60)
    return Results(waves=list(found), wave_plain=[plain])


def test_each_wave_shows_when_the_gain_was_back():
    text = show(wave_table(waves(wave(), wave(slow_chunks=0))))
    assert ["1", "20.0", "2.0", "4.0", "20.0", "20.0", "1.95"] in table_rows(text)
    assert "gain back after: 1.00 s (median), 1.95 s (worst)" in text
    assert "in calm the one request makes 2.00 times K=0's tokens per s" in text
    assert "the one request 4 of 4, its load not compared yet" in text


def test_a_gain_that_was_not_seen_to_come_back_is_not_hidden():
    text = show(wave_table(waves(wave(slow_chunks=100))))
    assert ["1", "20.0", "2.0", "4.0", "4.0", "20.0", ">", "14.95"] in table_rows(text)
    assert "longer than was seen (median), longer than was seen (worst)" in text


def test_without_a_gain_in_calm_nothing_can_return():
    results = waves(wave())
    results.wave_plain = [results.waves[0].calm]
    assert "too little to see a gain return" in show(wave_table(results))


@pytest.mark.parametrize("variants", [(PLAIN, DEFAULT), (PLAIN, DEFAULT, LONG)])
def test_these_tables_fit_an_ordinary_terminal(variants):
    results = waves(*[wave(slow_chunks=100)] * 12)
    results.variants = variants
    results.environment = {"server": {"max_running": 16}}
    results.levels = [
        Level(v.name, n, (record(gap=0.001, variant=v.name),) * 144)
        for v in variants
        for n in (1, 32)
    ]
    results.random = [record("x", v.name, drafted=12345, accepted=1234) for v in variants]
    results.fixed_variants = fixed_variants([16])
    results.fixed = [record(p, v.name, gap=0.002) for p in "ab" for v in results.fixed_variants]
    sections = [
        level_table(results),
        fixed_table(compare_fixed(results)),
        random_table(summarize_random(results)),
        wave_table(results),
    ]
    for section in sections:
        assert max(len(line.rstrip()) for line in show(section).splitlines()) <= 80
