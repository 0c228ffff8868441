"""Range coding by asymmetric numeral systems (rANS): symbols take as many bits as their frequencies say, to a fraction of a percent.

Contexts choose among several tables of frequencies: who encodes and who decodes must know them. Encoding and decoding are native code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ..compiler.cpu import library
from ..compiler.cpu.special.entropy import LANES, LOWEST
from ..errors import RunError, UserError
from .frequencies import Frequencies

_STATES = 4 * LANES  # bytes at the start


def encode(symbols: np.ndarray, frequencies: Frequencies, contexts: np.ndarray | None = None) -> bytes:
    """The symbols (uint8) as bytes: final states, then words of 16 bits, in little-endian order."""
    padded, chosen = _padded(symbols, frequencies, contexts)
    _check_coded(padded, frequencies, chosen)
    words = np.empty(len(padded) + 8, np.uint16)  # a symbol takes at most SCALE bits, which is less than a word
    states = np.full(LANES, LOWEST, np.uint32)
    first = _function("encode", chosen)(padded, len(padded), chosen, words, len(words), states, frequencies.encoding)
    assert first > 0, "the buffer holds a word for every symbol"
    return states.astype("<u4").tobytes() + words[first:].astype("<u2").tobytes()


def decode(data: bytes, count: int, frequencies: Frequencies, contexts: np.ndarray | None = None) -> np.ndarray:
    """The symbols that `encode` made bytes of. Data that is cut off, too long or damaged is rejected; not every change is noticed."""
    if len(data) < _STATES or len(data) % 2:
        raise RunError("rans", f"coded data is damaged: {len(data)} bytes are no states and words.")
    states = np.frombuffer(data, "<u4", LANES).astype(np.uint32)
    words = np.concatenate([np.frombuffer(data, "<u2", offset=_STATES), np.zeros(1, np.uint16)]).astype(np.uint16)
    empty = np.empty(-(-count // LANES) * LANES, np.uint8)
    chosen = _padded_contexts(contexts, count, frequencies)
    used = _function("decode", chosen)(empty, len(empty), chosen, words, len(words) - 1, states, frequencies.decoding)
    if used != len(words) - 1 or (states != LOWEST).any():
        raise RunError("rans", "coded data is damaged: it does not end where its symbols do.")
    return empty[:count]


def _padded(
    symbols: np.ndarray, frequencies: Frequencies, contexts: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Symbols and contexts up to a multiple of LANES: the most frequent symbol of context 0 costs least."""
    given = np.ascontiguousarray(symbols, np.uint8).ravel()
    padding = np.full(-len(given) % LANES, int(np.argmax(frequencies.rows[0])), np.uint8)
    return np.concatenate([given, padding]), _padded_contexts(contexts, len(given), frequencies)


def _padded_contexts(contexts: np.ndarray | None, count: int, frequencies: Frequencies) -> np.ndarray | None:
    if contexts is None:
        return None
    given = np.ascontiguousarray(contexts, np.uint8).ravel()
    if len(given) != count or (count and int(given.max()) >= len(frequencies.rows)):
        raise UserError("rans", f"{count} contexts below {len(frequencies.rows)} are required, got {len(given)}.")
    return np.concatenate([given, np.zeros(-count % LANES, np.uint8)])


def _check_coded(symbols: np.ndarray, frequencies: Frequencies, contexts: np.ndarray | None) -> None:
    """A symbol without a frequency cannot be coded."""
    coded = frequencies.encoding & 0xFFFF
    found = coded[0][symbols] if contexts is None else coded[contexts, symbols]
    if (found == 0).any():
        raise UserError(
            "rans", f"symbols with a frequency are required, got {int(symbols[np.argmin(found)])}, which has none."
        )


def _function(what: str, contexts: np.ndarray | None) -> Callable[..., int]:
    address = library.address(f"rans.{what}.{'plain' if contexts is None else 'contexts'}")
    kinds = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    native = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(address)

    def call(*given: Any) -> int:
        return int(native(*(one.ctypes.data if isinstance(one, np.ndarray) else one for one in given)))

    return call
