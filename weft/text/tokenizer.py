"""Tokenizers: from text to token ids and back.

CharTokenizer     one token for each character of a vocabulary
SubwordTokenizer  byte pairs, learned from a text, or any tokenizer.json of Hugging Face; requires the extra `text`
"""

from __future__ import annotations

import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError, UserError
from ..hints import install

END_OF_TEXT = "<|endoftext|>"
LEAST_BYTE_PAIRS = 257  # all bytes, and the end of a text
RUN_FACTS = "data.json"  # of a run: its tokenizer is part of what the network needs to know of its data


class Tokenizer(ABC):
    """Base class: texts to ids, ids to texts, and the ids to a text piece by piece."""

    @property
    @abstractmethod
    def vocabulary(self) -> Sequence[str]:
        """The token of each id."""

    @property
    def end(self) -> int | None:
        """The id of the token that ends a text, if there is one."""
        return None

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int32."""

    @abstractmethod
    def decode(self, ids: Any) -> str:
        """The text of ids."""

    @abstractmethod
    def pieces(self) -> Callable[[int], str]:
        """A function from each id to the text that it adds: "" while a character is incomplete."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What `tokenizer_of` needs to make it again, as JSON."""


class CharTokenizer(Tokenizer):
    """One token for each character.

    >>> letters = CharTokenizer("abc")
    >>> letters.encode("cab").tolist(), letters.decode([2, 1])
    ([2, 0, 1], 'cb')
    """

    def __init__(self, vocabulary: str) -> None:
        if len(set(vocabulary)) != len(vocabulary):
            raise UserError("CharTokenizer", "a vocabulary has each character once.")
        self._vocabulary = vocabulary
        self._number = {character: number for number, character in enumerate(vocabulary)}

    @property
    def vocabulary(self) -> str:
        return self._vocabulary

    def encode(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        found, places = np.unique(codes, return_inverse=True)
        characters = list(map(chr, found.tolist()))
        unknown = [character for character in characters if character not in self._number]
        if unknown:
            shown = ", ".join(map(repr, unknown[:10]))
            raise UserError("encode", f"characters must be in the vocabulary, got {shown}.")
        return np.array([self._number[character] for character in characters], np.int32)[places]

    def decode(self, ids: Any) -> str:
        return "".join(self._vocabulary[number] for number in np.asarray(ids).ravel().tolist())

    def pieces(self) -> Callable[[int], str]:
        return self._vocabulary.__getitem__

    def facts(self) -> dict[str, Any]:
        return {"vocabulary": self._vocabulary}


class SubwordTokenizer(Tokenizer):
    """A tokenizer of the package `tokenizers`, from its JSON; `SubwordTokenizer.train` learns byte pairs from a text.

    >>> pairs = SubwordTokenizer.train("low lower lowest " * 10, 262)
    >>> len(pairs.encode("lower")) < len("lower"), pairs.decode(pairs.encode("lower é")), len(pairs.vocabulary)
    (True, 'lower é', 262)
    """

    def __init__(self, content: str | Mapping[str, Any]) -> None:
        given = content if isinstance(content, str) else json.dumps(content)
        package = tokenizers_package()
        try:
            self._tokenizer = package.Tokenizer.from_str(given)
        except Exception as error:  # its errors have no class of their own
            raise UserError("SubwordTokenizer", f"a tokenizer.json of Hugging Face is required: {error}.") from None
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        if sorted(ids.values()) != list(range(len(ids))):
            raise UserError("SubwordTokenizer", f"ids from 0 to {len(ids) - 1} are required, each for one token.")
        self._vocabulary = tuple(sorted(ids, key=ids.__getitem__))

    @classmethod
    def train(cls, text: str, size: int) -> SubwordTokenizer:
        """Byte-level byte-pair encoding as in GPT-2, with up to `size` tokens, learned from a text   (Sennrich et al. 2016)."""
        if size < LEAST_BYTE_PAIRS:
            raise UserError(
                "SubwordTokenizer",
                f"a vocabulary of {LEAST_BYTE_PAIRS} or more is required, for all bytes and the end of a text, got {size}.",
            )
        package = tokenizers_package()
        made = package.Tokenizer(package.models.BPE())
        made.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=size, special_tokens=[END_OF_TEXT], initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )  # fmt: skip
        made.train_from_iterator([text], trainer)
        return cls(made.to_str())

    @property
    def vocabulary(self) -> Sequence[str]:
        return self._vocabulary

    @property
    def end(self) -> int | None:
        found: int | None = self._tokenizer.token_to_id(END_OF_TEXT)
        return found

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, ids: Any) -> str:
        found: str = self._tokenizer.decode(np.asarray(ids).ravel().tolist(), skip_special_tokens=False)
        return found

    def pieces(self) -> Callable[[int], str]:
        stream = tokenizers_package().decoders.DecodeStream(skip_special_tokens=False)
        return lambda number: stream.step(self._tokenizer, number) or ""

    def facts(self) -> dict[str, Any]:
        return {"tokenizer": json.loads(self._tokenizer.to_str())}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a tokenizer.json, which other programs read too."""
        try:
            Path(path).write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")
        except OSError as error:
            problem = error.strerror or error
            raise RunError("SubwordTokenizer.save", f"{os.fspath(path)} cannot be written: {problem}.") from error


def tokenizers_package() -> Any:
    """The package `tokenizers` of Hugging Face."""
    try:
        return importlib.import_module("tokenizers")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("tokenizers"):
            raise
        message = f"subword tokenizers require the package tokenizers, which is not installed. {install('text')}"
        raise UserError("tokenizer", message) from None


def tokenizer_of(facts: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `facts` describe."""
    return SubwordTokenizer(facts["tokenizer"]) if "tokenizer" in facts else CharTokenizer(facts["vocabulary"])


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a run, or that of a file tokenizer.json of Hugging Face or of a folder with one."""
    given = Path(path)
    candidates = [given] if not given.is_dir() else [given / RUN_FACTS, given / "tokenizer.json"]
    file = next((one for one in candidates if one.is_file()), None)
    if file is None:
        raise UserError("load_tokenizer", f"a run, or a tokenizer.json or a folder with one, is required, got {given}.")
    try:
        content = file.read_text(encoding="utf-8")
        facts = json.loads(content)
        if not isinstance(facts, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError, RecursionError) as error:
        problem = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise RunError("load_tokenizer", f"{file} cannot be read: {problem}.") from None
    if file.name == RUN_FACTS and not {"tokenizer", "vocabulary"} & set(facts):
        raise UserError("load_tokenizer", f"a run that was trained on text is required, got {given}.")
    try:
        return SubwordTokenizer(content) if file.name != RUN_FACTS else tokenizer_of(facts)
    except (UserError, TypeError) as error:
        raise UserError("load_tokenizer", f"{file} cannot be used: {getattr(error, 'message', error)}") from None


def is_tokenizer_name(name: str) -> bool:
    """Whether a setting names a kind of tokenizer: characters, or bpe:1000."""
    kind, _, size = name.partition(":")
    return name == "characters" or (kind == "bpe" and size.isdecimal() and int(size) >= LEAST_BYTE_PAIRS)


def make_tokenizer(name: str, content: str) -> Tokenizer:
    """The tokenizer that a setting names, learned from a text where it has to be: characters, bpe:1000, or a file."""
    if name == "characters":
        return CharTokenizer("".join(sorted(set(content))))
    if name.startswith("bpe:") and name[4:].isdecimal():
        return SubwordTokenizer.train(content, int(name[4:]))
    if Path(name).exists():
        return load_tokenizer(name)
    raise UserError("tokenizer", f"characters, bpe:SIZE or a tokenizer.json is required, got {name!r}.")
