"""The command line as a person meets it: what it prints, where, and its exit codes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from specdec import __version__
from specdec.client import serve_command
from specdec.client.cli import app
from specdec.client.serve_command import _wait_ready
from specdec.launcher.launch import Launched
from specdec.launcher.ports import HOST
from specdec.launcher.repository import Models, compose
from support.trivial_repository import write_artifact, write_repository

CLI = [sys.executable, "-m", "specdec.client.cli"]


def run(*arguments, **more):
    """The real process, with its exit code and both outputs."""
    command = [*CLI, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, **more)


def test_version():
    assert CliRunner().invoke(app, ["--version"]).output == f"specdec {__version__}\n"


def test_help_names_the_commands_and_imports_nothing_heavy():
    code = (
        "import sys; from specdec.client.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('grpc', 'torch', 'onnx', 'httpx') if m in sys.modules])"
    )
    done = run_code(code)
    assert all(name in done for name in ("export", "serve", "generate"))
    assert done.splitlines()[-1] == "[]"


def run_code(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_usage_errors_exit_with_2():
    assert CliRunner().invoke(app, ["generate", "x", "--max-tokens", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2


class TestGenerate:
    def test_text_to_stdout_and_numbers_to_stderr(self, service):
        done = run("generate", "Say hello", "--url", service.url)
        assert done.returncode == 0
        assert done.stdout == "Héllo, wörld\n"
        assert done.stderr.startswith("4 tokens · ")
        for part in ("tokens/s", "TTFT", "2.00 tokens per pass", "accepted 2/3 drafted (67%)"):
            assert part in done.stderr
        sent = service.calls[0].inputs
        assert json.loads(sent["messages"][0]) == [{"role": "user", "content": "Say hello"}]
        assert sent["text_input"] == [""]
        assert "seed" not in sent

    def test_options_reach_the_server(self, service):
        options = ["--system", "Be brief", "-n", "5", "--seed", "3", "-k", "0", "--stop", "a"]
        options += ["--stop", "b", "--temperature", "0.5", "--drafter", "ngram"]
        result = CliRunner().invoke(app, ["generate", "x", "--url", service.url, *options])
        assert result.exit_code == 0, result.output
        sent = service.calls[0].inputs
        assert json.loads(sent["messages"][0])[0] == {"role": "system", "content": "Be brief"}
        assert (sent["max_tokens"], sent["seed"], sent["num_draft_tokens"]) == ([5], [3], [0])
        assert (sent["stop_words"], sent["drafter"]) == (["a", "b"], ["ngram"])
        assert sent["temperature"] == [0.5]

    def test_raw_prompt_from_stdin(self, service):
        done = run("generate", "-", "--raw", "--url", service.url, input="Once upon\n")
        assert done.returncode == 0
        assert service.calls[0].inputs["text_input"] == ["Once upon\n"]
        assert "messages" not in service.calls[0].inputs

    def test_json(self, service):
        done = run("generate", "x", "--json", "--model", "logprobs", "--url", service.url)
        found = json.loads(done.stdout)
        assert found["text"] == "ab"
        assert found["token_ids"] == [1, 2]
        assert found["from_draft"] == [True, False]
        assert found["logprobs"] == [-0.5, -0.25]
        assert found["finish_reason"] == "stop"
        assert found["stats"]["num_accepted_tokens"] == 1
        assert found["stats"]["tokens_per_pass"] == 2.0
        assert done.stderr == ""

    def test_highlight_colours_exactly_the_drafted_tokens(self, service):
        environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
        environment.pop("NO_COLOR", None)
        done = run("generate", "x", "--highlight", "--url", service.url, env=environment)
        assert done.stdout == "Hé\x1b[32mllo\x1b[0m\x1b[32m, \x1b[0mwörld\n"
        assert "drafted and accepted" in done.stderr

    @pytest.mark.parametrize(("model", "code"), [("rejects", 2), ("fails", 1), ("dies", 1)])
    def test_an_error_is_one_line(self, service, model, code):
        done = run("generate", "x", "--model", model, "--url", service.url)
        assert done.returncode == code
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1

    def test_no_server(self):
        with socket.create_server((HOST, 0)) as s:
            port = s.getsockname()[1]
        done = run("generate", "x", env=os.environ | {"GRPC_PORT": str(port)})
        assert done.returncode == 1
        assert done.stderr == (
            f"error: no server answers at 127.0.0.1:{port}: is `specdec serve` running?\n"
        )

    def test_ctrl_c(self, service):
        command = [*CLI, "generate", "x", "--model", "hangs", "--url", service.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout.read(5) == b"first"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors == b""
        assert service.calls[0].cancelled.wait(20)

    def test_system_needs_a_chat(self):
        done = run("generate", "x", "--raw", "--system", "y")
        assert done.returncode == 2
        assert done.stderr == "error: --system belongs to a chat: leave out --raw\n"


class TestServe:
    """What ends before a server is started; the rest is in tests/launcher/test_launch.py."""

    @pytest.fixture
    def repository(self, tmp_path):
        repository = write_repository(tmp_path / "repository")
        write_artifact(repository / "target")
        return repository

    def fails(self, *arguments):
        begin = time.monotonic()
        done = run("serve", *arguments)
        assert time.monotonic() - begin < 20
        assert (done.returncode, done.stdout) == (2, "")
        lines = done.stderr.splitlines()
        assert len(lines) == 1
        return lines[0]

    def test_no_artifact(self, tmp_path):
        repository = write_repository(tmp_path)
        message = self.fails("--model-repository", repository)
        assert message.startswith(f"error: no exported target in {repository}/target")
        assert "run `specdec export target --model smollm2`" in message

    def test_no_repository(self, repository, tmp_path):
        target = repository / "target"
        message = self.fails("--model-repository", tmp_path / "none", "--target", target)
        assert "--model-repository" in message

    def test_a_head_and_none(self, repository, tmp_path):
        message = self.fails("--model-repository", repository, "--head", tmp_path, "--no-head")
        assert message == f"error: --head {tmp_path} and --no-head: choose one"

    def test_a_head_that_does_not_fit_is_one_line(self, repository, capsys):
        write_artifact(repository / "eagle", source="head for another", architecture="eagle")
        composed = compose(Models(repository), repository.parent / "served")

        class Server:
            def wait_ready(self):
                pass

        _wait_ready(Launched(Server(), composed))
        note, loading = capsys.readouterr().err.splitlines()
        assert note.startswith(f"note: the head in {repository}/eagle is left out: it is head for")
        assert loading == "loading target, speculative ..."

    @pytest.mark.parametrize(
        ("options", "is_inside"),
        [
            ((), True),
            (("--target-apart",), False),
            (("--set", "speculative.target_in_process=false"), False),
        ],
    )
    def test_a_target_inside_is_no_model_to_wait_for(
        self, repository, capsys, monkeypatch, options, is_inside
    ):
        served = []

        def serve_(models, *_):
            served.append(compose(models, repository.parent / "served"))

        monkeypatch.setattr(serve_command, "_serve", serve_)
        CliRunner().invoke(app, ["serve", "--model-repository", str(repository), *options])
        (composed,) = served
        assert composed.config.target_in_process == is_inside

        class Server:
            def wait_ready(self):
                pass

        _wait_ready(Launched(Server(), composed))
        names = "speculative" if is_inside else "target, speculative"
        assert capsys.readouterr().err == f"loading {names} ...\n"

    def test_port_in_use(self, repository):
        with socket.create_server((HOST, 0)) as taken:
            port = taken.getsockname()[1]
            message = self.fails("--model-repository", repository, "--metrics-port", port)
        assert f"metrics port {port} is in use: set METRICS_PORT or --metrics-port" in message

    def test_bad_setting(self, repository):
        options = ("--model-repository", repository, "--set")
        assert "expected MODEL.NAME=VALUE" in self.fails(*options, "max_waiting=3")
        assert "unknown parameter 'nope'" in self.fails(*options, "speculative.nope=3")

    def test_bad_draft_length(self, repository):
        message = self.fails("--model-repository", repository, "--num-draft-tokens", 99)
        assert "num_draft_tokens is 99: allowed are 0 to" in message
