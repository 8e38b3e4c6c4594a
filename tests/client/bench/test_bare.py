import numpy as np

from specdec.client.bench.bare import MIN_ROWS, ROWS, BareModel
from specdec.client.bench.records import Prompt
from support.runtimes import TokenRuntime, artifact, logits_after

PROMPT = Prompt("chat/1", "chat", "Hello")


class _Tokenizer:
    def encode(self, text):
        return [ord(c) % 30 for c in text]

    def encode_chat(self, messages):
        return (7, *self.encode(messages[0]["content"]))


def model(runtime, *, prefill_chunk=4, **changes):
    return BareModel(runtime, artifact(**changes), _Tokenizer(), prefill_chunk=prefill_chunk)


def greedy(prompt_ids, count, *, end_ids=()):
    """The scripted model's text, token by token; ids from num_tokens on are never chosen."""
    ids = list(prompt_ids)
    while len(ids) < len(prompt_ids) + count and (
        ids == list(prompt_ids) or ids[-1] not in end_ids
    ):
        ids.append(int(np.argmax(logits_after(ids)[: artifact().num_tokens])))
    return tuple(ids[len(prompt_ids) :])


def test_writes_the_greedy_text_one_token_per_pass():
    runtime = TokenRuntime(1)
    prompt_ids = list(range(3, 13))
    run = model(runtime, end_ids=()).generate(PROMPT, prompt_ids, 9, repeat=2)
    assert run.token_ids == greedy(prompt_ids, 9)
    assert (run.prompt, run.repeat, run.num_input_tokens) == ("chat/1", 2, 10)
    rows = [len(b.input_ids) for b in runtime.batches]
    assert rows == [4, 4, 2] + [MIN_ROWS] * 8  # the prompt in chunks, then one row and padding
    assert run.prefill_seconds > 0
    assert run.decode_seconds > 0


def test_stops_after_an_end_id():
    prompt_ids = [5, 6, 7]
    text = greedy(prompt_ids, 20)
    run = model(TokenRuntime(1), end_ids=(text[4],)).generate(PROMPT, prompt_ids, 20)
    assert run.token_ids == greedy(prompt_ids, 20, end_ids=(text[4],))
    assert len(run.token_ids) <= 5


def test_the_cache_grows_as_the_servers_does_and_keeps_what_it_holds():
    prompt_ids = [3 + i % 30 for i in range(250)]
    runtime = TokenRuntime(1)
    run = model(runtime, prefill_chunk=64, end_ids=()).generate(PROMPT, prompt_ids, 12)
    assert run.token_ids == greedy(prompt_ids, 12)
    assert run.cache_length == runtime.length == 384


def test_times_every_width_and_stays_inside_the_cache():
    runtime = TokenRuntime(1)
    under_test = model(runtime, end_ids=())
    under_test.generate(PROMPT, [3, 4, 5], 4)
    runtime.batches.clear()
    costs = list(under_test.pass_costs(252))
    assert [c.num_rows for c in costs] == list(ROWS) * 3
    assert {c.cache_length for c in costs} == {256}
    widths = [len(b.output_rows) for b in runtime.batches]
    assert widths == [max(n, MIN_ROWS) for n in ROWS] * 3
    assert all(c.seconds > 0 for c in costs)


def test_takes_the_chat_template_unless_raw():
    under_test = model(TokenRuntime(1))
    assert under_test.encode(PROMPT, raw=False) == (7, *under_test.encode(PROMPT, raw=True))


def test_one_run_does_not_see_the_one_before():
    runtime = TokenRuntime(1)
    under_test = model(runtime, end_ids=())
    first = under_test.generate(PROMPT, [3, 4, 5], 6)
    under_test.generate(PROMPT, [9] * 40, 6)
    assert under_test.generate(PROMPT, [3, 4, 5], 6).token_ids == first.token_ids
