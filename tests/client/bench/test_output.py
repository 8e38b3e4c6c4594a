import json
from importlib.util import find_spec

import pytest

from specdec.client.bench import output
from specdec.client.bench.fixed import fixed_variants
from specdec.client.bench.output import check_can_plot, check_writable, write_json, write_plot
from specdec.client.bench.records import Arrival, BareRun, Level, PassCost, Results, Variant, Work
from specdec.client.bench.variants import PLAIN
from specdec.client.errors import RequestRejected
from support.bench import record, wave


@pytest.fixture
def results():
    found = Results(
        settings={"command": ["specdec", "bench"]},
        environment={"machine": {"cores": 2}},
        variants=(PLAIN, Variant("default", {})),
    )
    work = Work(num_steps=4, step_seconds=0.4, verify_seconds=0.3)
    found.prefills = [record(chunks=(1,), work=Work(num_steps=1, step_seconds=0.1))]
    found.records = [record(gap=1.0, work=work), record(variant="default", gap=0.5, work=work)]
    found.bare_runs = [BareRun("chat/1", "chat", 0, (0, 1, 2, 3), 10, 0.5, 2.7, 256)]
    found.pass_costs = [PassCost(256, 1, 0.9), PassCost(256, 2, 1.0)]
    found.levels = [
        Level("K=0", 1, (record(),), work),
        Level("default", 1, (record(variant="default", gap=0.0),), work),
    ]
    found.fixed_variants = fixed_variants([4])
    gaps = {"K=0": 0.5, "adaptive": 0.3, "K=4": 0.4}
    found.fixed = [record(variant=name, gap=gap) for name, gap in gaps.items()]
    found.random = [record("random/1"), record("random/1", "default", gap=0.4)]
    found.waves = [wave()]
    found.wave_plain = [found.waves[0].calm]
    found.arrivals = [Arrival("K=0", "a", 12, 4, 0.1, 0.3, 0.1)]
    return found


def test_json_holds_everything_and_no_nan(results, tmp_path):
    path = tmp_path / "out.json"
    write_json(results, path)

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    found = json.loads(path.read_text(), parse_constant=refuse)
    assert found["format"] == 2
    assert found["settings"]["command"] == ["specdec", "bench"]
    assert found["is_complete"] is False
    assert found["variants"] == {"K=0": {"num_draft_tokens": 0}, "default": {}}
    assert found["equality"] == {"num_prompts": 1, "num_equal": 1, "different": []}
    assert found["records"][1]["token_ids"] == [0, 1, 2, 3]
    assert found["records"][0]["work"]["num_steps"] == 4
    assert found["pass_costs"] == {"256": {"1": 0.9, "2": 1.0}}
    assert found["levels"][0]["tokens_per_second"] == pytest.approx(4 / 2.5)
    assert found["levels"][0]["steps"]["orchestration_share"] == pytest.approx(0.25)
    assert found["arrivals"][0]["excess_steps"] == pytest.approx(2.0)
    assert found["load"][1]["against_plain"]["median"] == pytest.approx(2.5)
    assert found["load_equality"]["num_equal"] == 1
    assert found["fixed"]["summary"]["lengths"][1]["variant"] == found["fixed"]["best"] == "K=4"
    assert found["random_text"]["summary"][1]["total"] == pytest.approx(1.25)
    assert found["square_wave"]["summary"]["worst_back_seconds"] == pytest.approx(1.95)
    assert len(found["square_wave"]["waves"][0]["load"]) == 2


def test_json_of_a_run_that_measured_nothing(tmp_path):
    write_json(Results(variants=(PLAIN,)), tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["fixed"]["summary"] is found["square_wave"]["summary"] is None
    assert found["load"] == found["random_text"]["summary"] == []


def test_the_summary_has_one_entry_per_category_and_variant(results, tmp_path):
    write_json(results, tmp_path / "out.json")
    plain, default = json.loads((tmp_path / "out.json").read_text())["summary"]
    assert (plain["category"], plain["variant"]) == ("chat", "K=0")
    assert plain["acceptance_rate"] is None
    assert plain["bare"]["decode"] == pytest.approx(0.9)
    assert default["bare"] is None
    assert default["speedup"]["total"] == pytest.approx(4 / 2.5)
    assert default["steps"]["num_steps"] == 3
    assert default["ideal"]["decode"] == pytest.approx(1.0)


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path):
    check_writable([tmp_path / "new.json", None])
    for path in (tmp_path, tmp_path / "none" / "out.json"):
        with pytest.raises(RequestRejected, match="cannot be written"):
            check_writable([path])


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setattr(output, "find_spec", lambda name: None)
    with pytest.raises(RequestRejected, match=r"pip install 'specdec\[plot\]'"):
        check_can_plot()


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_plot(results, tmp_path):
    check_can_plot()
    write_plot(results, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
