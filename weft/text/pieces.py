"""What becomes of tokens as they are written: pieces of text, until a stop word appears."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import UserError
from .tokenizer import Tokenizer

CONTEXT = 8  # tokens before the first one that its text may depend on


class Stops:
    """Where a text ends: at tokens, or at words, which are not part of it."""

    def __init__(self, given: str | int | Iterable[str | int], tokenizer: Tokenizer | None, of_texts: bool) -> None:
        if not isinstance(given, Iterable | int):
            raise UserError("generate", f"stop must be words or token ids, got {given!r}.")
        several = [given] if isinstance(given, str | int) else list(given)
        self.tokens = {one for one in several if isinstance(one, int)}
        self.words = [one for one in several if isinstance(one, str)]
        if len(self.tokens) + len(self.words) < len(set(several)) or "" in self.words:
            raise UserError("generate", f"stop must be words or token ids, got {given!r}.")
        if self.words and not of_texts:
            raise UserError("generate", f"stop words are for prompts that are texts, got {self.words!r} for token ids.")
        if tokenizer is not None and tokenizer.end is not None:
            self.tokens.add(tokenizer.end)

    def find(self, text: str) -> int:
        """Where the stop word begins that is complete first; -1: there is none. How a text is divided into tokens does not matter."""
        found = [(text.find(word), word) for word in self.words]
        return min(((at + len(word), at) for at, word in found if at >= 0), default=(0, -1))[1]

    def held_back(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop word."""
        beginnings = (n for word in self.words for n in range(1, len(word)) if text.endswith(word[:n]))
        return max(beginnings, default=0)


class WrittenText:
    """The text of one example as its tokens come."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Stops) -> None:
        self._piece, self._stops, self._waiting, self.has_ended = tokenizer.pieces(), stops, "", False
        for token in prompt[-CONTEXT:]:
            self._piece(token)

    def add(self, token: int) -> str:
        """What is certain to be part of the text after one more token."""
        if self.has_ended:
            return ""
        if token in self._stops.tokens:
            return self.end()
        text = self._waiting + self._piece(token)
        at = self._stops.find(text)
        if at >= 0:
            self.has_ended, self._waiting = True, ""
            return text[:at]
        certain = len(text) - self._stops.held_back(text)
        self._waiting = text[certain:]
        return text[:certain]

    def end(self) -> str:
        """What was held back: the text ends without a stop word."""
        rest, self._waiting, self.has_ended = self._waiting, "", True
        return rest


class WrittenTokens:
    """The tokens of one example, without text."""

    def __init__(self, stops: Stops) -> None:
        self._stops, self.has_ended = stops, False

    def add(self, token: int) -> list[int]:
        self.has_ended = self.has_ended or token in self._stops.tokens
        return [] if self.has_ended else [token]

    def end(self) -> list[int]:
        self.has_ended = True
        return []
