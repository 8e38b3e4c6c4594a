"""The decoder's Triton glue, with a stand-in for Triton's Python bindings."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from specdec import frame, wire
from specdec.config import DecoderConfig
from specdec.decoder.decoder import load_decoder
from specdec.decoder.load import load
from specdec.errors import DecoderFailed
from specdec.types import Extend, HeadCall
from support.decoding import GREEDY, generate
from support.heads import export_tiny_head, random_head
from support.tiny import export_tiny

BACKEND = Path(wire.__file__).parents[1] / "model.py"


class Tensor:
    def __init__(self, name, array):
        assert isinstance(array, np.ndarray)
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class Response:
    def __init__(self, output_tensors=(), error=None):
        self.output_tensors, self.error = output_tensors, error


class Request:
    def __init__(self, arrays):
        self._arrays = arrays

    def inputs(self):
        return [Tensor(frame.INPUT, frame.pack(self._arrays, wire.INPUTS))]


class Config:
    def __init__(self):
        self.inputs, self.outputs, self.max_batch_size = [], [], None

    def add_input(self, tensor):
        self.inputs.append(tensor)

    def add_output(self, tensor):
        self.outputs.append(tensor)

    def set_max_batch_size(self, size):
        self.max_batch_size = size


@pytest.fixture
def glue(monkeypatch, tiny_artifacts):
    """The module as Triton imports it; `glue.log` collects what it logs."""
    log: list[str] = []
    bindings = types.ModuleType("triton_python_backend_utils")
    bindings.Tensor, bindings.InferenceResponse, bindings.TritonError = Tensor, Response, str
    bindings.TritonModelException = type("TritonModelException", (Exception,), {})
    bindings.Logger = types.SimpleNamespace(log_info=log.append, log_error=log.append)
    bindings.get_model_dir = lambda: str(tiny_artifacts["fp32"])
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", bindings)
    spec = importlib.util.spec_from_file_location("decoder_backend_model", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.log = log
    return module


def start(glue, **parameters):
    model = glue.TritonPythonModel()
    fields = {name: {"string_value": str(value)} for name, value in parameters.items()}
    config = {"parameters": fields} if fields else {}
    model.initialize({"model_name": "target", "model_config": json.dumps(config)})
    return model


def transport(model):
    def call(arrays, wanted):
        (response,) = model.execute([Request(arrays)])
        if response.error is not None:
            raise DecoderFailed(response.error)
        (tensor,) = response.output_tensors
        assert tensor.name() == frame.OUTPUT
        outputs = frame.unpack(tensor.as_numpy(), wire.OUTPUTS)
        return {name: outputs[name] for name in wanted}

    return call


def test_declares_one_tensor_each_way(glue):
    config = glue.TritonPythonModel.auto_complete_config(Config())
    assert config.max_batch_size == 0
    assert [t["name"] for t in config.inputs] == [frame.INPUT]
    assert [t["name"] for t in config.outputs] == [frame.OUTPUT]
    assert all(t["dims"] == [-1] for t in config.inputs + config.outputs)


def test_a_remote_decoder_over_it_is_the_local_one(glue, tiny_artifacts):
    model = start(glue, max_sequences=3, num_threads=2)
    remote = wire.RemoteDecoder(transport(model))
    local = load_decoder(DecoderConfig(max_sequences=3, num_threads=2), tiny_artifacts["fp32"])
    described = remote.describe()
    assert described.costs
    assert described._replace(costs=()) == local.info
    ids, logprobs = generate(local, [5, 6, 7, 8, 9], chunk=2)
    found = generate(remote, [5, 6, 7, 8, 9], chunk=2)
    assert found == (ids, [float(np.float32(p)) for p in logprobs])
    remote.reset()
    assert remote.open(1, [5, 6, 7, 8, 9], GREEDY) == 4


def test_trees_and_candidates_cross_it(glue, tiny_artifacts):
    remote = wire.RemoteDecoder(transport(start(glue, max_sequences=3, num_threads=2)))
    local = load_decoder(DecoderConfig(max_sequences=3, num_threads=2), tiny_artifacts["fp32"])
    tree = Extend(1, 0, [5, 6, 7, 8, 9, 10], 4, parents=(-1, -1, 0), num_candidates=3)
    results = []
    for decoder in (remote, local):
        decoder.open(1, [5, 6, 7], GREEDY)
        decoder.open(2, [8], GREEDY)
        results.append(decoder.extend([Extend(2, 0, [8], 1, 2), tree]).sequences)
    assert [s.token_ids for s in results[0]] == [s.token_ids for s in results[1]]
    assert [s.candidate_ids for s in results[0]] == [s.candidate_ids for s in results[1]]
    with pytest.raises(DecoderFailed, match=r"^sequence 1: token 0 of a tree follows 0: "):
        remote.extend([tree._replace(parents=(0, 0, 0))])


def test_a_head_is_served_by_the_same_file(glue, tmp_path):
    target = export_tiny(tmp_path)
    head_dir = export_tiny_head(tmp_path, target, random_head(tmp_path / "model")[0])
    remote = wire.RemoteDecoder(transport(start(glue, artifact_dir=head_dir, num_threads=1)))
    local = load(DecoderConfig(num_threads=1), head_dir)
    assert remote.describe()._replace(costs=()) == local.info
    features = np.random.default_rng(0).standard_normal((3, local.info.feature_size))
    call = HeadCall(1, 0, [5, 6, 7], features.astype(np.float16), (8,), 6, 3, 2, 0.01)
    found = []
    for head in (remote, local):
        assert head.open(1, [4, 5, 6, 7], GREEDY) == 0
        found.append(head.draft([call]).drafts[0])
    assert found[0][:2] == found[1][:2]
    assert len(found[0].token_ids) == 6
    with pytest.raises(DecoderFailed, match="the cache holds 3 rows"):
        remote.draft([call._replace(start=4)])


def test_logs_what_the_probe_found(glue):
    start(glue, max_sequences=3)
    assert len(glue.log) == 1
    assert "exactness: bitwise, min_rows" in glue.log[0]


def test_the_artifact_may_be_elsewhere(glue, tiny_artifacts):
    model = start(glue, artifact_dir=tiny_artifacts["int4"])
    assert wire.RemoteDecoder(transport(model)).describe().precision == "int4"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_sequences": 0}, "target: parameter max_sequences is 0"),
        ({"speed": 3}, "unknown parameter 'speed'"),
        ({"artifact_dir": "/nowhere"}, "no exported model in /nowhere"),
    ],
)
def test_bad_settings_stop_loading_with_one_line(glue, parameters, message):
    exception = sys.modules["triton_python_backend_utils"].TritonModelException
    with pytest.raises(exception, match=message):
        start(glue, **parameters)


def test_a_refusal_is_short_and_not_logged(glue):
    model = start(glue)
    glue.log.clear()
    with pytest.raises(DecoderFailed, match=r"^sequence 9 is not open$"):
        wire.RemoteDecoder(transport(model)).extend([Extend(9, 0, [1], 1)])
    assert glue.log == []


def test_a_fault_of_ours_is_logged_and_hidden(glue):
    model = start(glue)
    with pytest.raises(DecoderFailed, match=r"^internal error, see the server's log$"):
        transport(model)({"operation": np.array([b"dance"], np.object_)}, ())
    assert "Traceback" in glue.log[-1]
    assert "dance" in glue.log[-1]


def test_requests_of_one_batch_fail_alone(glue):
    model = start(glue)
    good = {"operation": np.array([b"describe"], np.object_)}
    bad = {"operation": np.array([b"dance"], np.object_)}
    responses = model.execute([Request(good), Request(bad), Request(good)])
    assert [response.error is None for response in responses] == [True, False, True]
