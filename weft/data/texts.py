"""Text as data: each example is a window of tokens, its label is the window shifted by one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError, UserError
from ..text.tokenizer import CharTokenizer, Tokenizer, make_tokenizer
from .dataset import Arrays, Splits
from .npz import errors_name_files


class Text(Arrays):
    """Windows of `length` token ids, one after the other; the tokenizer may be given as a string, with the character of each id.

    With a `stride` below the length windows overlap: one begins every `stride` tokens, and a token is seen at several places of a window.

    >>> d = Text(np.array([0, 1, 2, 1, 0], np.int32), "abc", length=2)
    >>> d.inputs([0, 1]).tolist(), d.labels.tolist(), d.decode([2, 1])
    ([[0, 1], [2, 1]], [[1, 2], [1, 0]], 'cb')
    """

    def __init__(
        self, ids: np.ndarray, tokenizer: str | Tokenizer, length: int, name: str = "", *, stride: int | None = None
    ) -> None:
        stride = length if stride is None else stride
        if length < 1 or stride < 1:
            raise UserError("text", f"length and stride must be 1 or more, got {length} and {stride}.")
        if len(ids) <= length:
            raise UserError(
                "text", f"windows of {length} tokens require a text of {length + 1} or more, got {len(ids)}."
            )
        windows = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::stride]
        super().__init__(windows[:, :-1], windows[:, 1:], classes=(), name=name)
        self.tokenizer = CharTokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.ids, self.length, self.stride = ids, length, stride

    @property
    def vocabulary(self) -> Any:
        """The token of each id: a string if they are characters."""
        return self.tokenizer.vocabulary

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text."""
        return self.tokenizer.encode(text)

    def decode(self, ids: object) -> str:
        """The text of ids."""
        return self.tokenizer.decode(ids)

    def split(self, validation: float = 0.1, test: float = 0.0) -> Splits:
        """Split the text in order into training, validation and test. Without shuffling, no window is in two splits.

        Windows of validation and test do not overlap, whatever the stride: each token is predicted once.
        """
        if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
            raise UserError(
                "split", f"fractions must lie in [0, 1) and leave text for training, got {validation} and {test}."
            )
        tail = int(len(self.ids) * test)
        middle = int(len(self.ids) * validation)
        first = len(self.ids) - tail - middle
        ends = [(0, first), (first, first + middle), (first + middle, len(self.ids))]
        strides = (self.stride, None, None)
        parts = [self._part(a, b, s) if b > a else None for (a, b), s in zip(ends, strides, strict=True)]
        assert parts[0] is not None
        return Splits(parts[0], parts[1], parts[2])

    def _part(self, start: int, stop: int, stride: int | None) -> Text:
        return Text(self.ids[start:stop], self.tokenizer, self.length, self.name, stride=stride)


def text(
    path: str | os.PathLike[str],
    length: int = 64,
    vocabulary: str | None = None,
    *,
    tokenizer: str | Tokenizer = "characters",
    learn_from: float = 1.0,
    stride: int | None = None,
) -> Text:
    """Load a UTF-8 text file; by default its tokens are characters, and the vocabulary is the sorted set of those in it.

    `tokenizer` is another one, or says how it is made: "bpe:1000" learns 1,000 byte pairs from the text, or from its beginning if
    `learn_from` is below 1 (which requires the extra `text`); a path is that of a tokenizer.json. `stride` is that of `Text`.
    """
    file = Path(path)
    content = _content(file)
    if vocabulary is not None:
        if tokenizer != "characters":
            raise UserError("text", "a vocabulary of characters and a tokenizer exclude each other. Give one of them.")
        tokenizer = _fitting(vocabulary, content, file)
    elif not isinstance(tokenizer, Tokenizer):
        learned = content if tokenizer == "characters" else content[: round(learn_from * len(content))]
        tokenizer = make_tokenizer(tokenizer, learned)
    with errors_name_files("text", file):
        return Text(tokenizer.encode(content), tokenizer, length, file.stem, stride=stride)


def _content(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise RunError("text", f"{file} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise RunError(
            "text", f"{file} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}."
        ) from None


def _fitting(vocabulary: str, content: str, file: Path) -> CharTokenizer:
    unknown = sorted(set(content) - set(vocabulary))
    if unknown or len(set(vocabulary)) != len(vocabulary):
        what = f"it lacks characters of {file}: {unknown[:10]}" if unknown else "it has a character twice"
        raise UserError("text", f"the vocabulary does not fit: {what}.")
    return CharTokenizer(vocabulary)
