"""Text <-> token ids of one model directory: tokenizer.json, its config and its chat template.

The text of ids is what tokenizer.json's decoder says, without the optional clean-up that takes
spaces away again ("clean_up_tokenization_spaces"): a stream cannot take back what it has sent.

Knows nothing of requests. Safe to use from several threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specdec.errors import InvalidArtifact, InvalidRequest
from specdec.speculation.chat import ChatTemplate, check_messages, find_template
from specdec.speculation.token_bytes import DecoderRules, TextDecoder, TokenBytes


class TextTokenizer:
    """A tokenizer that also knows how its model wants chat messages written."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None = None) -> None:
        """Raises `InvalidArtifact` when the tokenizer's decoder is of an unknown kind."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._template = template
        decoder = json.loads(tokenizer.to_str())["decoder"]
        self._token_bytes = TokenBytes(tokenizer, DecoderRules.parse(decoder))
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._tokens: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
        for token, token_id in vocabulary.items():
            self._tokens[token_id] = token

    @classmethod
    def from_directory(cls, path: str | Path) -> TextTokenizer:
        """Raises `InvalidArtifact` with the file and the reason."""
        directory = Path(path)
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise InvalidArtifact(f"no tokenizer.json in {directory}")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise InvalidArtifact(f"{file} cannot be read: {error}") from None
        config = _read_config(directory / "tokenizer_config.json")
        source = find_template(directory, config)
        special = special_tokens(config)
        return cls(tokenizer, None if source is None else ChatTemplate(source, special))

    @property
    def num_tokens(self) -> int:
        """One more than the largest id."""
        return len(self._tokens)

    def tokens(self) -> list[str | None]:
        """The tokens in id order; None where an id is unused."""
        return list(self._tokens)

    def special_ids(self) -> frozenset[int]:
        """Ids that are control tokens and have no text."""
        return self._token_bytes.special_ids

    def encode(self, text: str) -> tuple[int, ...]:
        """A raw prompt: with the begin token if the tokenizer adds one; the text of special tokens
        is read as those tokens."""
        return tuple(self._tokenizer.encode(text).ids)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """A piece of text, nothing added at its ends."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text for the assistant's next turn. Raises `InvalidRequest`."""
        if self._template is None:
            raise InvalidRequest("this model has no chat template: send text_input, not messages")
        return self._template.render(check_messages(list(messages)))

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Ids of `render_chat`; the template itself writes the begin token where there is one."""
        return self.encode_plain(self.render_chat(messages))

    def text_decoder(self, *, skip_special_tokens: bool = True) -> TextDecoder:
        """A decoder for one stream of tokens."""
        return TextDecoder(self._token_bytes, skip_special=skip_special_tokens)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        decoder = self.text_decoder(skip_special_tokens=skip_special_tokens)
        return "".join([decoder.push(token_id) for token_id in token_ids]) + decoder.flush()


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like, by name, as chat templates use them."""
    found = {}
    for name, value in config.items():
        if name.endswith("_token") and isinstance(value, str | dict):
            found[name] = value if isinstance(value, str) else str(value.get("content", ""))
    return found


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArtifact(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArtifact(f"{path} is not a JSON object")
    return found
