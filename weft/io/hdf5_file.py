"""Reads the part of HDF5 that Keras writes: groups, arrays of numbers and short attributes, as HDF5 writes them by default (superblock 0 or 1).

The reference library is not used: of 2,000 damaged files one made it loop for ever, and it cannot be told how much memory a file may take.

A file is a tree of object headers. A header is a list of messages: those of a group name a B-tree of symbol tables (names and headers of its
members) and a heap with the names; those of a dataset give its shape, its type and where its values are. Every address and size is checked
against the file, no header is read twice, and arrays are views of the file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple

import numpy as np

from ..records import dataclass
from .file_kind import HDF5

MAX_OBJECTS, MAX_DEPTH, MAX_RANK, MAX_TEXT = 100_000, 32, 32, 1 << 20
MAX_STEPS = 1_000_000  # messages, nodes and texts that are visited in all; those of ResNet-152 are 20,000
UNDEFINED = 2**64 - 1  # an address: nothing is stored
_DATASPACE, _DATATYPE, _LINK_INFO, _LINK, _LAYOUT, _FILTERS, _ATTRIBUTE, _CONTINUATION, _SYMBOLS = (
    0x01, 0x03, 0x02, 0x06, 0x08, 0x0B, 0x0C, 0x10, 0x11,
)  # fmt: skip
_INTEGER, _FLOAT, _STRING, _VARIABLE = 0, 1, 3, 9  # classes of types
_FLOATS = {2: (5, 10, 15), 4: (8, 23, 127), 8: (11, 52, 1023)}  # by size: bits of exponent and mantissa, bias


class DamagedHdf5(ValueError):
    """What is wrong with a file, or not supported."""


@dataclass
class Hdf5Content:
    """The datasets of a file by path, and the texts among the attributes of each object, which are lists."""

    datasets: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: dict[str, dict[str, list[str]]] = field(default_factory=dict)


class _Message(NamedTuple):
    kind: int
    data: memoryview


class _GroupMember(NamedTuple):
    """A member of a group."""

    name: str
    header: int


def read_hdf5(content: memoryview) -> Hdf5Content:
    """All datasets and texts; `DamagedHdf5` if the file is damaged or has what Keras does not write."""
    try:
        return _read(content)
    except IndexError:
        raise DamagedHdf5("a part of it is too short") from None


def _read(content: memoryview) -> Hdf5Content:
    file, found = _File(content), Hdf5Content()
    seen: set[int] = set()
    size = 0
    todo = [("", file.root(), 0)]
    while todo:
        path, header, depth = todo.pop()
        if header in seen or len(seen) > MAX_OBJECTS or depth > MAX_DEPTH:
            raise DamagedHdf5(f"the object {path[:100]!r} is in the file twice, or too deep")
        seen.add(header)
        messages = file.messages(header)
        found.attributes[path] = dict(file.texts(messages))
        kinds = {message.kind: message.data for message in messages}
        if _SYMBOLS in kinds:
            members = [
                (f"{path}/{e.name}" if path else e.name, e.header, depth + 1) for e in file.members(kinds[_SYMBOLS])
            ]
            todo += reversed(members)
        elif _LAYOUT in kinds:
            found.datasets[path] = file.array(path, kinds)
            size += found.datasets[path].nbytes
        elif _LINK_INFO in kinds or _LINK in kinds:
            raise DamagedHdf5(f"the group {path[:100]!r} is in HDF5's newer form, which Keras does not write")
        if size > len(content):
            raise DamagedHdf5("its arrays overlap")
    return found


class _File:
    """The bytes of a file, read with checks."""

    def __init__(self, content: memoryview) -> None:
        self.content, self.steps = content, 0

    def step(self) -> None:
        """Count what is visited: parts of a damaged file may contain each other."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise DamagedHdf5("its parts contain each other")

    def part(self, place: int, size: int) -> memoryview:
        if place < 0 or size < 0 or place + size > len(self.content):
            raise DamagedHdf5("it is cut off, or an address is beyond its end")
        return self.content[place : place + size]

    def numbers(self, layout: str, place: int) -> tuple[int, ...]:
        return struct.unpack(layout, self.part(place, struct.calcsize(layout)))

    def root(self) -> int:
        """The header of the root group."""
        if bytes(self.part(0, 8)) != HDF5:
            raise DamagedHdf5("it does not begin as an HDF5 file")
        version, offsets, lengths = self.content[8], *self.numbers("<BB", 13)
        if version > 1:
            raise DamagedHdf5(f"its superblock has version {version}; Keras writes version 0")
        if (offsets, lengths) != (8, 8):
            raise DamagedHdf5(f"addresses of 8 bytes are required, got {offsets} and {lengths}")
        base = 24 + 4 * version
        start, _, _, _, _, header = self.numbers("<6Q", base)
        if start != 0:
            raise DamagedHdf5("it does not begin at the first byte")
        return header

    def messages(self, header: int) -> list[_Message]:
        """The messages of an object."""
        version, _, count, _, size = self.numbers("<BBHII", header)
        if version != 1:
            raise DamagedHdf5("an object header of version 1 is required")
        found: list[_Message] = []
        blocks = [(header + 16, size)]
        while blocks:
            place, size = blocks.pop(0)
            block = self.part(place, size)
            while len(block) >= 8 and len(found) < count:
                kind, length, flags = struct.unpack("<HHB", block[:5])
                self.step()
                if length > len(block) - 8:
                    raise DamagedHdf5("a message is longer than its object header")
                data, block = block[8 : 8 + length], block[8 + length :]
                if flags & 2:
                    raise DamagedHdf5("it has shared messages, which Keras does not write")
                found.append(_Message(kind, data))
                if kind == _CONTINUATION:
                    start, length = _unpacked("<QQ", data)
                    blocks.append((start, length))
        if len(found) != count:
            raise DamagedHdf5("an object header lacks messages")
        return found

    # --- groups -------------------------------------------------------------------------------------------------------------

    def members(self, symbols: memoryview) -> Iterator[_GroupMember]:
        """The members of a group: its B-tree is walked from left to right."""
        tree, heap = _unpacked("<QQ", symbols)
        names = self._heap(heap)
        todo = [tree]
        while todo:
            node = todo.pop()
            self.step()
            if bytes(self.part(node, 4)) == b"TREE":
                kind, _, used = self.numbers("<BBH", node + 4)
                if kind != 0:
                    raise DamagedHdf5("a B-tree is not of a group")
                todo += [self.numbers("<Q", node + 32 + 16 * n)[0] for n in reversed(range(used))]
            else:
                yield from self._symbols(node, names)

    def _symbols(self, node: int, names: memoryview) -> Iterator[_GroupMember]:
        if bytes(self.part(node, 4)) != b"SNOD":
            raise DamagedHdf5("a symbol table is not where its group says")
        for number in range(self.numbers("<H", node + 6)[0]):
            place, header, link = self.numbers("<QQI", node + 8 + 40 * number)
            if link == 2:
                raise DamagedHdf5("it has symbolic links, which Keras does not write")
            name = bytes(names[place : place + 1001]).partition(b"\0")[0] if place < len(names) else b""
            if not name or len(name) > 1000 or b"/" in name:
                raise DamagedHdf5("a name is missing, or has more than 1000 bytes")
            yield _GroupMember(name.decode("utf-8", "replace"), header)

    def _heap(self, place: int) -> memoryview:
        if bytes(self.part(place, 4)) != b"HEAP":
            raise DamagedHdf5("the names of a group are not where it says")
        size, _, start = self.numbers("<QQQ", place + 8)
        return self.part(start, size)

    # --- datasets -----------------------------------------------------------------------------------------------------------

    def array(self, path: str, kinds: dict[int, memoryview]) -> np.ndarray:
        if not {_DATASPACE, _DATATYPE} <= kinds.keys():
            raise DamagedHdf5(f"{path[:100]!r} has no shape or no type")
        if _FILTERS in kinds:
            raise DamagedHdf5(f"{path[:100]!r} is compressed, which Keras does not do")
        shape, dtype = _shape(kinds[_DATASPACE]), _dtype(kinds[_DATATYPE])
        size = math.prod(shape) * dtype.itemsize
        values = self._values(path, kinds[_LAYOUT], size)
        if len(values) != size:
            raise DamagedHdf5(f"{path[:100]!r} has {len(values)} bytes, and its shape {shape} needs {size}")
        if not size:
            return np.empty(shape, dtype)
        found = np.frombuffer(values, dtype).reshape(shape)
        usable = found.flags.aligned and dtype.isnative  # NumPy computes with others too, but devices do not
        return found if usable else found.astype(dtype.newbyteorder("="))

    def _values(self, path: str, layout: memoryview, size: int) -> memoryview:
        version, kind = _unpacked("<BB", layout)
        if version not in (3, 4) or kind not in (0, 1):
            raise DamagedHdf5(f"{path[:100]!r} is stored in parts, which Keras does not do")
        if kind == 0:
            (length,) = _unpacked("<H", layout[2:])
            return layout[4 : 4 + length]
        place, length = _unpacked("<QQ", layout[2:])
        if place == UNDEFINED and size == 0:
            return memoryview(b"")
        return self.part(place, length)

    # --- attributes ---------------------------------------------------------------------------------------------------------

    def texts(self, messages: list[_Message]) -> Iterator[tuple[str, list[str]]]:
        """The attributes that are texts. Others are skipped: weights can be read without them."""
        for message in messages:
            if message.kind == _ATTRIBUTE:
                name, datatype, dataspace, data = _attribute(message.data)
                found = self._texts(datatype, data, math.prod(_shape(dataspace)))
                if found is not None:
                    yield name, found

    def _texts(self, datatype: memoryview, data: memoryview, count: int) -> list[str] | None:
        """Texts of a fixed length stand in the attribute, those of any length in a heap."""
        first, flags, _, _, size = _unpacked("<BBBBI", datatype)
        if first & 15 != _STRING and (first & 15 != _VARIABLE or flags & 15 != 1):
            return None
        if size == 0 or count * size > len(data):
            raise DamagedHdf5("an attribute is too short")
        parts = [data[n * size : (n + 1) * size] for n in range(count)]
        if first & 15 == _VARIABLE:
            parts = [self._heap_object(*_unpacked("<IQI", part)) for part in parts]
        return [str(part, "utf-8", "replace").rstrip("\0 ") for part in parts]

    def _heap_object(self, length: int, heap: int, number: int) -> memoryview:
        """An object in a global heap, which holds texts of any length."""
        if bytes(self.part(heap, 4)) != b"GCOL" or length > MAX_TEXT:
            raise DamagedHdf5("a text is not where its attribute says")
        block = self.part(heap, self.numbers("<Q", heap + 8)[0])[16:]
        while len(block) >= 16:
            self.step()
            found, _, _, size = _unpacked("<HHIQ", block)
            if found == number and length <= size <= len(block) - 16:
                return block[16 : 16 + length]
            if found == 0 or size > len(block):
                break
            block = block[16 + (size + 7) // 8 * 8 :]
        raise DamagedHdf5("a text is not where its attribute says")


def _unpacked(layout: str, data: memoryview) -> tuple[int, ...]:
    size = struct.calcsize(layout)
    if size > len(data):
        raise DamagedHdf5("a message is too short")
    return struct.unpack(layout, data[:size])


def _shape(data: memoryview) -> tuple[int, ...]:
    version, rank = _unpacked("<BB", data)
    if version not in (1, 2) or rank > MAX_RANK:
        raise DamagedHdf5(f"a shape of at most {MAX_RANK} axes is required")
    return _unpacked(f"<{rank}Q", data[8 if version == 1 else 4 :])


def _dtype(data: memoryview) -> np.dtype:
    first, flags, _, _, size = _unpacked("<BBBBI", data)
    order = ">" if flags & 1 else "<"
    if first & 15 == _INTEGER and size in (1, 2, 4, 8) and _unpacked("<HH", data[8:]) == (0, 8 * size):
        return np.dtype(f"{order}{'i' if flags & 8 else 'u'}{size}")
    if first & 15 == _FLOAT and size in _FLOATS:
        offset, bits, _, exponent, _, mantissa, bias = _unpacked("<HHBBBBI", data[8:])
        if (offset, bits) == (0, 8 * size) and (exponent, mantissa, bias) == _FLOATS[size]:
            return np.dtype(f"{order}f{size}")
    raise DamagedHdf5("arrays of integers and of floats are required")


def _attribute(data: memoryview) -> tuple[str, memoryview, memoryview, memoryview]:
    """Name, type, shape and value; in version 1 each part is padded to a multiple of eight bytes."""
    version, _, *sizes = _unpacked("<BBHHH", data)
    if version not in (1, 2, 3):
        raise DamagedHdf5("an attribute of version 1 to 3 is required")
    rest, parts = data[9 if version == 3 else 8 :], []
    for size in sizes:
        if size > len(rest):
            raise DamagedHdf5("an attribute is too short")
        parts.append(rest[:size])
        rest = rest[(size + 7) // 8 * 8 if version == 1 else size :]
    name, datatype, dataspace = parts
    return str(name, "utf-8", "replace").rstrip("\0"), datatype, dataspace, rest
