"""docker-compose.yml, the Dockerfile and .env.example against the schema, the code, each other.

There is no Docker here: what a container does is tested in tests/docker by following its steps.
"""

from __future__ import annotations

import json
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from packaging.requirements import Requirement

from specdec.config import DecoderConfig, SpeculativeConfig, from_parameters
from specdec.launcher.embedded import EmbeddedServer
from specdec.launcher.ports import DEFAULT_PORTS, Ports
from support.docker_files import (
    PROJECT,
    compose,
    context_copies,
    instructions,
    read_env,
    read_project,
    stage_instructions,
    variables,
)
from support.docker_script import module as docker_script

SERVERS, EXPORTS = ("server-cpu", "server-gpu"), ("export-cpu", "export-gpu")
PINNED = re.compile(r"^[\w.-]+(\[\w+\])?==[\w.+]+$")


@pytest.fixture(scope="module")
def services():
    return compose()["services"]


def seconds(text: str) -> int:
    assert text.endswith("s"), text
    return int(text[:-1])


def flags(service) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in service["command"][1:])


@pytest.mark.parametrize("environment", [{}, read_env(PROJECT / ".env.example")])
def test_the_file_follows_the_compose_specification(environment):
    schema = json.loads((PROJECT / "tests/schemas/compose-spec.json").read_text())
    errors = [
        f"{'/'.join(map(str, e.path))}: {e.message}"
        for e in Draft202012Validator(schema).iter_errors(compose(**environment))
    ]
    assert errors == []


def test_the_schema_tells_wrong_files_from_right_ones():
    schema = json.loads((PROJECT / "tests/schemas/compose-spec.json").read_text())
    wrong = compose()
    wrong["services"]["server-cpu"]["stop_grace"] = "75s"
    assert not Draft202012Validator(schema).is_valid(wrong)


def test_each_profile_is_an_export_and_a_server_of_one_image(services):
    assert set(services) == {*SERVERS, *EXPORTS}
    for kind in ("cpu", "gpu"):
        export, server = services[f"export-{kind}"], services[f"server-{kind}"]
        assert export["profiles"] == server["profiles"] == [kind]
        assert export["image"] == server["image"] == f"specdec:{kind}"
        assert export["build"] == server["build"]
        assert server["build"]["target"] == kind
        assert server["depends_on"] == {
            f"export-{kind}": {"condition": "service_completed_successfully"}
        }
        assert export["restart"] == "no"
    for kind in ("export-gpu", "server-gpu"):
        (device,) = services[kind]["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "deploy" not in services["server-cpu"]


@pytest.mark.parametrize("name", [*SERVERS, *EXPORTS])
def test_nothing_runs_as_root_or_writes_outside_its_volume(services, name):
    service = services[name]
    assert service["user"] == "1000:1000"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert any(x.startswith("/tmp:") for x in service["tmpfs"])
    assert service["environment"]["HOME"] == "/tmp"
    models = "models:/models" if name in EXPORTS else "models:/models:ro"
    assert models in service["volumes"]
    assert all(v == models or v.endswith(":ro") for v in service["volumes"])
    users = [i.value for i in stage_instructions(name[7:]) if i.name == "USER"]
    assert users == ["1000:1000"]
    owned = [i.value for i in stage_instructions("base") if "install -d" in i.value]
    assert owned == ["install -d -o 1000 -g 1000 /models"]


@pytest.mark.parametrize("name", SERVERS)
def test_the_server_s_flags_exist_in_the_real_server(services, name):
    embedded = EmbeddedServer.locate()
    text = subprocess.run(
        [embedded.binary, "--help"],
        env=embedded.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    known = set(re.findall(r"--[a-z0-9-]+", text.stdout + text.stderr))
    assert len(known) > 50
    assert set(flags(services[name])) <= known
    assert services[name]["command"][0] == "tritonserver"


@pytest.mark.parametrize("name", SERVERS)
def test_ports_are_those_of_the_client_and_the_image(services, name):
    service = services[name]
    ports = {flag: int(flags(service)[f"--{flag}-port"]) for flag in ("http", "grpc", "metrics")}
    assert Ports(**ports) == DEFAULT_PORTS
    inside = [published.rpartition(":")[2] for published in service["ports"]]
    assert inside == [str(port) for port in ports.values()]
    assert all(published.startswith("127.0.0.1:") for published in service["ports"])
    (exposed,) = [i.value for i in instructions() if i.name == "EXPOSE"]
    assert exposed.split() == inside
    default = docker_script("health").parse([])
    assert default.url == f"http://127.0.0.1:{ports['http']}"


@pytest.mark.parametrize("name", SERVERS)
def test_running_requests_may_finish_before_docker_kills(services, name):
    timeout = int(flags(services[name])["--exit-timeout-secs"])
    assert seconds(services[name]["stop_grace_period"]) >= timeout + 10
    check = services[name]["healthcheck"]
    assert (
        docker_script("health").SECONDS + 2 < seconds(check["timeout"]) < seconds(check["interval"])
    )


@pytest.mark.parametrize("name", SERVERS)
def test_paths_are_those_of_the_image(services, name):
    copies = {target: sources for sources, target in context_copies(name[7:])}
    backends = flags(services[name])["--backend-directory"]
    assert copies[f"{backends}/specdec/model.py"] == ["backend/model.py"]
    script = services[name.replace("server", "export")]["command"][1]
    assert copies[script] == ["docker/export.py"]
    how, python, health = services[name]["healthcheck"]["test"]
    assert (how, python, copies[health]) == ("CMD", "python3", ["docker/health.py"])
    assert docker_script("health").parse([]).server == 1  # the command is process 1
    assert copies["/opt/specdec/model_repository"] == ["model_repository"]
    repository = Path(flags(services[name])["--model-repository"])
    assert repository == docker_script("export").VOLUME / "repository"


@pytest.mark.parametrize("stage", ["wheel", "cpu", "gpu"])
def test_what_the_image_copies_exists_and_reaches_the_build(stage):
    ignore = (PROJECT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore
    for sources, _ in context_copies(stage):
        for source in sources:
            assert (PROJECT / source).exists(), source
            assert source.split("/")[0] in allowed, source


def test_exported_models_stay_out_of_the_image():
    ignore = (PROJECT / ".dockerignore").read_text().splitlines()
    for model in ("target", "draft", "eagle"):
        assert any(fnmatch(f"model_repository/{model}/1/model.onnx", line) for line in ignore)


def test_every_package_of_the_wheel_s_stage_is_copied():
    project = read_project()
    folders = set(project["tool"]["setuptools"]["package-dir"].values())
    copied = {source for sources, _ in context_copies("wheel") for source in sources}
    assert {folder.split("/")[0] for folder in folders} <= copied
    assert project["project"]["readme"] in copied


def image_requirements(stage: str) -> dict[str, str]:
    """Version by name of everything a stage installs from an index."""
    arguments = dict(
        i.value.split("=", 1)
        for i in stage_instructions(stage)
        if i.name == "ARG" and "=" in i.value
    )
    listed = (PROJECT / "docker/requirements.txt").read_text().splitlines()
    found = [line for line in listed if line and not line.startswith("#")]
    for i in stage_instructions(stage):
        if i.name == "RUN" and " install " in i.value:
            found += re.findall(r'"([\w-]+==[^"]+)"', i.value)
    pinned = {}
    for text in found:
        for name, value in arguments.items():
            text = text.replace(f"${{{name}}}", value)  # noqa: PLW2901
        assert PINNED.match(text), text
        requirement = Requirement(text)
        (specifier,) = requirement.specifier
        pinned[requirement.name.lower()] = specifier.version
    return pinned


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
def test_the_image_s_packages_are_pinned_within_the_project_s_ranges(stage):
    project = read_project()
    pinned = image_requirements(stage)
    for text in project["project"]["dependencies"]:
        requirement = Requirement(text)
        if requirement.name == "nvidia-pytriton":  # the image is the server
            continue
        assert requirement.name in pinned
        assert requirement.specifier.contains(pinned[requirement.name]), requirement
    assert "nvidia-pytriton" not in pinned
    assert ("tensorrt-cu13" in pinned) == (stage == "gpu")


def test_env_example_has_every_variable_at_its_default():
    example = (PROJECT / ".env.example").read_text()
    offered = read_env(PROJECT / ".env.example")
    for name, default in variables().items():
        if name in offered:
            assert offered[name] == default, name
        else:
            assert re.search(rf"^#{name}=", example, re.MULTILINE), name
            assert default == "", name
    mentioned = set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert mentioned == set(variables())


def test_variables_that_repeat_the_dockerfile_s_arguments_agree_with_them(services):
    defaults = dict(i.value.split("=", 1) for i in instructions() if i.name == "ARG")
    for name, value in services["server-gpu"]["build"]["args"].items():
        assert defaults[name] == value


def recipes() -> list[dict[str, str]]:
    """The model lines of .env.example, one recipe per block."""
    text = (PROJECT / ".env.example").read_text()
    section = text.split("choose one recipe")[1].split("\nCHECKPOINTS=")[0]
    blocks = [re.findall(r"^#?([A-Z_]+)=(\S+)$", b, re.MULTILINE) for b in section.split("\n\n")]
    return [dict(block) for block in blocks if block]


def test_the_recipes_are_the_promised_ones_and_their_values_are_allowed():
    from specdec.export.tensorrt_graph import TensorRTPrecision

    pairs = [(r["TARGET_MODEL"], r.get("DRAFT_MODEL", "")) for r in recipes()]
    names = [(Path(a).name, Path(b).name) for a, b in pairs]
    assert names == [
        ("smollm2", ""),
        ("Llama-3.1-8B-Instruct", "Llama-3.2-1B-Instruct"),
        ("Llama-3.1-70B-Instruct", "Llama-3.2-3B-Instruct"),
        ("Qwen2.5-7B-Instruct", "Qwen2.5-0.5B-Instruct"),
    ]
    for recipe in recipes():
        for name in ("TARGET_PRECISION", "DRAFT_PRECISION"):
            assert recipe.get(name, "bf16") in [p.value for p in TensorRTPrecision]
        if "DRAFTER" in recipe:
            from_parameters(SpeculativeConfig, {"drafter": recipe["DRAFTER"]})
        for name, model in recipe.items():
            if name.endswith("_MODEL") and model != "smollm2":
                assert model.startswith("/checkpoints/")


def test_default_sizes_are_the_backend_s_own(services):
    environment = services["export-gpu"]["environment"]
    config = DecoderConfig()
    assert int(environment["MAX_SEQUENCES"]) == config.max_sequences
    assert int(environment["MAX_SEQUENCE_LENGTH"]) == config.max_sequence_length
