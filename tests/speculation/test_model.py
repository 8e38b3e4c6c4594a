"""The model as Triton runs it: callbacks, responses and BLS calls, over scripted decoders."""

import importlib.util
import json
import shutil
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specdec import frame, wire
from specdec.artifact import HEAD
from specdec.config import DecoderConfig
from specdec.decoder import local
from specdec.errors import DecoderFailed, InvalidConfig
from support import fake_pb_utils as pb
from support.fakes import ScriptedDecoder
from support.processes import wait_until
from support.requests import column, tensors
from support.runtimes import artifact
from support.scripted_head import ScriptedHead
from support.tiny import write_tiny_tokenizer

FILE = Path(__file__).parents[2] / "model_repository" / "speculative" / "1" / "model.py"
TRITON_IO = "specdec.speculation.triton_io"


class BlsCalls:
    """The other models of the server; notes what each call carried, and from which thread."""

    def __init__(self, **decoders):
        self.decoders = decoders
        self.calls = []
        self.most_at_once = 0
        self.gate = threading.Event()  # closed: calls wait for it
        self.gate.set()
        self.refusal = "Model '{}' is not ready."
        self._lock = threading.Lock()
        self._num_now = 0

    def __call__(self, model_name, inputs, wanted):
        with self._lock:
            self._num_now += 1
            self.most_at_once = max(self.most_at_once, self._num_now)
        try:
            assert self.gate.wait(5)
            time.sleep(0.0005)
            call = frame.unpack(inputs[frame.INPUT], wire.INPUTS)
            if model_name not in self.decoders:
                raise DecoderFailed(self.refusal.format(model_name))
            results = wire.serve(self.decoders[model_name], call)
        except DecoderFailed as error:
            return pb.InferenceResponse(error=pb.TritonError(str(error)))
        finally:
            with self._lock:
                self._num_now -= 1
        outputs = {frame.OUTPUT: frame.pack(results, wire.OUTPUTS)}
        self.calls.append(
            SimpleNamespace(
                operation=call["operation"][0].decode(),
                thread=threading.current_thread().name,
                num_sequences=len(call.get("sequence_ids", ())),
                num_rows=len(call.get("token_ids", ())) + len(results.get("output_ids", ())),
                num_tensors=len(inputs) + len(wanted),
                num_bytes=sum(array.nbytes for array in (*inputs.values(), *outputs.values())),
            )
        )
        return pb.InferenceResponse([pb.Tensor(name, outputs[name]) for name in wanted])


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    for name in ("target", "draft"):
        (root / name / "1").mkdir(parents=True)
        write_tiny_tokenizer(root / name / "1")
        artifact().write(root / name / "1")
    return root


@pytest.fixture
def start(repository, monkeypatch):
    """Load the model with these parameters and decoders; it is unloaded when the test ends."""
    bindings = pb.module()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", bindings)
    monkeypatch.setattr(pb.MetricFamily, "all", {})
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    spec = importlib.util.find_spec(TRITON_IO)
    monkeypatch.setitem(sys.modules, TRITON_IO, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(sys.modules[TRITON_IO])
    spec = importlib.util.spec_from_file_location("speculative_model", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    models = []

    def load(calls=None, **parameters):
        calls = calls or BlsCalls(target=ScriptedDecoder(), draft=ScriptedDecoder())

        class Call(pb.InferenceRequest):
            def __init__(self, model_name, requested_output_names, inputs):
                super().__init__(model_name, requested_output_names, inputs)
                self._model_name = model_name

            def exec(self):
                return calls(self._model_name, self._inputs, self._wanted)

        bindings.InferenceRequest = Call
        parameters = {"draft_model_name": "draft", "adaptive": "false"} | parameters
        values = {name: {"string_value": str(value)} for name, value in parameters.items()}
        model = module.TritonPythonModel()
        model.initialize(
            {
                "model_name": "speculative",
                "model_repository": str(repository / "speculative"),
                "model_version": "1",
                "model_config": json.dumps({"parameters": values}),
            }
        )
        models.append(model)
        return model

    yield load
    for model in models:
        if hasattr(model, "_publisher"):  # else its test has unloaded it
            model.finalize()


def ask(**inputs):
    """A request with token ids for a prompt."""
    given = {"text_input": "", "input_ids": [5, 6], "max_tokens": 6, "end_id": -1}
    parameters = inputs.pop("parameters", "")
    return pb.Request(parameters, **tensors(**given | inputs))


def ending(request, seconds=5.0):
    """How a request ended, once it has: the error's (code, message), or None."""
    wait_until(lambda: any(flags for _, flags in request.sender.sent), seconds)
    assert [flags for _, flags in request.sender.sent[:-1]] == [0] * (len(request.sender.sent) - 1)
    response, flags = request.sender.sent[-1]
    assert flags == 1
    error = response.error()
    return (error.code(), error.message()) if error else None


def run(model, *requests):
    assert model.execute(list(requests)) is None  # decoupled: answers go through the senders
    return requests


@pytest.fixture
def all_was_sent(caplog):
    """The fake sender refuses a second final flag, which the outbox would log and survive."""
    yield
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert "sending a response failed" not in [record.message for record in records]


TWO = {"input_ids": np.array([[5, 6], [7, 8]], np.int32), "text_input": column(["", ""])}
# Inputs and the code they end with, None where that is the text's own end.
ANSWERS = {
    "streamed": ({"stream": True}, None),
    "in one piece": ({"stream": False}, None),
    "one token": ({"max_tokens": 1}, None),
    "without drafts": ({"num_draft_tokens": 0}, None),
    "an end id": ({"end_id": 7, "stream": True, "max_tokens": 300}, None),
    "prompts that end apart": (TWO | {"max_tokens": column([2, 9], np.int32)}, None),
    "the same, streamed": (TWO | {"max_tokens": column([2, 9], np.int32), "stream": True}, None),
    "refused": ({"max_tokens": -1}, "invalid"),
    "parameters that are no JSON": ({"parameters": "{"}, "invalid"),
    "a tensor that cannot be read": ({"input_ids": np.array([[99]])}, "invalid"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.usefixtures("all_was_sent")
def test_one_final_flag(start, name):
    inputs, code = ANSWERS[name]
    (request,) = run(start(), ask(**inputs))
    error = ending(request)
    assert (error and error[0]) == code
    assert len(request.sender.sent) == 1 or inputs["stream"]


@pytest.mark.usefixtures("all_was_sent")
def test_one_final_flag_when_full(start):
    calls = BlsCalls(target=ScriptedDecoder())
    model = start(calls, max_running=1, max_waiting=1, draft_model_name="")
    assert ending(*run(model, ask())) is None
    calls.gate.clear()
    requests = run(model, *(ask() for _ in range(8)))
    calls.gate.set()
    errors = [ending(request) for request in requests]
    assert errors[:2] == [None, None]
    assert {code for code, _ in errors[2:]} == {"unavailable"}


@pytest.mark.usefixtures("all_was_sent")
def test_one_final_flag_when_cancelled(start):
    """One that runs and one that waits; their slots are free for the next."""
    calls = BlsCalls(target=ScriptedDecoder(), draft=ScriptedDecoder())
    model = start(calls, max_running=1)
    requests = run(model, *(ask(max_tokens=500, num_draft_tokens=0, stream=True) for _ in "ab"))
    wait_until(lambda: requests[0].sender.sent)
    calls.gate.clear()
    for request in requests:
        request.sender.cancelled = True
    calls.gate.set()
    assert [ending(request)[0] for request in requests] == ["cancelled"] * 2
    assert len(requests[0].sender.sent) < 500
    assert ending(*run(model, ask())) is None
    assert calls.decoders["target"].num_opened == 2


class Faulty(ScriptedDecoder):
    """Refuses prompts that begin with 13; its fifth call fails as told."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def open(self, sequence_id, prompt_ids, sampling, cache_salt=0):
        if prompt_ids[0] == 13:
            raise DecoderFailed("13 is refused")
        return super().open(sequence_id, prompt_ids, sampling, cache_salt)

    def extend(self, calls):
        if len(self.calls) == 4 and self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        return super().extend(calls)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (DecoderFailed("no memory"), "model target: no memory"),
        (ZeroDivisionError(), "internal error"),  # a bug of ours
    ],
)
@pytest.mark.usefixtures("all_was_sent")
def test_one_final_flag_when_the_target_fails(start, fault, message):
    calls = BlsCalls(target=Faulty(fault), draft=ScriptedDecoder())
    model = start(calls)
    inputs = TWO | {"max_tokens": column([50, 60], np.int32), "num_draft_tokens": 0}
    requests = run(model, ask(max_tokens=50, num_draft_tokens=0, stream=True), ask(**inputs))
    assert {ending(request) for request in requests} == {("internal", message)}
    assert ending(*run(model, ask())) is None
    assert not calls.decoders["target"].caches


@pytest.mark.usefixtures("all_was_sent")
def test_one_final_flag_when_one_prompt_of_several_fails(start):
    """After its neighbour has ended, or before: the neighbour is then dropped within a step."""
    target = Faulty(None)
    model = start(BlsCalls(target=target, draft=ScriptedDecoder()), max_running=1)
    for ids in ([[5, 6], [13, 6]], [[13, 6], [5, 6]]):
        num_passes = len(target.calls)
        both = TWO | {"input_ids": np.array(ids, np.int32), "num_draft_tokens": 0, "stream": True}
        (request,) = run(model, ask(**both))
        assert ending(request) == ("internal", "model target: 13 is refused")
    assert ending(*run(model, ask(num_draft_tokens=0))) is None
    assert not target.caches
    assert len(target.calls) - num_passes <= 1 + 6


@pytest.mark.usefixtures("all_was_sent")
def test_one_final_flag_when_the_draft_fails(start):
    calls = BlsCalls(target=ScriptedDecoder(), draft=ScriptedDecoder(fail_at=[1]))
    model = start(calls, drafter="draft_model", num_draft_tokens=2)
    requests = run(model, *(ask(max_tokens=40) for _ in range(3)))
    assert [ending(request) for request in requests] == [None] * 3
    assert not calls.decoders["draft"].caches


@pytest.mark.usefixtures("all_was_sent")
def test_one_final_flag_when_the_model_is_unloaded(start):
    calls = BlsCalls(target=ScriptedDecoder(), draft=ScriptedDecoder())
    model = start(calls, max_running=1)
    assert ending(*run(model, ask())) is None
    calls.gate.clear()
    requests = run(model, *(ask(max_tokens=500) for _ in range(3)))
    threading.Timer(0.05, calls.gate.set).start()  # by then it is being unloaded
    model.finalize()
    errors = {ending(request, 0.1) for request in requests}
    assert errors == {("internal", "the server is shutting down")}


def test_nothing_of_triton_outlives_the_model(start):
    """Triton takes its shared memory away after `finalize`; what is freed later crashes."""
    model = start()
    requests = [ask(), ask(max_tokens=500)]
    run(model, *requests)
    assert ending(requests[0]) is None
    senders = [request.sender for request in requests]
    kept = [weakref.ref(x) for x in (*requests, *senders, *pb.MetricFamily.all.values())]
    assert len(kept) > 20
    del requests, senders
    pb.MetricFamily.all.clear()
    model.finalize()
    assert not any(reference() for reference in kept)


# ---- BLS calls ---------------------------------------------------------------------------


def test_calls_are_made_one_at_a_time_by_one_thread(start):
    """Concurrent calls crash some servers, and two models at once slow each other down."""
    calls = BlsCalls(target=ScriptedDecoder(), draft=ScriptedDecoder())
    model = start(calls)
    drafters = ["none", "ngram", "draft_model"]
    requests = [ask(max_tokens=20, drafter=drafters[i % 3]) for i in range(24)]
    for request in run(model, *requests):
        assert ending(request) is None
    assert {call.operation for call in calls.calls} >= {"describe", "open", "extend", "close"}
    assert calls.most_at_once == 1
    assert {call.thread for call in calls.calls} == {"engine"}


def test_calls_carry_ids_and_neither_logits_nor_caches(start):
    calls = BlsCalls(target=ScriptedDecoder(), draft=ScriptedDecoder())
    model = start(calls, drafter="draft_model", num_draft_tokens=16)
    prompts = np.array([[5 + i, 6] for i in range(16)], np.int32)
    inputs = {"input_ids": prompts, "text_input": column([""] * 16)}
    assert ending(*run(model, ask(**inputs, max_tokens=100))) is None
    assert max(call.num_sequences for call in calls.calls) == 16
    for call in calls.calls:
        assert call.num_tensors == 2
        if call.operation == "extend":  # 200 bytes a row if the 50 logits of each were in it
            assert call.num_bytes <= 128 + 64 * call.num_sequences + 16 * call.num_rows


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_head_runs_in_this_process_unless_it_is_to_be_a_model(
    start, repository, monkeypatch, is_inside
):
    head, loaded = ScriptedHead(), []

    def load_local_head(directory, **sizes):
        loaded.append((directory, sizes))
        return head

    monkeypatch.setattr(local, "load_local_head", load_local_head)
    for folder in ("speculative/1/eagle", "eagle/1"):
        (repository / folder).mkdir(parents=True, exist_ok=True)
        artifact(architecture=HEAD).write(repository / folder)
    calls = BlsCalls(target=ScriptedDecoder(), draft=ScriptedDecoder(), eagle=head)
    model = start(
        calls,
        head_model_name="eagle",
        head_in_process=str(is_inside).lower(),
        head_num_threads=2,
        max_running=5,
    )
    (request,) = run(model, ask(max_tokens=20, drafter="eagle"))
    assert ending(request) is None
    assert head.calls
    assert any(call.operation == "draft" for call in calls.calls) != is_inside
    # auto and eagle share one.
    assert sum(call.operation == "reset" for call in calls.calls) == 2 + (not is_inside)
    sizes = {"max_sequences": 5, "num_threads": 2}
    assert loaded == ([(repository / "speculative/1/eagle", sizes)] if is_inside else [])


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_target_is_a_model_unless_it_is_to_run_in_this_process(
    start, repository, monkeypatch, is_inside
):
    target, loaded, polls = ScriptedDecoder(), [], []

    def load_local_decoder(directory, sizes, before_pass):
        loaded.append((directory, sizes))
        return local.LocalDecoder(target, lambda: polls.append(before_pass()))

    monkeypatch.setattr(local, "load_local_decoder", load_local_decoder)
    inside = repository / "speculative/1/target"
    shutil.copytree(repository / "target/1", inside, dirs_exist_ok=True)
    calls = BlsCalls(target=target, draft=ScriptedDecoder())
    model = start(
        calls,
        target_in_process=str(is_inside).lower(),
        target_num_threads=2,
        target_device=3,
        target_max_sequence_length=99,
        max_running=5,
    )
    (request,) = run(model, ask(max_tokens=20))
    assert ending(request) is None
    assert any(call.operation == "extend" for call in calls.calls) != is_inside
    assert bool(polls) == is_inside
    sizes = DecoderConfig(max_sequences=5, max_sequence_length=99, num_threads=2, device=3)
    assert loaded == ([(inside, sizes)] if is_inside else [])


def test_a_server_that_ends_ends_what_runs_inside(start, repository, monkeypatch):
    """No call to the target is refused then: one to nobody is."""
    target = ScriptedDecoder()
    monkeypatch.setattr(
        local, "load_local_decoder", lambda _, __, poll: local.LocalDecoder(target, poll)
    )
    calls = BlsCalls(draft=ScriptedDecoder())
    model = start(calls, target_in_process="true")
    monkeypatch.setattr(sys.modules[TRITON_IO], "ENDING_SECONDS", 0.0)
    assert ending(*run(model, ask())) is None
    calls.refusal = "Model {} - Error when running inference: Server not ready"
    (request,) = run(model, ask(max_tokens=500))
    _, message = ending(request)
    assert message == "the server is shutting down"


def test_a_template_nobody_filled_in_stops_loading(start):
    """TensorRT-LLM's model repositories came with many."""
    with pytest.raises(InvalidConfig, match=r"target_model_name still holds a template: '\$\{t"):
        start(target_model_name="${target_model}")
