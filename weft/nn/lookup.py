"""From texts and categories to numbers, outside of the graph: lists and arrays go in, a tensor of int64 comes out.

They have nothing to train. What they know is their vocabulary: `adapt` finds it in examples, `vocabulary()` shows it, and
`write` and `read` keep it in a file of JSON.

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
    """64 bits that follow from the text of a value alone: the same in every process and on every machine."""
    key = salt.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(str(value).encode(), digest_size=8, key=key).digest(), "little")


class _Vocabulary(Module, Generic[T]):
    """What everything with a vocabulary shares: first some ids with a meaning of their own, then one for each entry."""

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
        """How many ids there are: what an `Embedding` needs as its rows."""
        return self._first + len(self._entries)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Keep the vocabulary in a file: a list in JSON."""
        try:
            Path(path).write_text(json.dumps(self._entries, ensure_ascii=False), encoding="utf-8")
        except OSError as error:
            problem = error.strerror or error
            raise RunError(f"{type(self).__name__}.write", f"{path} cannot be written: {problem}.") from error

    def read(self, path: str | os.PathLike[str]) -> Self:
        """Take over the vocabulary of a file that `write` made."""
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
        """A vocabulary may be long: only how long is said."""
        given = super().details()
        return f"vocabulary of {len(self._entries)}" + (f", {given}" if given else "")


class _Lookup(_Vocabulary[T]):
    """What lookups of strings and of integers share."""

    stranger: ClassVar[Any]  # what `invert` says of an unknown one

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
        """Learn the vocabulary from examples: the most frequent come first, and equally frequent ones in order."""
        self._learn(_by_frequency(_flat(f"{type(self).__name__}.adapt", values, self.kind)))
        return self

    def invert(self, ids: Any) -> Any:
        """What the ids stand for, in nested lists."""
        array = _id_array(f"{type(self).__name__}.invert", ids, self.size())
        found = [self.stranger if i < self.unknown else self._entries[i - self.unknown] for i in array.ravel().tolist()]
        return _shaped(found, array.shape).tolist()


class StringLookup(_Lookup[str]):
    """Strings as ids: those of the vocabulary from `unknown` on, all others spread over the ids below, by their hash.

    With unknown=0, what is not in the vocabulary is an error.

    >>> animals = StringLookup(["cat", "dog"])
    >>> animals([["dog", "cat", "cow"]]).tolist(), animals.invert([2, 0])
    ([[2, 1, 0]], ['dog', '[unknown]'])
    """

    kind = str
    stranger = UNKNOWN


class IntegerLookup(_Lookup[int]):
    """Integers of any size as ids: those of the vocabulary from `unknown` on, all others by their hash below.

    `invert` gives None for those. With unknown=0, what is not in the vocabulary is an error.

    >>> codes = IntegerLookup([1000, -5])
    >>> codes([-5, 7, 1000]).tolist(), codes.invert([2, 0])
    ([2, 0, 1], [-5, None])
    """

    kind = int
    stranger = None


class Hashing(Module):
    """Strings or integers as ids below `bins` without a vocabulary, by a hash that is the same everywhere.

    An integer counts as its digits. Another salt gives another hash: what collides with one rarely does with both.

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
    """Texts as rows of ids, (batch, length): 0 fills up short rows, 1 stands for unknown words, 2 and on for the vocabulary.

    A text is split into "words" at white space, or into "characters", after its letters became small and its punctuation went
    (standardize None: it stays as it is). Rows are cut to `length`; None: as long as the longest. `most`: how many words
    `adapt` keeps.

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
        """Learn the vocabulary from texts: the most frequent words come first, and equally frequent ones in order."""
        found = _by_frequency([part for t in _flat("TextVectorization.adapt", texts, str) for part in self._parts(t)])
        self._learn(found[: self.most])
        return self

    def invert(self, ids: Any) -> list[str]:
        """The texts of rows of ids, without what fills them up."""
        rows = np.atleast_2d(_id_array("TextVectorization.invert", ids, self.size()))
        words = ["", UNKNOWN, *self._entries]
        between = " " if self.split == "words" else ""
        return [between.join(words[i] for i in row if i) for row in rows.tolist()]

    def _parts(self, text: str) -> list[str]:
        if self.standardize is not None:
            text = text.lower().translate(_WITHOUT_PUNCTUATION)
        return text.split() if self.split == "words" else list(text)


class _WithoutPunctuation(dict[int, int | None]):
    """A table for `str.translate` that is filled with the characters that occur: there are too many for all."""

    def __missing__(self, code: int) -> int | None:
        gone = chr(code) in string.punctuation or unicodedata.category(chr(code)).startswith("P")
        self[code] = None if gone else code
        return self[code]


_WITHOUT_PUNCTUATION = _WithoutPunctuation()


# --- what goes in and out ----------------------------------------------------------------------------------------------------


def _values(where: str, values: Any, kind: type | tuple[type, ...]) -> np.ndarray:
    """Strings or integers, alone or in nested lists or an array, as an array of Python's own."""
    if isinstance(values, Tensor):
        values = values.numpy()
    if not isinstance(values, np.ndarray | str | int | list | tuple):
        values = list(values)
    array = np.asarray(values, dtype=object)  # an array of strings in NumPy's own form loses zeros at their ends
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
