"""Canonical Huffman codes, as in Deep Compression: a code is known by the lengths of its words, which are at most 15 bits. Decoding is native code."""

from __future__ import annotations

import ctypes

import numpy as np

from ..compiler.cpu import library
from ..compiler.cpu.special.entropy import PEEK
from ..errors import RunError, UserError

_PADDING = 8  # bytes that the decoder may look at behind the data


def code_lengths(counts: np.ndarray) -> np.ndarray:
    """The bits of each symbol's code (uint8; 0 for symbols that do not occur): the least total among codes of up to 15 bits (package-merge).

    >>> code_lengths(np.array([50, 25, 15, 10, 0])).tolist()
    [1, 2, 3, 3, 0]
    """
    given = np.asarray(counts)
    symbols = [int(s) for s in np.argsort(given, kind="stable") if given[s] > 0]
    lengths = np.zeros(len(given), np.uint8)
    if len(symbols) > 1 << PEEK or len(given) > 256:
        raise UserError("huffman", f"at most 256 symbols are required, got {len(given)}.")
    if len(symbols) < 2:
        lengths[symbols] = 1
        return lengths
    coins = [(int(given[s]), (s,)) for s in symbols]
    packages: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(PEEK):
        merged = sorted([*coins, *packages], key=lambda one: one[0])
        packages = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(merged[::2], merged[1::2], strict=False)]
    for _, inside in packages[: len(symbols) - 1]:
        for symbol in inside:
            lengths[symbol] += 1
    return lengths


def codewords(lengths: np.ndarray) -> np.ndarray:
    """The canonical codes of these lengths: in the order of length, then of symbol. Lengths that make no prefix code are rejected."""
    used = np.asarray(lengths, np.int64)
    if (used > PEEK).any() or (used > 0).sum() == 0 or (2.0 ** -used[used > 0]).sum() > 1.0:
        raise RunError("huffman", f"the lengths of a prefix code of up to {PEEK} bits are required.")
    words, word, last = np.zeros(len(used), np.uint32), 0, 0
    for symbol in sorted(np.flatnonzero(used), key=lambda s: (used[s], s)):
        word <<= int(used[symbol]) - last
        last = int(used[symbol])
        words[symbol] = word
        word += 1
    return words


def encode(symbols: np.ndarray, lengths: np.ndarray) -> bytes:
    """The codes of the symbols one after the other, each with its highest bit first; the last byte is filled with zeros."""
    given = np.ascontiguousarray(symbols, np.uint8).ravel()
    words, bits = codewords(lengths), np.asarray(lengths, np.int64)
    if len(given) and (bits[given] == 0).any():
        raise UserError("huffman", "symbols that have codes are required, got one that has none.")
    ends = np.cumsum(bits[given])
    out = np.zeros(int(ends[-1]) if len(given) else 0, np.uint8)
    for place in range(PEEK):  # the bits at this place of all codes that are so long
        longer = bits[given] > place
        chosen = given[longer]
        out[(ends[longer] - bits[chosen]) + place] = (words[chosen] >> (bits[chosen] - 1 - place).astype(np.uint32)) & 1
    return np.packbits(out).tobytes()


def decode(data: bytes, count: int, lengths: np.ndarray) -> np.ndarray:
    """The symbols that `encode` made bytes of. Data that is cut off or too long is rejected."""
    table = _table(np.asarray(lengths, np.uint8))
    padded = np.concatenate([np.frombuffer(data, np.uint8), np.zeros(_PADDING, np.uint8)])
    symbols = np.empty(count, np.uint8)
    kinds = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    native = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(library.address("huffman.decode"))
    bits = native(symbols.ctypes.data, count, padded.ctypes.data, len(data), table.ctypes.data)
    if bits < 0 or -(-bits // 8) != len(data):
        raise RunError("huffman", "coded data is damaged: it does not end where its symbols do.")
    return symbols


def _table(lengths: np.ndarray) -> np.ndarray:
    """For all PEEK bits that may come next: the symbol whose code they begin with, and the length of that code."""
    words = codewords(lengths)
    table = np.zeros(1 << PEEK, np.uint16)
    for symbol in np.flatnonzero(lengths):
        room = PEEK - int(lengths[symbol])
        first = int(words[symbol]) << room
        table[first : first + (1 << room)] = int(symbol) | int(lengths[symbol]) << 8
    return table
