"""Encodes fields of protobuf messages.

A field is a key and a value. A key is the field's number times eight plus how its value is written: 0 varint, 1 eight bytes, 2 counted
bytes, 5 four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def key(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def varint(value: int) -> bytes:
    """A varint: seven bits per byte, lowest first, with the top bit set if more follow. Negative numbers use 64 bits."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def int_field(field: int, value: int) -> bytes:
    return key(field, 0) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    return key(field, 2) + varint(len(value)) + value


def float_field(field: int, value: float) -> bytes:
    if abs(value) > _LARGEST_FLOAT:  # too large for float32: infinity
        value = float("inf") if value > 0 else float("-inf")
    return key(field, 5) + struct.pack("<f", value)


def doubles_field(field: int, values: Sequence[float]) -> bytes:
    return bytes_field(field, struct.pack(f"<{len(values)}d", *values))


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
