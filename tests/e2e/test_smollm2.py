"""The real model: the server's greedy text is transformers' greedy text, token for token."""

import pytest

pytestmark = pytest.mark.server

CODE = """\
def area_of_square(side):
    return side * side

def area_of_rectangle(width, height):
    return width * height

def area_of_"""
PROMPTS = {
    "prose": "The sky is blue because",
    "code": CODE,
    "list": "Days of the week: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday. Monday,",
    "chat": "<|im_start|>user\nSay hello in French.<|im_end|>\n<|im_start|>assistant\n",
}
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def expected(transformers_greedy):
    """name -> (prompt ids, answer ids). Asked for before the server is busy with two cores."""
    return {name: transformers_greedy(prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()}


def ask(served, prompt_ids, **options):
    """Generation ends where the model says, as in transformers."""
    return served.call(
        text_input="",
        input_ids=prompt_ids,
        max_tokens=MAX_TOKENS,
        end_id=None,
        return_perf_metrics=True,
        **options,
    )


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_text_is_transformers_greedy_text(expected, smollm2_server, name):
    prompt_ids, ids = expected[name]
    plain = ask(smollm2_server, prompt_ids, num_draft_tokens=0).finish()
    assert plain.ids() == ids
    assert plain.finish_reason() == ("length" if len(ids) == MAX_TOKENS else "stop")
    drafted = ask(smollm2_server, prompt_ids, num_draft_tokens=8, drafter="ngram").finish()
    assert drafted.bits == plain.bits


def test_all_at_once(expected, smollm2_server):
    calls = {
        name: ask(smollm2_server, prompt_ids, adaptive=name == "prose", drafter="ngram")
        for name, (prompt_ids, _) in expected.items()
    }
    answers = {name: call.finish() for name, call in calls.items()}
    assert {name: answer.ids() for name, answer in answers.items()} == {
        name: ids for name, (_, ids) in expected.items()
    }
    assert answers["code"].count("total_accepted_draft_tokens") > 0


def test_text_is_tokenized_as_transformers_does(expected, smollm2_server):
    """Raw text, and a chat through the model's own template."""
    options = {"max_tokens": MAX_TOKENS, "end_id": None, "return_num_input_tokens": True}
    raw = smollm2_server.ask(PROMPTS["code"], **options)
    assert raw.ids() == expected["code"][1]
    assert raw.rows("num_input_tokens")[0][0] == len(expected["code"][0])
    chat = '[{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Hi"}]'
    templated = (
        "<|im_start|>system\nYou are brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    answer = smollm2_server.ask(messages=chat, **options)
    assert answer.bits == smollm2_server.ask(templated, **options).bits
    assert answer.finish_reason() in ("stop", "length")
