"""What each token id adds to the text, in bytes: the decoder of tokenizer.json, one id at a time.

The library's own `decode` wants the whole sequence: called on part of it, a character that is split
over tokens comes out as U+FFFD and the first token loses its space. In bytes, decoding is
concatenation, so a stream costs O(1) per token and any split of the tokens gives the same text.

Knows nothing of requests or stop words.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from specdec.errors import InvalidArtifact

SUPPORTED = "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, or none"


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet (GPT-2's `bytes_to_unicode`, turned round).

    Printable Latin-1 bytes stand for themselves; the other 68 are numbered from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


_ALPHABET = _byte_level_alphabet()


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """The `decoder` object of tokenizer.json, reduced to what it does to one token."""

    byte_level: bool = False
    byte_fallback: bool = False  # tokens like <0xE2> are one byte
    replacements: tuple[tuple[str, str], ...] = ()
    num_leading_spaces: int = 0  # spaces taken off the start of the whole text
    dropped_from_first: str = ""  # a character the first token loses (Metaspace)
    separator: str = ""  # between tokens

    @classmethod
    def parse(cls, decoder: Mapping[str, Any] | None) -> DecoderRules:
        """Raises `InvalidArtifact` for a decoder whose text is not a concatenation of bytes."""
        if decoder is None:
            return cls(separator=" ")  # the library joins the tokens with a space
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        rules, fused = cls(), False
        for step in steps:
            kind = step["type"]
            if kind == "Fuse":
                fused = True
            elif kind == "Strip" and fused and step["content"] == " " and not step["stop"]:
                rules = replace(rules, num_leading_spaces=step["start"])
            elif fused:
                raise _unsupported(step)
            else:
                rules = rules._with(step)
        return rules

    def _with(self, step: Mapping[str, Any]) -> DecoderRules:
        kind = step["type"]
        if kind == "ByteLevel":
            return replace(self, byte_level=True)
        if kind == "ByteFallback":
            return replace(self, byte_fallback=True)
        if kind == "Replace" and "String" in step["pattern"]:
            pair = (step["pattern"]["String"], step["content"])
            return replace(self, replacements=(*self.replacements, pair))
        if kind == "Metaspace":
            mark = step["replacement"]
            # Files older than `prepend_scheme` have `add_prefix_space` in its place.
            prepends = step.get("prepend_scheme", "always") != "never"
            dropped = mark if prepends and step.get("add_prefix_space", True) else ""
            pairs = (*self.replacements, (mark, " "))
            return replace(self, replacements=pairs, dropped_from_first=dropped)
        raise _unsupported(step)

    def to_bytes(self, token: str, *, first: bool) -> bytes:
        """The bytes one token adds; `first`: no token stands before it."""
        if self.byte_level:
            values = [_ALPHABET.get(character) for character in token]
            known = [value for value in values if value is not None]
            return bytes(known) if len(known) == len(values) else token.encode()
        if self.byte_fallback and len(token) == 6 and token[:3] == "<0x" and token[5] == ">":
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass  # a token that only looks like a byte
        if first and self.dropped_from_first:
            token = token.replace(self.dropped_from_first, "")
        for old, new in self.replacements:
            token = token.replace(old, new)
        return (token if first else self.separator + token).encode()


def _unsupported(step: Mapping[str, Any]) -> InvalidArtifact:
    return InvalidArtifact(
        f"tokenizer.json: decoder {dict(step)} is not supported: {SUPPORTED} are"
    )


class TokenBytes:
    """Token id -> bytes for one tokenizer; filled as ids are met."""

    def __init__(self, tokenizer: Tokenizer, rules: DecoderRules) -> None:
        self.rules = rules
        self._tokenizer = tokenizer
        self.special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._cache: dict[int, bytes] = {}

    def get(self, token_id: int, *, first: bool, skip_special: bool) -> bytes | None:
        """None: the id adds nothing and does not count as a first token."""
        if skip_special and token_id in self.special_ids:
            return None
        if not first and token_id in self._cache:
            return self._cache[token_id]
        token = self._tokenizer.id_to_token(token_id)
        if token is None:  # a padding column of the vocabulary
            return None
        piece = self.rules.to_bytes(token, first=first)
        if not first:
            self._cache[token_id] = piece
        return piece


class TextDecoder:
    """Tokens in, text out, one sequence; bytes that are not yet a character wait inside."""

    def __init__(self, token_bytes: TokenBytes, *, skip_special: bool = True) -> None:
        self._token_bytes = token_bytes
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_leading_spaces = token_bytes.rules.num_leading_spaces
        self._first = True

    def push(self, token_id: int) -> str:
        """The characters this token completes; bytes that can never be UTF-8 become U+FFFD."""
        piece = self._token_bytes.get(token_id, first=self._first, skip_special=self._skip_special)
        if piece is None:
            return ""
        self._first = False
        while self._num_leading_spaces and piece:
            if not piece.startswith(b" "):
                self._num_leading_spaces = 0
                break
            piece = piece[1:]
            self._num_leading_spaces -= 1
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """The end of the text: a character that was never finished becomes one U+FFFD."""
        return self._utf8.decode(b"", final=True)
