"""Drives a `Decoder` the way an engine does: prefill in chunks, verify drafts, accept, rewind."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from specdec.types import Decoder, Extend, Extended, SamplingParams

Drafter = Callable[[list[int]], Sequence[int]]
Text = tuple[list[int], list[float]]  # output ids, their log-probabilities
Steps = Generator[Extend, Extended, Text]

GREEDY = SamplingParams()


def no_drafts(_: list[int]) -> Sequence[int]:
    return ()


def drafts_from(text: Sequence[int], num_drafts: int, wrong_at: int | None = None) -> Drafter:
    """Drafts copied from the known text, with one wrong token at index `wrong_at` of each block."""

    def propose(tokens: list[int]) -> Sequence[int]:
        drafts = list(text[len(tokens) : len(tokens) + num_drafts])
        if wrong_at is not None and 0 <= wrong_at < len(drafts):
            drafts[wrong_at] = 3 + (drafts[wrong_at] + 1) % 30
        return drafts

    return propose


def steps(
    decoder: Decoder,
    sequence_id: int,
    prompt: Sequence[int],
    sampling: SamplingParams,
    num_tokens: int,
    *,
    drafter: Drafter = no_drafts,
    chunk: int = 1000,
) -> Steps:
    """One sequence: yields its share of every call and is sent the outcome."""
    tokens = list(prompt)
    logprobs: list[float] = []
    cached = decoder.open(sequence_id, prompt, sampling)
    while len(prompt) - cached > chunk:
        yield Extend(sequence_id, cached, tokens[cached : cached + chunk], 0)
        cached += chunk
    while len(logprobs) < num_tokens:
        drafts = list(drafter(tokens))[: num_tokens - len(logprobs) - 1]
        outcome = yield Extend(
            sequence_id, cached, tokens[cached:] + drafts, num_outputs=len(drafts) + 1
        )
        kept = 0
        while kept < len(drafts) and drafts[kept] == outcome.token_ids[kept]:
            kept += 1
        cached = len(tokens) + kept
        tokens += outcome.token_ids[: kept + 1]
        logprobs += outcome.logprobs[: kept + 1]
    decoder.close([(sequence_id, len(tokens))])
    return tokens[len(prompt) :], logprobs


def run_together(decoder: Decoder, sequences: Sequence[Steps]) -> list[Text]:
    """All sequences side by side: each call carries a share of every one that still runs."""
    results: dict[int, Text] = {}
    running = {i: (s, next(s)) for i, s in enumerate(sequences)}
    while running:
        outcome = decoder.extend([call for _, call in running.values()])
        pairs = list(zip(list(running.items()), outcome.sequences, strict=True))
        for (i, (sequence, _)), extended in pairs:
            try:
                running[i] = (sequence, sequence.send(extended))
            except StopIteration as end:
                results[i] = end.value
                del running[i]
    return [results[i] for i in range(len(sequences))]


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    sampling: SamplingParams = GREEDY,
    num_tokens: int = 12,
    *,
    sequence_id: int = 1,
    drafter: Drafter = no_drafts,
    chunk: int = 1000,
) -> Text:
    sequence = steps(
        decoder, sequence_id, prompt, sampling, num_tokens, drafter=drafter, chunk=chunk
    )
    return run_together(decoder, [sequence])[0]
