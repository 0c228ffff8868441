"""Texts: arrays of strings on the host. They cannot be arguments of `weft.jit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from ...errors import UserError
from ..registry import op
from ..values import Value, known

Ints = tuple[int, ...]


def as_texts(values: list[str], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _plain(x: np.ndarray) -> list[str]:
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in x.ravel()]


@op("StringConcat", raw=True)
def string_concat(x: Value, y: Value) -> np.ndarray:
    left, right = np.broadcast_arrays(x, y)
    return as_texts([a + b for a, b in zip(_plain(left), _plain(right), strict=True)], left.shape)


@op("StringSplit", raw=True)
def string_split(
    x: Value, *, delimiter: str | None = None, maxsplit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The parts of each text, filled up with empty ones to the longest, and how many there are."""
    parts = [text.split(delimiter or None, -1 if maxsplit is None else maxsplit) for text in _plain(x)]
    most = max(map(len, parts), default=0)
    filled = [part for text in parts for part in (*text, *[""] * (most - len(text)))]
    counts = np.array([len(text) for text in parts], np.int64).reshape(x.shape)
    return as_texts(filled, (*x.shape, most)), counts


_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@op("StringNormalizer", raw=True)
def string_normalizer(
    x: Value,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "en_US",
    stopwords: tuple[str, ...] = (),
) -> np.ndarray:
    """Texts without stop words, in another case. Of a matrix (1, n) the result is one, too."""
    change = _CASES.get(case_change_action)
    if change is None:
        raise UserError("onnx", f"the case_change_action LOWER, UPPER or NONE is required, got {case_change_action!r}.")
    without = set(stopwords) if is_case_sensitive else {word.lower() for word in stopwords}
    left = [t for t in _plain(x) if (t if is_case_sensitive else t.lower()) not in without]
    kept = [change(t) for t in left] or [""]
    return as_texts(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


@op("TfIdfVectorizer", raw=True)
def tf_idf_vectorizer(
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints | None = None,
    pool_strings: tuple[str, ...] | None = None,
    weights: tuple[float, ...] | None = None,
) -> np.ndarray:
    """Counts of n-grams, in which up to `max_skip_count` elements lie between two."""
    array = known(x, "the input of TfIdfVectorizer")
    pool = list(pool_int64s if pool_int64s is not None else pool_strings or ())
    places = _ngram_places(pool, ngram_counts, ngram_indexes, min_gram_length, max_gram_length)
    rows = array.reshape(1, -1) if array.ndim < 2 else array
    result = np.zeros((rows.shape[0], max(ngram_indexes) + 1), np.float32)
    for i, row in enumerate(rows):
        tokens = _plain(row) if pool_strings is not None else row.tolist()
        for gram, count in _ngrams(tokens, min_gram_length, max_gram_length, max_skip_count).items():
            if gram in places:
                number = places[gram]
                weight = 1.0 if weights is None else weights[number]
                column = ngram_indexes[number]
                result[i, column] += {"TF": count, "IDF": weight, "TFIDF": count * weight}[mode]
    return result[0] if array.ndim < 2 else result


def _ngram_places(
    pool: list[object], counts: Ints, indexes: Ints, least: int, most: int
) -> dict[tuple[object, ...], int]:
    found: dict[tuple[object, ...], int] = {}
    number = 0
    for length, start in enumerate(counts, 1):
        end = counts[length] if length < len(counts) else len(pool)
        for i in range(start, end, length):
            if least <= length <= most:
                found[tuple(pool[i : i + length])] = number
            number += 1
    return found


def _ngrams(tokens: Sequence[object], least: int, most: int, skips: int) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for length in range(least, most + 1):
        for step in range(1, (skips if length > 1 else 0) + 2):
            for i in range(len(tokens) - (length - 1) * step):
                found[tuple(tokens[i : i + length * step : step])] += 1
    return found
