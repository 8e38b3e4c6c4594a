"""The logs are those of the real server, shortened only in their paths."""

from pathlib import Path

import pytest

from specdec.launcher.server_log import failure_reasons, loaded_models

LOGS = Path(__file__).parent / "logs"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "missing_artifact",
            "target: no exported model in /x (specdec.json is missing): run `specdec export` first",
        ),
        ("missing_module", "target: ModuleNotFoundError: No module named 'nonexist'"),
        (
            "unreadable_config",
            "target: failed to read text proto from /run/repo/target/config.pbtxt: 6:4: "
            'Message type "inference.ModelConfig" has no field named "foo".',
        ),
    ],
)
def test_one_line_per_cause(name, reason):
    assert failure_reasons((LOGS / f"{name}.log").read_text()) == [reason]


def test_a_dependant_is_not_a_cause():
    log = (
        "E1129 1:1 7 model_lifecycle.cc:642] \"failed to load 'ensemble' version 1: Invalid "
        'argument: ensemble ensemble contains models that are not available or ambiguous: x"\n'
        "E1129 1:1 7 model_lifecycle.cc:642] \"failed to load 'x' version 1: Internal: "
        'InvalidConfig: parameter top is 9\\n\\nAt:\\n  /m.py(7): initialize\\n"\n'
    )
    assert failure_reasons(log) == ["x: parameter top is 9"]


def test_a_model_that_names_itself_is_named_once():
    log = (
        "E1129 1:1 7 model_lifecycle.cc:642] \"failed to load 'target' version 1: Internal: "
        'TritonModelException: target: no room\\n\\nAt:\\n  /m.py(7): initialize\\n"\n'
    )
    assert failure_reasons(log) == ["target: no room"]


def test_other_errors_then_the_fatal_line_then_the_tail():
    error = 'E1129 1:1 7 http_server.cc:1] "failed to start HTTP service: in use"'
    noise = 'E1129 1:1 7 server.cc:241] "CudaDriverHelper has not been initialized."'
    fatal = "error: creating server: Internal - failed to stat file /none"
    assert failure_reasons("\n".join([noise, error, fatal])) == [
        "failed to start HTTP service: in use"
    ]
    assert failure_reasons("\n".join([noise, fatal])) == ["failed to stat file /none"]
    assert failure_reasons("\n\n".join(map(str, range(9)))) == ["4", "5", "6", "7", "8"]
    assert failure_reasons("") == []


def test_loaded_models():
    log = (LOGS / "missing_artifact.log").read_text()
    assert loaded_models(log) == ["m1"]
