"""Answers a fake service streams, by model name, and the errors some of them end with."""

import grpc

from support.fake_service import Message, chunk, final, tokens


def hello(call):
    """Two steps: the prompt's own token; three drafted, two accepted, one recovered."""
    yield tokens("Hé", [5], [False], counts=(0, 0))
    yield tokens(
        "llo, wörld",
        [6, 7, 8],
        [True, True, False],
        counts=(3, 2),
        text_lengths=[3, 2, 5],
        finish_reason="length",
    )
    yield final()


def final_with_data(call):
    yield tokens("all", [1], [False], counts=(0, 0), finish_reason="stop", final=True)


def no_text(call):
    """A character that spans two tokens: the first has no text yet."""
    yield tokens("", [1], [False], counts=(0, 0))
    yield tokens("é", [2], [False], counts=(0, 0), finish_reason="stop")
    yield final()


def logprobs(call):
    yield tokens(
        "ab",
        [1, 2],
        [True, False],
        counts=(1, 1),
        output_log_probs=[-0.5, -0.25],
        finish_reason="stop",
    )
    yield final()


def hangs(call):
    yield tokens("first", [1], [False], counts=(0, 0))
    call.cancelled.wait(20)


def ends_early(call):
    yield tokens("first", [1], [False], counts=(0, 0))


def only_final(call):
    yield final()


def bad_flags(call):
    yield chunk("x", output_ids=[1, 2], from_draft=[True])


def refuses(text):
    """What Triton itself says of a request that no model gets to see."""

    def script(call):
        message = Message()
        message.error_message = f"[request id: <id_unknown>] {text}"
        yield message

    return script


def aborts(code, details, *, after=0):
    def script(call):
        for _ in range(after):
            yield tokens("x", [1], [False], counts=(0, 0))
        call.abort(code, details)

    return script


SCRIPTS = {
    "speculative": hello,
    "final_with_data": final_with_data,
    "no_text": no_text,
    "logprobs": logprobs,
    "hangs": hangs,
    "ends_early": ends_early,
    "only_final": only_final,
    "bad_flags": bad_flags,
    "undeclared": refuses("unexpected inference input 'x' for model 'm'"),
    "unloaded": refuses("Request for unknown model: 'm' has no available versions"),
    "rejects": aborts(
        grpc.StatusCode.INVALID_ARGUMENT, "[request id: a] max_tokens is 0: allowed are 1 to 9"
    ),
    "unknown": aborts(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'x' is not found"),
    "full": aborts(grpc.StatusCode.UNAVAILABLE, "128 requests are waiting: try again later"),
    "fails": aborts(grpc.StatusCode.INTERNAL, "the target failed", after=1),
    "dies": aborts(grpc.StatusCode.UNAVAILABLE, "Socket closed", after=1),
    "cancels": aborts(grpc.StatusCode.CANCELLED, "the server is going away", after=1),
}


# model -> the error it ends with, and a part of its message: the same for both clients
ERRORS = [
    ("rejects", "RequestRejected", "^max_tokens is 0: allowed are 1 to 9$"),
    ("unknown", "RequestRejected", "unknown model"),
    ("full", "ServerUnavailable", "128 requests are waiting"),
    ("fails", "ServerFailed", "^the target failed$"),
    ("undeclared", "RequestRejected", "^unexpected inference input 'x'"),
    ("unloaded", "ServerUnavailable", "no available versions"),
    ("dies", "StreamBroken", "broke: Socket closed"),
    ("cancels", "RequestCancelled", "going away"),
    ("ends_early", "StreamBroken", "before the answer was complete"),
    ("only_final", "StreamBroken", "before the answer was complete"),
    ("bad_flags", "StreamBroken", "2 tokens came with 1 draft flags"),
]
