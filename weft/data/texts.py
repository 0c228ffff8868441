"""Character-level text: each example is a window of characters, its label is the window shifted by one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import RunError, UserError
from .dataset import Arrays, Splits
from .npz import errors_name_files


class Text(Arrays):
    """Consecutive windows of `length` character ids; `vocabulary` holds the character of each id.

    >>> d = Text(np.array([0, 1, 2, 1, 0], np.int32), "abc", length=2)
    >>> d.inputs([0, 1]).tolist(), d.labels.tolist(), d.decode([2, 1])
    ([[0, 1], [2, 1]], [[1, 2], [1, 0]], 'cb')
    """

    def __init__(self, ids: np.ndarray, vocabulary: str, length: int, name: str = "") -> None:
        if length < 1:
            raise UserError("text", f"length must be 1 or more, got {length}.")
        count = (len(ids) - 1) // length
        if count < 1:
            raise UserError(
                "text", f"windows of {length} characters require a text of {length + 1} or more, got {len(ids)}."
            )
        used = count * length
        x, y = ids[:used].reshape(count, length), ids[1 : used + 1].reshape(count, length)
        super().__init__(x, y, classes=(), name=name)
        self.ids, self.vocabulary, self.length = ids, vocabulary, length
        self._number = {character: number for number, character in enumerate(vocabulary)}

    def encode(self, text: str) -> np.ndarray:
        """The ids of characters."""
        unknown = sorted(set(text) - set(self.vocabulary))
        if unknown:
            raise UserError(
                "encode", f"characters must be in the vocabulary, got {', '.join(map(repr, unknown[:10]))}."
            )
        return np.array([self._number[character] for character in text], np.int32)

    def decode(self, ids: object) -> str:
        """The characters of ids."""
        return "".join(self.vocabulary[number] for number in np.asarray(ids).ravel().tolist())

    def split(self, validation: float = 0.1, test: float = 0.0) -> Splits:
        """Split the text in order into training, validation and test. Without shuffling, no window is in two splits."""
        if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
            raise UserError(
                "split", f"fractions must lie in [0, 1) and leave text for training, got {validation} and {test}."
            )
        tail = int(len(self.ids) * test)
        middle = int(len(self.ids) * validation)
        first = len(self.ids) - tail - middle
        ends = [(0, first), (first, first + middle), (first + middle, len(self.ids))]
        parts = [self._part(a, b) if b > a else None for a, b in ends]
        assert parts[0] is not None
        return Splits(parts[0], parts[1], parts[2])

    def _part(self, start: int, stop: int) -> Text:
        return Text(self.ids[start:stop], self.vocabulary, self.length, self.name)


def text(path: str | os.PathLike[str], length: int = 64, vocabulary: str | None = None) -> Text:
    """Load a UTF-8 text file; by default the vocabulary is the sorted set of its characters."""
    file = Path(path)
    try:
        content = file.read_bytes().decode()
    except OSError as error:
        raise RunError("text", f"{file} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise RunError(
            "text", f"{file} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}."
        ) from None
    codes = np.frombuffer(content.encode("utf-32-le"), np.uint32)
    found, numbers = np.unique(codes, return_inverse=True)
    characters = "".join(map(chr, found.tolist()))
    if vocabulary is None:
        with errors_name_files("text", file):
            return Text(numbers.astype(np.int32), characters, length, file.stem)
    unknown = sorted(set(characters) - set(vocabulary))
    if unknown or len(set(vocabulary)) != len(vocabulary):
        what = f"it lacks characters of {file}: {unknown[:10]}" if unknown else "it has a character twice"
        raise UserError("text", f"the vocabulary does not fit: {what}.")
    table = np.array([vocabulary.index(character) for character in characters], np.int32)
    with errors_name_files("text", file):
        return Text(table[numbers], vocabulary, length, file.stem)
