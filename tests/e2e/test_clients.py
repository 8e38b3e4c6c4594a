"""The clients of existing fleets: what each sends, and what it reads back."""

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.serving import infer_request
from support.triton_client import Stream, is_final

pytestmark = pytest.mark.server

PROMPT = "the quick brown fox"
MODELS = ["speculative", "ensemble"]


@pytest.fixture(scope="module")
def reference(shared_server):
    return shared_server.ask(PROMPT, num_draft_tokens=0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_the_openai_frontend(served, model, stream):
    """The tensors of Triton's OpenAI frontend for a backend that is not vLLM."""
    inputs = {
        "text_input": np.array([[PROMPT.encode()]], np.object_),
        "stream": np.array([[stream]], np.bool_),
        "max_tokens": np.array([[16]], np.int32),
        "stop_words": np.array([[b"never", b"ever"]], np.object_),
        "top_p": np.array([[0.9]], np.float32),
        "frequency_penalty": np.array([[0.1]], np.float32),
        "presence_penalty": np.array([[0.1]], np.float32),
        "temperature": np.array([[0.8]], np.float32),
        "seed": np.array([[7]], np.uint64),
        "exclude_input_in_output": np.array([[True]], np.bool_),
        "return_num_input_tokens": np.array([[True]], np.bool_),
        "return_num_output_tokens": np.array([[True]], np.bool_),
    }
    answer = served.call(infer_request(model, **inputs)).finish()
    assert not answer.errors
    assert all(body.as_numpy("text_output").shape == (1,) for body in answer.bodies)
    num_output = answer.count("num_output_tokens")
    assert num_output == 16 or answer.finish_reason() == "stop"
    assert answer.rows("num_input_tokens")[0][0] > 0
    again = served.call(infer_request(model, **inputs)).finish()
    assert again.text() == answer.text()


def test_genai_perf(served):
    """Its payload over gRPC streaming: a fixed length through min_length."""
    stream = Stream(served.grpc_url)
    stream.send(
        "ensemble",
        text_input=PROMPT,
        max_tokens=12,
        min_length=12,
        exclude_input_in_output=True,
        stream=True,
    )
    texts = []
    while True:
        result, error = stream.read()
        assert error is None
        if (text := result.as_numpy("text_output")) is not None:
            texts.append(text[0])
        if is_final(result):
            break
    stream.close()
    assert len(texts) > 1


@pytest.mark.parametrize(
    "body",
    [
        # LiteLLM
        {
            "text_input": PROMPT,
            "parameters": {"max_tokens": 24, "bad_words": [""], "stop_words": [""], "end_id": -1},
            "stream": False,
        },
        # vLLM's benchmark_serving and its older forks
        {
            "text_input": PROMPT,
            "accumulate_tokens": True,
            "temperature": 0.0,
            "top_p": 1.0,
            "max_tokens": 24,
            "ignore_eos": True,
            "bad_words": "",
            "stop_words": "",
        },
        # TensorRT-LLM's own examples
        {
            "text_input": PROMPT,
            "max_tokens": 24,
            "bad_words": "",
            "stop_words": "",
            "pad_id": 2,
            "end_id": -1,
            "beam_width": 1,
            "length_penalty": 1.0,
            "random_seed": 1,
            "return_log_probs": False,
            "num_draft_tokens": 4,
            "use_draft_logits": False,
        },
    ],
    ids=["litellm", "benchmark_serving", "trtllm"],
)
@pytest.mark.parametrize("model", MODELS)
def test_http_clients(served, reference, body, model):
    answer = served.post(model=model, json=body).json()
    assert answer["text_output"] == reference.text()
    events = list(served.events(model, **{**body, "stream": True}))
    assert "".join(event["text_output"] for event in events) == reference.text()
    assert [event["finish_reason"] for event in events][-1] == "length"


def test_triton_cli(served):
    """Only the required inputs, which it finds out by asking for the model's metadata."""
    client = triton.InferenceServerClient(served.grpc_url)
    config = client.get_model_config("ensemble", as_json=True)["config"]
    metadata = client.get_model_metadata("ensemble", as_json=True)
    client.close()
    required = {i["name"]: i for i in config["input"] if not i.get("optional")}
    assert set(required) == {"text_input", "max_tokens"}
    assert {i["name"] for i in metadata["inputs"]} >= set(required)
    made = infer_request("ensemble", text_input="the fox", max_tokens=3)
    assert served.call(made).finish().text()
