"""`--check`: the exported graph against transformers, on fixed prompts, cache and rewind included.

Every prompt is fed in two chunks with some wrong tokens between them that are then overwritten,
all prompts in one ragged batch; transformers sees each whole prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec.errors import SpecdecError
from specdec.export.quantize import Precision
from specdec.export.runner import GraphRunner

Array = np.ndarray[Any, Any]

PROMPTS = (
    "The capital of France is Paris, and the capital of Italy is Rome. The two cities are linked",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n",
    "Q: A train leaves at 9:40 and arrives at 11:05. How long does the trip take?\nA: The trip",
    "naïve café, 東京, Москва 🙂",
    "To be",
)
NUM_WRONG_TOKENS = 3


class Limits(NamedTuple):
    """What counts as a faithful export.

    The quantised ones tell a broken graph from rounding and promise no quality. On these prompts
    SmolLM2-135M, small and so sensitive, has in int8 a mean KL of 0.005 and the same argmax on
    95 % of the rows, in w8a8 0.061 and 91 %, in int4 0.046 and 86 %; int4 with integer zero points
    had 0.53 and 61 %, broken packings more than 10 and 0 %.
    """

    max_difference: float
    max_divergence: float
    min_agreement: float


LIMITS = {
    Precision.fp32: Limits(1e-3, 1e-6, 0.99),
    Precision.int8: Limits(float("inf"), 0.05, 0.90),
    Precision.w8a8: Limits(float("inf"), 0.3, 0.70),
    Precision.int4: Limits(float("inf"), 0.3, 0.70),
}


class CheckFailed(SpecdecError):
    """The exported graph does not compute what the model computes."""


class Comparison(NamedTuple):
    """Over every row of every prompt."""

    num_rows: int
    max_difference: float  # of logits, absolute
    mean_divergence: float  # KL(reference || exported), nats
    agreement: float  # rows whose most likely token is the same

    def __str__(self) -> str:
        return (
            f"{self.num_rows} rows: max logit difference {self.max_difference:.2g}, "
            f"mean KL {self.mean_divergence:.2g}, same argmax {100 * self.agreement:.1f} %"
        )


def check(directory: Path, reference: Any, precision: Precision) -> Comparison:
    """Compare the artifact in `directory` with a transformers model.

    Raises `CheckFailed` with the figures found and allowed.
    """
    prompts = encode(directory)
    expected = [reference_logits(reference, ids) for ids in prompts]
    found = exported_logits(directory, prompts)
    result = compare(np.concatenate(expected), np.concatenate(found))
    limits = LIMITS[precision]
    good = (
        result.max_difference <= limits.max_difference
        and result.mean_divergence <= limits.max_divergence
        and result.agreement >= limits.min_agreement
    )
    if not good:  # also where a figure is not a number
        raise CheckFailed(
            f"check failed for {precision.value}, {result}; allowed are {limits.max_difference:g}, "
            f"{limits.max_divergence:g} and at least {100 * limits.min_agreement:g} %"
        )
    return result


def encode(directory: Path) -> list[list[int]]:
    """PROMPTS by the artifact's own tokenizer; each has at least two tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return [ids for prompt in PROMPTS if len(ids := tokenizer.encode(prompt).ids) > 1]


def reference_logits(model: Any, token_ids: Sequence[int]) -> Array:
    """float32 [num_tokens, vocab_size] of one prompt on its own."""
    import torch

    with torch.inference_mode():
        logits: Array = model(torch.tensor([list(token_ids)])).logits[0].float().numpy()
    return logits


def exported_logits(directory: Path, prompts: Sequence[Sequence[int]]) -> list[Array]:
    """The same through the graph's cache: first part, wrong tokens, rewind, second part."""
    halves = [len(ids) // 2 for ids in prompts]
    runner = GraphRunner(
        directory,
        num_sequences=len(prompts),
        cache_length=max(map(len, prompts)) + NUM_WRONG_TOKENS,
    )
    pairs = list(zip(prompts, halves, strict=True))
    first = runner.extend([ids[:n] for ids, n in pairs], [0] * len(pairs))
    wrong = [[(ids[0] + 1 + i) % 7 for i in range(NUM_WRONG_TOKENS)] for ids in prompts]
    runner.extend(wrong, halves)
    second = runner.extend([ids[n:] for ids, n in pairs], halves)
    return [np.concatenate(pair) for pair in zip(first, second, strict=True)]


def compare(expected: Array, found: Array) -> Comparison:
    """Both float32 [num_rows, vocab_size]."""
    assert expected.shape == found.shape, (expected.shape, found.shape)
    p, q = _log_softmax(expected), _log_softmax(found)
    return Comparison(
        num_rows=len(expected),
        max_difference=float(np.abs(expected - found).max()),
        mean_divergence=float((np.exp(p) * (p - q)).sum(-1).mean()),
        agreement=float((expected.argmax(-1) == found.argmax(-1)).mean()),
    )


def _log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
