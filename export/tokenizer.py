"""The tokenizer's files in an artifact: enough for a server that has no transformers.

tokenizer.json          everything `tokenizers` needs, padding and truncation off
tokenizer_config.json   {"bos_token": ..., "eos_token": ...} for the chat template
chat_template.jinja     only where the model has one
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from specdec.artifact import vocabulary_hash
from specdec.errors import UnsupportedModel

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
FILES = (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE)

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_PROBES = ("The quick brown fox.", "def f(x):\n    return x + 1\n", "naïve 東京 🙂  two  spaces")


class Vocabulary(NamedTuple):
    num_tokens: int  # one more than the largest id
    sha256: str
    end_ids: tuple[int, ...]


def write(tokenizer: Any, directory: Path, *, vocab_size: int, end_ids: Any) -> Vocabulary:
    """Write the files for a transformers tokenizer.

    Args:
        tokenizer: with a `tokenizers` backend.
        vocab_size: rows of the embedding table; no token may be beyond.
        end_ids: what the model's configs say ends a text: None, ids, or lists of ids.

    Raises:
        UnsupportedModel: a slow tokenizer, one that does not fit the model, or no end token.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedModel(
            f"tokenizer {type(tokenizer).__name__} has no tokenizer.json form: expected a fast one"
        )
    backend.no_padding()
    backend.no_truncation()
    backend.save(str(directory / TOKENIZER))
    special = {name: getattr(tokenizer, name, None) for name in _SPECIAL}
    (directory / TOKENIZER_CONFIG).write_text(
        json.dumps({k: str(v) for k, v in special.items() if v is not None}, indent=2) + "\n"
    )
    template = _chat_template(tokenizer)
    if template:
        (directory / CHAT_TEMPLATE).write_text(template)
    _refuse_difference(tokenizer, directory / TOKENIZER)
    tokens = _tokens(backend, vocab_size)
    ends = _end_ids(tokenizer, template, end_ids, len(tokens))
    return Vocabulary(len(tokens), vocabulary_hash(tokens), ends)


def _tokens(backend: Any, vocab_size: int) -> list[str | None]:
    """Tokens in id order; None where an id is unused."""
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    last = max(vocabulary.values())
    if last >= vocab_size:
        token = next(t for t, i in vocabulary.items() if i == last)
        raise UnsupportedModel(
            f"the tokenizer has id {last} ({token!r}), the model has {vocab_size} embeddings: "
            f"allowed ids are 0 to {vocab_size - 1}"
        )
    tokens: list[str | None] = [None] * (last + 1)
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens


def _chat_template(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):  # several by name, e.g. for tools
        template = template.get("default")
    return template


def _end_ids(
    tokenizer: Any, template: str | None, configured: Any, num_tokens: int
) -> tuple[int, ...]:
    """Every id that ends a text: the configs', the tokenizer's, and the chat turn's own."""
    found = {*_flatten(configured), *_flatten(tokenizer.eos_token_id)}
    if template:
        found |= _turn_end(tokenizer)
    ends = tuple(sorted(i for i in found if 0 <= i < num_tokens))
    if not ends:
        raise UnsupportedModel(
            "neither the config nor the tokenizer names an end token (eos_token_id): "
            "texts would only end at max_tokens"
        )
    return ends


def _flatten(ids: Any) -> Iterable[int]:
    if ids is None:
        return
    if isinstance(ids, int):
        yield ids
        return
    for item in ids:
        yield from _flatten(item)


def _turn_end(tokenizer: Any) -> set[int]:
    """The special token the chat template puts right after an assistant's turn, if any.

    Base models turned chat models often keep an eos token that never ends a turn.
    """
    from jinja2 import TemplateError

    marker = "specdec"
    messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": marker}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except (TemplateError, ValueError, TypeError, KeyError):
        return set()  # a template with its own demands; the configured ids stand
    tail = text.rpartition(marker)[2].lstrip()
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return {
        token_id
        for token_id, token in added.items()
        if token.special and tail.startswith(token.content)
    }


def _refuse_difference(tokenizer: Any, path: Path) -> None:
    """What was written must give the ids that transformers gives."""
    from tokenizers import Tokenizer

    written = Tokenizer.from_file(str(path))
    for text in _PROBES:
        expected, found = tokenizer(text)["input_ids"], written.encode(text).ids
        if expected != found:
            raise UnsupportedModel(
                f"tokenizer {type(tokenizer).__name__} adds steps that {TOKENIZER} cannot hold: "
                f"{text!r} gives {expected[:8]}, the file gives {found[:8]}"
            )
