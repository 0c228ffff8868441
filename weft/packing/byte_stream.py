"""Numbers, texts and tables of frequencies as bytes. The reader checks bounds: what it reads comes from files."""

from __future__ import annotations

from typing import Any

import numpy as np

from .frequencies import TOTAL, Frequencies

LONGEST_VARINT = 9  # bytes: 63 bits


class Damaged(ValueError):
    """Bytes that nothing was written as; the text says what is wrong."""


def _unsigned(dtype: np.dtype[Any]) -> str:
    """The bits of numbers of this type; files are little-endian, as all machines are that weft runs on."""
    return f"<u{dtype.itemsize}"


class ByteWriter:
    """Appends to a growing list of bytes."""

    def __init__(self) -> None:
        self.content = bytearray()

    def varint(self, *numbers: int) -> None:
        """Whole numbers from 0, seven bits a byte, the lowest first."""
        for number in map(int, numbers):
            while number >= 0x80:
                self.content.append(number & 0x7F | 0x80)
                number >>= 7
            self.content.append(number)

    def text(self, text: str) -> None:
        self.block(text.encode())

    def block(self, content: bytes) -> None:
        """Bytes behind their number."""
        self.varint(len(content))
        self.content += content

    def array(self, values: np.ndarray) -> None:
        """Values one after the other; the reader knows how many and of what type."""
        self.content += np.ascontiguousarray(values).view(_unsigned(values.dtype)).tobytes()

    def bits(self, numbers: np.ndarray, width: int) -> None:
        """Numbers below 2^width, each in as many bits."""
        places = np.arange(width - 1, -1, -1)
        found = (np.asarray(numbers, np.int64).reshape(-1, 1) >> places) & 1
        self.content += np.packbits(found.astype(np.uint8)).tobytes()

    def frequencies(self, table: Frequencies) -> None:
        """Rows without their last entry, which follows from the sum, in Exp-Golomb codes of the order that is shortest."""
        numbers = table.rows[:, :-1].ravel().tolist()
        order = min(range(13), key=lambda k: sum(2 * ((n >> k) + 1).bit_length() - 1 + k for n in numbers))
        text = "".join(_exp_golomb(n, order) for n in numbers)
        self.content.append(order)
        self.content += np.packbits(np.frombuffer(text.encode(), np.uint8) - ord("0")).tobytes()


def _exp_golomb(number: int, order: int) -> str:
    """As many zeros as the prefix has bits behind its first, then prefix and the `order` low bits.

    >>> [_exp_golomb(n, 1) for n in (0, 1, 2, 7)]
    ['10', '11', '0100', '001001']
    """
    prefix = f"{(number >> order) + 1:b}"
    low = f"{number & ((1 << order) - 1):0{order}b}" if order else ""
    return "0" * (len(prefix) - 1) + prefix + low


class ByteReader:
    """Reads what `ByteWriter` wrote; `Damaged` if it cannot be."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    @property
    def left(self) -> int:
        return len(self.content) - self.place

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise Damaged(f"{count} bytes are required at byte {self.place} and {self.left} are left")
        self.place += count
        return self.content[self.place - count : self.place]

    def varint(self) -> int:
        number = 0
        for position in range(LONGEST_VARINT):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                return number
        raise Damaged("a number is too long")

    def at_most(self, most: int, what: str) -> int:
        """A number up to `most`."""
        found = self.varint()
        if found > most:
            raise Damaged(f"{what} is {found}, at most {most} is possible")
        return found

    def text(self) -> str:
        try:
            return self.block().decode()
        except UnicodeDecodeError:
            raise Damaged("a name is not text") from None

    def block(self) -> bytes:
        return self.take(self.varint())

    def array(self, dtype: np.dtype[Any], count: int) -> np.ndarray:
        found = np.frombuffer(self.take(count * dtype.itemsize), _unsigned(dtype))
        if dtype == np.bool_ and found.max(initial=0) > 1:
            raise Damaged("a bool is neither 0 nor 1")
        return found.copy().view(dtype)

    def bits(self, count: int, width: int) -> np.ndarray:
        given = np.unpackbits(np.frombuffer(self.take(-(-count * width // 8)), np.uint8))[: count * width]
        powers = 1 << np.arange(width - 1, -1, -1)
        found: np.ndarray = given.reshape(count, width).astype(np.int64) @ powers
        return found

    def frequencies(self, contexts: int, symbols: int) -> Frequencies:
        order = self.at_most(12, "the order of a code")
        reader = _BitReader(self.content, 8 * self.place)
        rows = np.zeros((contexts, symbols), np.int64)
        for row in rows:
            for symbol in range(symbols - 1):
                row[symbol] = reader.exp_golomb(order)
            row[-1] = TOTAL - row.sum()
        self.place = -(-reader.place // 8)
        if (rows < 0).any():
            raise Damaged("frequencies add up to too much")
        return Frequencies(rows)


class _BitReader:
    def __init__(self, content: bytes, place: int) -> None:
        self.content, self.place = content, place

    def bit(self) -> int:
        if self.place >= 8 * len(self.content):
            raise Damaged("a table of frequencies is cut off")
        found = self.content[self.place >> 3] >> (7 - (self.place & 7)) & 1
        self.place += 1
        return found

    def number(self, width: int, first: int = 0) -> int:
        for _ in range(width):
            first = first << 1 | self.bit()
        return first

    def exp_golomb(self, order: int) -> int:
        zeros = 0
        while not self.bit():
            zeros += 1
            if zeros > 13:
                raise Damaged("a frequency is too large")
        return (self.number(zeros, 1) - 1) << order | self.number(order)
