"""rANS and Huffman codes: lossless, as short as entropy allows, and safe for damaged data; rANS against a plain implementation with Python's integers."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import RunError, UserError
from weft.packing import huffman, rans
from weft.packing.frequencies import TOTAL, Frequencies

RNG = np.random.default_rng(0)


def drawn(count: int, symbols: int, skew: float = 1.0) -> np.ndarray:
    weights = RNG.random(symbols) ** (10 * skew) + 1e-9
    return RNG.choice(symbols, count, p=weights / weights.sum()).astype(np.uint8)


def plain_decode(data: bytes, count: int, row: np.ndarray) -> list[int]:
    """rANS as the papers write it, one symbol after the other."""
    states = list(np.frombuffer(data, "<u4", 4).tolist())
    words = iter(np.frombuffer(data, "<u2", offset=16).tolist())
    first = np.cumsum(row) - row
    found = []
    for i in range(-(-count // 4) * 4):
        x = states[i % 4]
        slot = x % TOTAL
        symbol = int(np.searchsorted(first + row, slot, side="right"))
        x = int(row[symbol]) * (x // TOTAL) + slot - int(first[symbol])
        if x < 1 << 16:
            x = (x << 16) | next(words)
        states[i % 4] = x
        found.append(symbol)
    assert states == [1 << 16] * 4
    assert next(words, None) is None
    return found[:count]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 63, 1000, 20_001])
@pytest.mark.parametrize("symbols", [1, 2, 17, 256])
def test_rans_gives_back_what_it_was_given(count: int, symbols: int) -> None:
    given_symbols = drawn(count, symbols)
    counts = np.bincount(given_symbols, minlength=symbols)
    frequencies = Frequencies.of_counts(counts)
    data = rans.encode(given_symbols, frequencies)
    np.testing.assert_array_equal(rans.decode(data, count, frequencies), given_symbols)
    assert plain_decode(data, count, frequencies.rows[0]) == given_symbols.tolist()
    assert len(data) <= frequencies.bits(counts) / 8 + 16 + 8


def test_rans_with_contexts_uses_the_frequencies_of_each() -> None:
    contexts = RNG.integers(0, 3, 50_000).astype(np.uint8)
    symbols = (RNG.random(50_000) * np.array([2, 30, 256])[contexts]).astype(np.uint8)
    counts = np.stack([np.bincount(symbols[contexts == i], minlength=256) for i in range(3)])
    frequencies = Frequencies.of_counts(counts)
    data = rans.encode(symbols, frequencies, contexts)
    np.testing.assert_array_equal(rans.decode(data, len(symbols), frequencies, contexts), symbols)
    assert len(data) == pytest.approx(frequencies.bits(counts) / 8 + 16, abs=8)
    assert len(data) < 0.9 * len(rans.encode(symbols, Frequencies.of_counts(counts.sum(axis=0))))
    with pytest.raises(UserError, match="contexts below 3"):
        rans.encode(symbols, frequencies, contexts + 1)


def test_frequencies_are_close_to_the_best() -> None:
    for skew in (0.1, 1.0, 5.0):
        counts = np.bincount(drawn(100_000, 64, skew), minlength=64)
        frequencies = Frequencies.of_counts(counts)
        frequencies.check()
        used = counts[counts > 0]
        entropy = -(used * np.log2(used / used.sum())).sum()
        assert entropy <= frequencies.bits(counts) <= 1.002 * entropy + 64
        assert ((frequencies.rows[0] > 0) == (counts > 0)).all()


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(1, 256))
def test_garbage_is_refused_or_decoded_but_never_read_beyond_its_end(data: bytes, count: int, symbols: int) -> None:
    frequencies = Frequencies.of_counts(np.ones(symbols, np.int64))
    for decode in (
        lambda: rans.decode(data, count, frequencies),
        lambda: huffman.decode(data, count, huffman.code_lengths(np.ones(symbols, np.int64))),
    ):
        try:
            assert len(decode()) == count
        except RunError as error:
            assert "damaged" in error.message  # noqa: PT017


def test_damaged_data_is_refused() -> None:
    symbols = drawn(5000, 16)
    frequencies = Frequencies.of_counts(np.bincount(symbols, minlength=16))
    data = rans.encode(symbols, frequencies)
    for damaged in (data[:-2], data + b"\0\0", data[:3], b"", data[:-1]):
        with pytest.raises(RunError, match="damaged"):
            rans.decode(damaged, 5000, frequencies)
    with pytest.raises(UserError, match="which has none"):
        rans.encode(np.array([200], np.uint8), frequencies)


def entropy_of_huffman(counts: list[int]) -> int:
    """The bits of the best prefix code, by merging the two rarest until one is left."""
    heap = [count for count in counts if count]
    if len(heap) < 2:
        return sum(heap)
    heapq.heapify(heap)
    bits = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        bits += merged
        heapq.heappush(heap, merged)
    return bits


@pytest.mark.parametrize("symbols", [1, 2, 3, 16, 256])
def test_huffman_codes_are_the_best_prefix_codes(symbols: int) -> None:
    given_symbols = drawn(10_000, symbols, 0.3)
    counts = np.bincount(given_symbols, minlength=symbols)
    lengths = huffman.code_lengths(counts)
    assert (counts * lengths).sum() == entropy_of_huffman(counts.tolist())
    data = huffman.encode(given_symbols, lengths)
    assert len(data) == -(-int((counts * lengths).sum()) // 8)
    np.testing.assert_array_equal(huffman.decode(data, len(given_symbols), lengths), given_symbols)
    with pytest.raises(RunError, match="damaged"):
        huffman.decode(data[:-1], len(given_symbols), lengths)


def test_long_codes_are_limited_to_fifteen_bits() -> None:
    counts = np.array([2**i for i in range(24)])  # the plain code would have 23 bits
    lengths = huffman.code_lengths(counts)
    assert lengths.max() == 15
    assert (2.0 ** -lengths.astype(float)).sum() == 1.0
    symbols = np.repeat(np.arange(24), 3).astype(np.uint8)
    np.testing.assert_array_equal(huffman.decode(huffman.encode(symbols, lengths), 72, lengths), symbols)
    with pytest.raises(RunError, match="prefix code"):
        huffman.codewords(np.array([1, 1, 1]))
