"""From accepted blocks of tokens to the deltas a client sees: cut, hold back, release.

A block is cut at the first token that ends the sequence, wherever in the block it stands: an end
id, the token that completes a stop word, or the last that `max_tokens` allows. Text, ids, logprobs
and counts all end there. Every token is handled alone, so the result does not depend on how the
tokens were grouped into blocks.

Knows nothing of drafts, targets or Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specdec.speculation.tokenization import TextTokenizer
from specdec.types import Chunk, FinishReason, Request


class Match(NamedTuple):
    """A stop word was completed by the character before `end` of the text just pushed."""

    end: int
    length: int


class StopMatcher:
    """Finds the stop word that is completed first in a text that arrives in pieces.

    One Knuth-Morris-Pratt automaton per word: its state is the length of the longest beginning of
    the word that the text so far ends with, so a character costs O(1) per word and nothing is
    scanned twice.

    Example, word "aab", text "xaaa" then "b": states 0 1 2 2, then 3 = a match that began in the
    piece before.
    """

    def __init__(self, words: Sequence[str]) -> None:
        # Longest first: of two words completed by the same character, the longer began earlier.
        self._words = sorted({word for word in words if word}, key=len, reverse=True)
        self._borders = [_borders(word) for word in self._words]
        self._states = [0] * len(self._words)

    @property
    def num_pending(self) -> int:
        """How many of the last characters may still turn out to begin a stop word."""
        return max(self._states, default=0)

    def push(self, text: str, *, may_stop: bool = True) -> Match | None:
        """Advance over `text`; with `may_stop` False words completed here are let pass."""
        if not self._words:
            return None
        for end, character in enumerate(text, start=1):
            for i, word in enumerate(self._words):
                state = self._advance(i, character)
                if state == len(word):
                    if may_stop:
                        return Match(end, state)
                    state = self._borders[i][state]
                self._states[i] = state
        return None

    def _advance(self, i: int, character: str) -> int:
        state, word, borders = self._states[i], self._words[i], self._borders[i]
        while state and word[state] != character:
            state = borders[state]
        return state + (word[state] == character)


def _borders(word: str) -> list[int]:
    """borders[n]: length of the longest proper prefix of word[:n] that is also its suffix."""
    borders = [0, 0]
    for character in word[1:]:
        state = borders[-1]
        while state and word[state] != character:
            state = borders[state]
        borders.append(state + (word[state] == character))
    return borders


class TextStream:
    """The visible side of one sequence."""

    def __init__(
        self, tokenizer: TextTokenizer, request: Request, end_ids: tuple[int, ...]
    ) -> None:
        self._decoder = tokenizer.text_decoder()
        self._stops = StopMatcher(request.stop_words)
        self._end_ids = frozenset(end_ids)
        self._min_tokens = request.sampling.min_tokens
        self._max_tokens = request.max_tokens
        self._held = ""  # decoded, but it may be the beginning of a stop word
        self.num_output_tokens = 0
        self.finish_reason: FinishReason | None = None

    def push(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        from_draft: Sequence[bool],
    ) -> Chunk:
        """Take one accepted block, all three [num_tokens]; return what the client may see of it.

        The chunk's `token_ids` may be fewer than were pushed: then `finish_reason` is set and the
        rest never happened. The end id and the tokens of a stop word are counted and returned,
        their text is not.
        """
        assert self.finish_reason is None, f"push after {self.finish_reason!r}"
        assert len(token_ids) == len(logprobs) == len(from_draft), (
            len(token_ids),
            len(logprobs),
            len(from_draft),
        )
        texts: list[str] = []
        for token_id in token_ids:
            texts.append(self._take(token_id))
            if self.finish_reason is not None:
                break
        kept = len(texts)
        return Chunk(
            "".join(texts),
            tuple(token_ids[:kept]),
            tuple(logprobs[:kept]),
            tuple(from_draft[:kept]),
            tuple(map(len, texts)),
            self.finish_reason,
        )

    def finish(self, reason: FinishReason) -> Chunk:
        """End the sequence from outside (cancelled): release what was held back."""
        assert self.finish_reason is None, f"finish after {self.finish_reason!r}"
        self.finish_reason = reason
        return Chunk(self._flush(), (), (), (), finish_reason=reason)

    def _take(self, token_id: int) -> str:
        """Count one token and return the text that it makes certain."""
        self.num_output_tokens += 1
        may_stop = self.num_output_tokens > self._min_tokens
        if may_stop and token_id in self._end_ids:
            self.finish_reason = "stop"
            return self._flush()
        text = self._decode(token_id, may_stop=may_stop)
        if self.finish_reason is None and self.num_output_tokens >= self._max_tokens:
            self.finish_reason = "length"
            text += self._flush()
        return text

    def _decode(self, token_id: int, *, may_stop: bool) -> str:
        new = self._decoder.push(token_id)
        held, match = self._held + new, self._stops.push(new, may_stop=may_stop)
        if match is not None:
            self.finish_reason = "stop"
            self._held = ""
            return held[: len(held) - len(new) + match.end - match.length]
        certain = len(held) - self._stops.num_pending
        self._held = held[certain:]
        return held[:certain]

    def _flush(self) -> str:
        text = self._held + self._decoder.flush()
        self._held = ""
        return text
