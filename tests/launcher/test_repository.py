import pytest

from specdec.artifact import HEAD, Artifact
from specdec.errors import InvalidArtifact, InvalidConfig
from specdec.launcher.repository import Models, compose, read_config
from specdec.speculation.draft_models import head_dir, target_dir, with_models_inside
from support.trivial_repository import write_artifact, write_repository


@pytest.fixture
def source(tmp_path):
    repository = write_repository(tmp_path / "source")
    write_artifact(repository / "target")
    return repository


def parameters(path):
    return {k: v.string_value for k, v in read_config(path / "config.pbtxt").parameters.items()}


def test_target_only(source, tmp_path):
    out = tmp_path / "out"
    composed = compose(Models(source), out)
    assert sorted(p.name for p in out.iterdir()) == ["ensemble", "speculative", "target"]
    assert (out / "ensemble" / "1").is_dir()
    assert (out / "speculative" / "1" / "model.py").is_file()
    assert (out / "target" / "1" / "model.onnx").read_bytes() == b"graph"
    assert (out / "target" / "1" / "model.onnx").is_symlink()
    assert composed.draft is None
    assert composed.target.source == "tiny"
    assert parameters(out / "speculative") == {"draft_model_name": "", "head_model_name": ""}


def test_a_draft_is_served_when_it_is_there(source, tmp_path):
    write_artifact(source / "draft", source="tinier")
    composed = compose(Models(source), tmp_path / "out")
    assert composed.draft.source == "tinier"
    assert composed.config.draft_model_name == "draft"
    assert (tmp_path / "out" / "draft" / "1" / "specdec.json").is_file()


def write_head(directory, **changed):
    """A head of the target in `source`, but for what is changed."""
    return write_artifact(directory, **{"source": "head for tiny", "architecture": HEAD, **changed})


def test_a_head_is_served_when_it_is_there(source, tmp_path):
    write_head(source / "eagle")
    composed = compose(Models(source), tmp_path / "out")
    assert (composed.head.source, composed.draft) == ("head for tiny", None)
    assert composed.head_left_out == ""
    assert composed.config.head_model_name == "eagle"
    out = tmp_path / "out"
    config = with_models_inside(composed.config, out / "speculative/1")
    assert head_dir(config, out) == out / "speculative/1/eagle"
    assert Artifact.read(out / "speculative/1/eagle").source == "head for tiny"
    assert not (out / "eagle").exists()
    overrides = {"eagle": {"num_threads": "1"}}
    with pytest.raises(InvalidConfig, match="eagle runs inside speculative: set"):
        compose(Models(source, parameters=overrides), tmp_path / "again")


def test_a_head_can_be_a_model_of_its_own(source, tmp_path):
    write_head(source / "eagle")
    parameters_ = {"speculative": {"head_in_process": "false"}, "eagle": {"num_threads": "1"}}
    out = tmp_path / "out"
    composed = compose(Models(source, parameters=parameters_), out)
    assert not composed.config.head_in_process
    config = with_models_inside(composed.config, out / "speculative/1")
    assert head_dir(config, out) == out / "eagle/1"
    assert Artifact.read(out / "eagle/1").source == "head for tiny"
    assert parameters(out / "eagle") == {"num_threads": "1"}
    assert not (out / "speculative/1/eagle").exists()


def test_a_target_can_run_inside_speculative(source, tmp_path):
    inside, out = {"speculative": {"target_in_process": "true"}}, tmp_path / "out"
    sizes = {"max_sequences": "4"}
    composed = compose(Models(source, parameters=inside, decoder_parameters=sizes), out)
    assert sorted(p.name for p in out.iterdir()) == ["ensemble", "speculative"]
    config = with_models_inside(composed.config, out / "speculative/1")
    assert target_dir(config, out) == out / "speculative/1/target"
    assert Artifact.read(out / "speculative/1/target").source == "tiny"
    for parameter in ("num_threads", "device"):
        inside["target"] = {parameter: "1"}
        with pytest.raises(
            InvalidConfig, match=rf"target runs inside .*: set .*target_{parameter}"
        ):
            compose(Models(source, parameters=inside), tmp_path / parameter)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"source": "head for tin"}, "it is head for tin, the target is tiny"),
        ({"architecture": "llama"}, "it is a llama, not a head"),
        ({"vocabulary_sha256": "w"}, "the tokens of tiny have changed since"),
        (
            {"feature_layers": (0, 1)},
            "it reads 8 numbers of layers 0,1, the target gives out 8 numbers of layers none",
        ),
        ({"hidden_size": 16}, "it reads 16 numbers of layers none, the target"),
        ({"format": 1}, "format 1, this version reads 2"),
    ],
)
def test_a_head_left_by_another_target_stops_no_server(source, tmp_path, changed, reason):
    folder = write_head(source / "eagle", **changed)
    composed = compose(Models(source), tmp_path / "out")
    assert composed.head is None
    assert composed.config.head_model_name == ""
    assert not (tmp_path / "out" / "eagle").exists()
    assert composed.head_left_out.startswith(f"the head in {folder} is left out: ")
    assert reason in composed.head_left_out


def test_a_head_fits_its_target_at_any_precision(source, tmp_path):
    write_head(source / "eagle")
    write_artifact(source / "target", precision="int4", weights_sha256="other")
    assert compose(Models(source), tmp_path / "out").head is not None


def test_a_head_that_was_asked_for_is_not_left_out(source, tmp_path):
    """Its user knows better than its label; the server checks its shapes."""
    elsewhere = write_head(tmp_path / "eagle", source="head for another checkout")
    composed = compose(Models(source, head=elsewhere), tmp_path / "out")
    assert composed.head.source == "head for another checkout"
    assert composed.head_left_out == ""


def test_no_head_where_none_is_wanted(source, tmp_path):
    folder = write_head(source / "eagle")
    composed = compose(Models(source, no_head=True), tmp_path / "out")
    assert (composed.head, composed.head_left_out) == (None, "")
    assert composed.config.head_model_name == ""
    with pytest.raises(InvalidConfig, match=r"--head .*eagle and --no-head: choose one"):
        compose(Models(source, head=folder, no_head=True), tmp_path / "out")


def test_a_head_that_was_asked_for_must_exist(source, tmp_path):
    with pytest.raises(InvalidArtifact, match=r"run `specdec export head --model TRAINED`"):
        compose(Models(source, head=tmp_path / "nowhere"), tmp_path / "out")


def test_artifacts_from_elsewhere_are_served_under_our_names(source, tmp_path):
    elsewhere = write_artifact(tmp_path / "big", source="big")
    (elsewhere / "config.pbtxt").write_text(
        'name: "big" backend: "specdec" parameters { key: "num_threads" '
        'value { string_value: "3" } }'
    )
    compose(Models(source, target=elsewhere, draft=elsewhere), tmp_path / "out")
    for name in ("target", "draft"):
        config = read_config(tmp_path / "out" / name / "config.pbtxt")
        assert (config.name, config.backend) == (name, "specdec")
        assert config.parameters["num_threads"].string_value == "3"


def test_parameters_override_the_config(source, tmp_path):
    write_artifact(source / "draft")
    models = Models(
        source,
        parameters={"speculative": {"max_waiting": "7"}, "draft": {"max_sequences": "2"}},
        decoder_parameters={"max_sequences": "5", "num_threads": "1"},
    )
    composed = compose(models, tmp_path / "out")
    assert composed.config.max_waiting == 7
    assert parameters(tmp_path / "out" / "target") == {"max_sequences": "5", "num_threads": "1"}
    assert parameters(tmp_path / "out" / "draft") == {"max_sequences": "2", "num_threads": "1"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"speculative": {"nonsense": "1"}}, "unknown parameter 'nonsense'"),
        ({"speculative": {"num_draft_tokens": "99"}}, "num_draft_tokens is 99: allowed are 0 to"),
        ({"target": {"max_sequences": "many"}}, "max_sequences is 'many': expected int"),
        ({"draft": {"max_sequences": "1"}}, "no model 'draft' is served: there are speculative"),
    ],
)
def test_bad_parameters(source, tmp_path, overrides, message):
    with pytest.raises(InvalidConfig, match=message):
        compose(Models(source, parameters=overrides), tmp_path / "out")


def test_no_target(tmp_path):
    source = write_repository(tmp_path / "source")
    with pytest.raises(InvalidArtifact, match="run `specdec export target --model smollm2`"):
        compose(Models(source), tmp_path / "out")


def test_a_draft_that_was_asked_for_must_exist(source, tmp_path):
    with pytest.raises(InvalidArtifact, match=r"no exported draft in .*nowhere"):
        compose(Models(source, draft=tmp_path / "nowhere"), tmp_path / "out")


def test_no_repository(source, tmp_path):
    with pytest.raises(InvalidConfig, match=r"speculative/config.pbtxt is missing"):
        compose(Models(tmp_path, target=source / "target"), tmp_path / "out")


def test_a_broken_config_is_named_with_its_line(source, tmp_path):
    (source / "speculative" / "config.pbtxt").write_text('backend: "python"\nfoo: 1\n')
    with pytest.raises(InvalidConfig, match=r"config.pbtxt is not a model configuration: 2:1"):
        compose(Models(source), tmp_path / "out")
