import pytest

from specdec.client.bench.load_tables import level_table, load_table
from specdec.client.bench.records import Level, Results, Variant
from specdec.client.bench.variants import PLAIN
from support.bench import record, show, table_rows

DEFAULT = Variant("default", {})


def loop(variant, number, seconds, *, concurrency=2, ids=(0, 1)):
    """One answer of two tokens, `seconds` long."""
    answer = record("p", variant, ttft=seconds, gap=0.0, chunks=(1, 1), token_ids=ids)
    return Level(variant, concurrency, (answer,), round=number)


@pytest.fixture
def results():
    """Three rounds at 2: 1, 2 and 1.25 times as fast; one at 16, of K=0 alone."""
    seconds = {"K=0": (2.0, 2.0, 2.0), "default": (2.0, 1.0, 1.6)}
    levels = [loop(name, i, s) for name, times in seconds.items() for i, s in enumerate(times)]
    return Results(
        settings={"max_tokens": 2},
        environment={"server": {"max_running": 4}},
        variants=(PLAIN, DEFAULT),
        levels=[*levels, loop("K=0", 0, 1.0, concurrency=16)],
    )


def test_each_level_states_the_median_ratio_and_its_range(results):
    text = show(level_table(results))
    rows = table_rows(text)
    assert ["2", "K=0", "1", "3", "1.0", "1"] in rows
    assert ["default", "1", "3", "1.2", "1.250", "1.000", "2.000", "3/3"] in rows
    assert ["16", "K=0", "1", "1", "2.0", "1"] in rows
    assert "answers have 2 to 2 tokens, each as many in every variant" in text
    assert "same ids in all variants and levels: 1 of 1 prompts" in text


def test_a_level_beyond_what_the_server_runs_is_named(results):
    assert "16 at once: the server runs 4 (max_running), the others wait" in show(
        level_table(results)
    )
    for server in ({"max_running": 16}, {}):
        results.environment = {"server": server}
        assert "the others wait" not in show(level_table(results))


def test_other_ids_are_shown(results):
    results.levels.append(loop("default", 3, 1.0, ids=(0, 5)))
    text = show(level_table(results))
    assert ["default", "1", "4", "1.6", "1.250", "1.000", "2.000", "3/4"] in table_rows(text)
    assert "levels: 0 of 1 prompts" in text


def test_the_details_are_medians_of_the_rounds(results):
    rows = table_rows(show(load_table(results)))
    assert ["default", "2", "3", "1.2", "1.2", "1600", "1600", "0.0"] in rows
