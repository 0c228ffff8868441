"""Tokenizers: characters, byte pairs learned from a text, files of Hugging Face; and texts whose tokens they are."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from weft import data, text
from weft.errors import RunError, UserError
from weft.text.tokenizer import make_tokenizer, tokenizer_of

RHYME = "She sells sea shells on the sea shore; the shells that she sells are sea shells I'm sure.\n" * 6
tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def pairs() -> text.SubwordTokenizer:
    return text.SubwordTokenizer.train(RHYME, 280)


def test_byte_pairs_are_shorter_and_can_write_everything(pairs: text.SubwordTokenizer) -> None:
    assert len(pairs.vocabulary) == 280
    assert len(pairs.encode(RHYME)) < len(RHYME) / 2.5
    for given in (RHYME, "", "Ünïcödé — 漢字 😀\t\r\n", "sea\x00shells"):
        assert pairs.decode(pairs.encode(given)) == given
    assert pairs.encode("sea").dtype == np.int32
    assert pairs.vocabulary[pairs.end] == "<|endoftext|>"
    again = text.SubwordTokenizer.train(RHYME, 280)
    assert again.vocabulary == pairs.vocabulary
    assert again.encode(RHYME).tolist() == pairs.encode(RHYME).tolist()


def test_byte_pairs_are_those_of_the_definition() -> None:
    """The most common pair of neighbours becomes a token, then the next: here in plain Python, on words that begin with a space."""
    words = ["low", "low", "lower", "newest"]
    content = "".join(f" {word}" for word in words * 5)
    parts = [list(f"Ġ{word}") for word in words * 5]
    learned = []
    for _ in range(4):
        counts: dict[tuple[str, str], int] = {}
        for word in parts:
            for pair in itertools.pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        best = max(counts.values())
        pair = min(p for p, n in counts.items() if n == best)
        if sum(n == best for n in counts.values()) > 1:
            break  # which of several comes first is up to the package
        learned.append("".join(pair))
        for word in parts:
            for i in range(len(word) - 2, -1, -1):
                if tuple(word[i : i + 2]) == pair:
                    word[i : i + 2] = ["".join(pair)]
    found = text.SubwordTokenizer.train(content, 257 + max(1, len(learned)))
    assert list(found.vocabulary[257 : 257 + len(learned)]) == learned


def test_a_piece_is_a_whole_number_of_characters(pairs: text.SubwordTokenizer) -> None:
    given = "sea 漢字 😀!"
    piece = pairs.pieces()
    found = [piece(int(i)) for i in pairs.encode(given)]
    assert "".join(found) == given
    assert "" in found  # while a character was incomplete
    assert "\ufffd" not in "".join(found)


def test_files_and_facts(pairs: text.SubwordTokenizer, tmp_path: Path) -> None:
    pairs.save(tmp_path / "tokenizer.json")
    for found in (
        text.load_tokenizer(tmp_path / "tokenizer.json"),
        text.load_tokenizer(tmp_path),
        tokenizer_of(json.loads(json.dumps(pairs.facts()))),
        make_tokenizer(str(tmp_path / "tokenizer.json"), ""),
    ):
        assert found.vocabulary == pairs.vocabulary
        assert found.encode(RHYME).tolist() == pairs.encode(RHYME).tolist()
    letters = tokenizer_of(json.loads(json.dumps(text.CharTokenizer("cäb").facts())))
    assert letters.encode("bä").tolist() == [2, 1]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data.json").write_text(json.dumps({"name": "x", "length": 3, **letters.facts()}))
    assert text.load_tokenizer(tmp_path / "run").vocabulary == "cäb"


def test_texts_of_byte_pairs(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text(RHYME * 3, encoding="utf-8")
    splits = data.open_dataset(file, length=8, tokenizer="bpe:280")
    train = splits.train
    assert isinstance(train, data.Text)
    assert (len(train.vocabulary), train.shape) == (280, (8,))
    assert train.decode(train.ids) + splits.validation.decode(splits.validation.ids) == RHYME * 3  # type: ignore[union-attr]
    x, y = train.inputs(np.arange(2)), train.labels[:2]
    np.testing.assert_array_equal(x.ravel()[1:], y.ravel()[:-1])
    whole = data.text(file, 8, tokenizer=train.tokenizer)
    assert whole.tokenizer is train.tokenizer
    learned = text.SubwordTokenizer.train((RHYME * 3)[: round(0.9 * len(RHYME * 3))], 280)
    assert learned.vocabulary == train.vocabulary  # the validation split decides nothing


def test_errors(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "book.txt").write_text(RHYME)
    with pytest.raises(UserError, match="a vocabulary of 257 or more is required, for all bytes .* got 100"):
        text.SubwordTokenizer.train(RHYME, 100)
    with pytest.raises(RunError, match=r"broken\.json cannot be read: JSONDecodeError"):
        text.load_tokenizer(tmp_path / "broken.json")
    with pytest.raises(UserError, match=r"a tokenizer\.json of Hugging Face is required"):
        text.load_tokenizer(tmp_path / "other.json")
    with pytest.raises(UserError, match=r"a run, or a tokenizer\.json or a folder with one, is required, got"):
        text.load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"characters, bpe:SIZE or a tokenizer\.json is required, got 'words'"):
        data.text(tmp_path / "book.txt", tokenizer="words")
    with pytest.raises(UserError, match="a vocabulary of characters and a tokenizer exclude each other"):
        data.text(tmp_path / "book.txt", vocabulary="abc", tokenizer="bpe:300")
    with pytest.raises(UserError, match="a vocabulary has each character once"):
        text.CharTokenizer("aba")
    with pytest.raises(
        UserError, match="digits is a known dataset: tokenizer cannot be set for it. Only texts have a tokenizer"
    ):
        data.open_dataset("digits", tokenizer="bpe:300")


def test_without_the_package_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    message = r"subword tokenizers require the package tokenizers, which is not installed. Run in the checkout of weft: pip install '\.\[text\]'\."
    with pytest.raises(UserError, match=message):
        text.SubwordTokenizer.train(RHYME, 300)
