import os
import subprocess

from specdec.launcher.shared_memory import region_prefix, remove_regions, sweep_stale


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def fill(directory, *names):
    for name in names:
        (directory / name).touch()


def test_only_the_regions_of_that_server(tmp_path):
    fill(tmp_path, "specdec_12_a", "specdec_12_b", "specdec_123_a", "triton_12_a", "specdec_x_12_")
    assert sorted(remove_regions(12, tmp_path)) == ["specdec_12_a", "specdec_12_b"]
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"specdec_123_a", "triton_12_a", "specdec_x_12_"}


def test_stale_regions_are_those_whose_server_is_gone(tmp_path):
    gone, alive = region_prefix(dead_pid()) + "u", region_prefix(os.getpid()) + "u"
    fill(tmp_path, gone, alive, "specdec_", "specdec_notes", f"triton_{dead_pid()}_u")
    assert sweep_stale(tmp_path) == [gone]
    assert (tmp_path / alive).exists()
    assert len(list(tmp_path.iterdir())) == 4


def test_no_shared_memory_directory(tmp_path):
    assert sweep_stale(tmp_path / "none") == []
