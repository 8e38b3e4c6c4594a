import os
import subprocess

import pytest

from specdec.errors import InvalidConfig
from specdec.launcher.run_directory import PREFIX, RunDirectory
from specdec.launcher.server import ServerFailed


def fill(run):
    run.models.mkdir()
    run.backends.mkdir()
    run.log.write_text("log")


def end_with_error(run, fill):
    with run:
        fill(run)
        raise ServerFailed("x")


def test_gone_at_the_end(tmp_path):
    with RunDirectory(tmp_path / "new") as run:
        fill(run)
        assert run.path.parent == tmp_path / "new"
    assert list((tmp_path / "new").iterdir()) == []


def test_after_an_error_only_the_log_is_left(tmp_path):
    run = RunDirectory(tmp_path)

    with pytest.raises(ServerFailed):
        end_with_error(run, fill)
    assert list(run.path.iterdir()) == [run.log]


def test_an_error_before_there_is_a_log_leaves_nothing(tmp_path):
    with pytest.raises(ServerFailed):
        end_with_error(RunDirectory(tmp_path), lambda run: run.models.mkdir())
    assert list(tmp_path.iterdir()) == []


def test_directories_of_dead_launchers_are_swept(tmp_path):
    with subprocess.Popen(["true"]) as process:
        pass
    dead = tmp_path / f"{PREFIX}{process.pid}-x"
    alive = tmp_path / f"{PREFIX}{os.getpid()}-x"
    others = tmp_path / f"{PREFIX}notes"
    for path in (dead, alive, others):
        path.mkdir()
    with RunDirectory(tmp_path):
        assert not dead.exists()
    assert sorted(tmp_path.iterdir()) == sorted([alive, others])


def test_an_unusable_parent_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match=r"cannot write to run directory .*file"):
        RunDirectory(tmp_path / "file").__enter__()
