"""Vocabulary layers: text and categories to ids, outside of the graph, from lists and arrays to int64 tensors.

They have no parameters, only a vocabulary: `adapt` builds it from examples, `vocabulary()` returns it, and `write` and
`read` save and load it as JSON.

    words = nn.TextVectorization(length=50).adapt(texts)
    model = nn.Sequential(nn.Embedding(words.size(), 64), ...)
    model(words(["a text", "and another"]))
"""

from __future__ import annotations

import hashlib
import json
import os
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..ops.declare import whole
from ..tensor import Tensor
from . import checks
from .module import Module

T = TypeVar("T", bound=str | int)
UNKNOWN = "[unknown]"


def stable_hash(value: str | int, salt: int = 0) -> int:
    """A 64-bit hash of the text of a value, the same in every process and on every machine."""
    key = salt.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(str(value).encode(), digest_size=8, key=key).digest(), "little")


class _Vocabulary(Module, Generic[T]):
    """Base class of layers with a vocabulary: some reserved ids, then one per entry."""

    kind: ClassVar[type]

    def __init__(self, vocabulary: Iterable[T] | None, first: int) -> None:
        self._first = first
        self._learn([] if vocabulary is None else _flat(type(self).__name__, vocabulary, self.kind))

    def _learn(self, entries: Sequence[T]) -> None:
        twice = [entry for entry, times in Counter(entries).items() if times > 1]
        if twice:
            raise UserError(type(self).__name__, f"a vocabulary has each entry once, got {twice[0]!r} again.")
        self._entries: tuple[T, ...] = tuple(entries)
        self._ids = {entry: i for i, entry in enumerate(entries, self._first)}

    def vocabulary(self) -> list[T]:
        """The entries, in the order of their ids."""
        return list(self._entries)

    def size(self) -> int:
        """The number of ids, which is the number of rows of an `Embedding`."""
        return self._first + len(self._entries)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Save the vocabulary as a JSON list."""
        try:
            Path(path).write_text(json.dumps(self._entries, ensure_ascii=False), encoding="utf-8")
        except OSError as error:
            problem = error.strerror or error
            raise RunError(f"{type(self).__name__}.write", f"{path} cannot be written: {problem}.") from error

    def read(self, path: str | os.PathLike[str]) -> Self:
        """Load a vocabulary saved by `write`."""
        try:
            entries = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            problem = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            raise RunError(f"{type(self).__name__}.read", f"{os.fspath(path)} cannot be read: {problem}.") from None
        if not isinstance(entries, list):
            raise UserError(f"{type(self).__name__}.read", f"a list in JSON is required, {os.fspath(path)} holds none.")
        self._learn(_flat(f"{type(self).__name__}.read", entries, self.kind))
        return self

    def details(self) -> str:
        """The size of the vocabulary, which may be too long to print."""
        given = super().details()
        return f"vocabulary of {len(self._entries)}" + (f", {given}" if given else "")


class _Lookup(_Vocabulary[T]):
    """Base class of lookups of strings and of integers."""

    stranger: ClassVar[Any]  # the result of `invert` for unknown values

    def __init__(self, vocabulary: Iterable[T] | None = None, unknown: int = 1) -> None:
        self.unknown = whole(type(self).__name__, "number of unknown ids", unknown)
        super().__init__(vocabulary, self.unknown)

    def forward(self, values: Any) -> Tensor:
        return _ids_of(type(self).__name__, values, self.kind, self._id)

    def _id(self, value: T) -> int:
        found = self._ids.get(value)
        if found is not None:
            return found
        if not self.unknown:
            raise UserError(type(self).__name__, f"{value!r} is not in the vocabulary, and unknown is 0.")
        return stable_hash(value) % self.unknown if self.unknown > 1 else 0

    def adapt(self, values: Any) -> Self:
        """Build the vocabulary from examples, by descending frequency, ties sorted."""
        self._learn(_by_frequency(_flat(f"{type(self).__name__}.adapt", values, self.kind)))
        return self

    def invert(self, ids: Any) -> Any:
        """The values of ids, as nested lists."""
        array = _id_array(f"{type(self).__name__}.invert", ids, self.size())
        found = [self.stranger if i < self.unknown else self._entries[i - self.unknown] for i in array.ravel().tolist()]
        return _shaped(found, array.shape).tolist()


class StringLookup(_Lookup[str]):
    """Map strings to ids: vocabulary entries from `unknown` on, all others to the ids below, by their hash.

    With unknown=0, values outside the vocabulary are an error.

    >>> animals = StringLookup(["cat", "dog"])
    >>> animals([["dog", "cat", "cow"]]).tolist(), animals.invert([2, 0])
    ([[2, 1, 0]], ['dog', '[unknown]'])
    """

    kind = str
    stranger = UNKNOWN


class IntegerLookup(_Lookup[int]):
    """Map integers of any size to ids: vocabulary entries from `unknown` on, all others to the ids below, by their hash.

    `invert` returns None for those. With unknown=0, values outside the vocabulary are an error.

    >>> codes = IntegerLookup([1000, -5])
    >>> codes([-5, 7, 1000]).tolist(), codes.invert([2, 0])
    ([2, 0, 1], [-5, None])
    """

    kind = int
    stranger = None


class Hashing(Module):
    """Map strings or integers to ids below `bins` without a vocabulary, by a stable hash.

    An integer is hashed as its digits. Another salt gives another hash, with other collisions.

    >>> Hashing(100)(["cat", "dog", "cat"]).tolist()
    [30, 64, 30]
    """

    def __init__(self, bins: int, salt: int = 0) -> None:
        self.bins = checks.check_count("Hashing", "bins", bins)
        self.salt = whole("Hashing", "salt", salt)
        if self.salt >= 2**64:
            raise UserError("Hashing", f"a salt below 2**64 is required, got {salt}.")

    def forward(self, values: Any) -> Tensor:
        return _ids_of("Hashing", values, (str, int), lambda value: stable_hash(value, self.salt) % self.bins)


class TextVectorization(_Vocabulary[str]):
    """Map texts to rows of ids, (batch, length): 0 is padding, 1 unknown words, 2 and above the vocabulary.

    A text is split into "words" at white space, or into "characters", after lowercasing and removing punctuation (unless
    standardize is None). Rows are truncated to `length`; None: the longest text. `most`: the number of words that `adapt`
    keeps.

    >>> texts = TextVectorization().adapt(["The cat.", "The dog!"])
    >>> texts(["the dog", "A bird and the cat"]).tolist()
    [[2, 4, 0, 0, 0], [1, 1, 1, 2, 3]]
    """

    kind = str

    def __init__(
        self,
        vocabulary: Iterable[str] | None = None,
        most: int | None = None,
        length: int | None = None,
        split: str = "words",
        standardize: str | None = "lower_and_strip_punctuation",
    ) -> None:
        name = "TextVectorization"
        self.most = checks.check_optional_count(name, "most frequent words", most)
        self.length = None if length is None else whole(name, "length", length, least=1)
        if split not in ("words", "characters"):
            raise UserError(name, f"the split must be 'words' or 'characters', got {split!r}.")
        if standardize not in ("lower_and_strip_punctuation", None):
            raise UserError(name, f"standardize must be 'lower_and_strip_punctuation' or None, got {standardize!r}.")
        self.split, self.standardize = split, standardize
        super().__init__(vocabulary, 2)

    def forward(self, texts: Any) -> Tensor:
        rows = [[self._ids.get(part, 1) for part in self._parts(t)] for t in _flat("TextVectorization", texts, str)]
        length = max(map(len, rows), default=0) if self.length is None else self.length
        ids = np.zeros((len(rows), length), np.int64)
        for row, found in zip(ids, rows, strict=True):
            row[: len(found)] = found[:length]
        return asarray(ids)

    def adapt(self, texts: Any) -> Self:
        """Build the vocabulary from texts, by descending frequency, ties sorted."""
        found = _by_frequency([part for t in _flat("TextVectorization.adapt", texts, str) for part in self._parts(t)])
        self._learn(found[: self.most])
        return self

    def invert(self, ids: Any) -> list[str]:
        """The texts of rows of ids, without padding."""
        rows = np.atleast_2d(_id_array("TextVectorization.invert", ids, self.size()))
        words = ["", UNKNOWN, *self._entries]
        between = " " if self.split == "words" else ""
        return [between.join(words[i] for i in row if i) for row in rows.tolist()]

    def _parts(self, text: str) -> list[str]:
        if self.standardize is not None:
            text = text.lower().translate(_WITHOUT_PUNCTUATION)
        return text.split() if self.split == "words" else list(text)


class _WithoutPunctuation(dict[int, int | None]):
    """A table for `str.translate` that is filled lazily, because Unicode has too many characters."""

    def __missing__(self, code: int) -> int | None:
        gone = chr(code) in string.punctuation or unicodedata.category(chr(code)).startswith("P")
        self[code] = None if gone else code
        return self[code]


_WITHOUT_PUNCTUATION = _WithoutPunctuation()


# --- what goes in and out ----------------------------------------------------------------------------------------------------


def _values(where: str, values: Any, kind: type | tuple[type, ...]) -> np.ndarray:
    """Strings or integers, single or in nested lists or an array, as an array of Python objects."""
    if isinstance(values, Tensor):
        values = values.numpy()
    if not isinstance(values, np.ndarray | str | int | list | tuple):
        values = list(values)
    array = np.asarray(values, dtype=object)  # NumPy's string dtype drops trailing zero characters
    flat = [value.item() if isinstance(value, np.generic) else value for value in array.ravel().tolist()]
    for value in flat:
        if not isinstance(value, kind) or isinstance(value, bool):
            wanted = {str: "strings", int: "integers"}.get(kind, "strings or integers")  # type: ignore[arg-type]
            raise UserError(where, f"{wanted}, in lists of one length, are required, got {type(value).__name__}.")
    return _shaped(flat, array.shape)


def _shaped(values: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def _flat(where: str, values: Any, kind: type) -> list[Any]:
    flat: list[Any] = _values(where, values, kind).ravel().tolist()
    return flat


def _ids_of(where: str, values: Any, kind: type | tuple[type, ...], number: Callable[[Any], int]) -> Tensor:
    array = _values(where, values, kind)
    return asarray(np.array([number(v) for v in array.ravel().tolist()], np.int64).reshape(array.shape))


def _by_frequency(values: Iterable[T]) -> list[T]:
    times = Counter(values)
    return sorted(times, key=lambda value: (-times[value], value))


def _id_array(where: str, ids: Any, size: int) -> np.ndarray:
    array = ids.numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    if array.size and (array.dtype.kind not in "iu" or int(array.min()) < 0 or int(array.max()) >= size):
        raise UserError(where, f"ids from 0 to {size - 1} are required, got {array.tolist()}.")
    return array.astype(np.int64)
