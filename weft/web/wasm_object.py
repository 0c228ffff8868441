"""Reads a relocatable WebAssembly object, as LLVM writes it: sections, symbols and relocations.

The format is described in the tool conventions of WebAssembly (Linking.md). Only what LLVM emits for plain code is read: functions,
constant data, one table of functions, the stack pointer. Anything else is rejected, so no program is linked wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import IntEnum
from typing import TypeVar

from ..errors import InternalError
from ..records import dataclass

Value = TypeVar("Value")

_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40  # flags of symbols
_SEGMENT_INFO, _INIT_FUNCTIONS, _SYMBOL_TABLE = 5, 6, 8
_I32_CONST, _END = 0x41, 0x0B


class WasmSection(IntEnum):
    """Numbers of the sections of a module."""

    CUSTOM = 0
    TYPE = 1
    IMPORT = 2
    FUNCTION = 3
    TABLE = 4
    MEMORY = 5
    GLOBAL = 6
    EXPORT = 7
    ELEMENT = 9
    CODE = 10
    DATA = 11
    DATA_COUNT = 12


class SymbolKind(IntEnum):
    """What a symbol names."""

    FUNCTION = 0
    DATA = 1
    GLOBAL = 2
    SECTION = 3
    TABLE = 5


class RelocationKind(IntEnum):
    """What a number stands for, and how it is written: LEB128 of five bytes, signed or not, or a word."""

    FUNCTION_INDEX_LEB = 0
    TABLE_INDEX_SLEB = 1
    TABLE_INDEX_I32 = 2
    MEMORY_ADDRESS_LEB = 3
    MEMORY_ADDRESS_SLEB = 4
    MEMORY_ADDRESS_I32 = 5
    TYPE_INDEX_LEB = 6
    GLOBAL_INDEX_LEB = 7
    TABLE_NUMBER_LEB = 20

    @property
    def is_address(self) -> bool:
        return self.name.startswith("MEMORY")


@dataclass(frozen=True)
class WasmSymbol:
    """A name of an object: a function, a place in its data, the stack pointer or the table."""

    kind: SymbolKind
    name: str
    is_defined: bool
    index: int = -1  # of the function, or of the data segment
    offset: int = 0  # in the data segment


@dataclass(frozen=True)
class WasmRelocation:
    """A number in a section that is known after linking."""

    kind: RelocationKind
    offset: int  # in the section
    index: int  # of a symbol, or of a type
    addend: int = 0


@dataclass
class Segment:
    """A piece of constant data, or zeros."""

    data: bytes
    start: int  # in the data section
    name: str = ""
    alignment: int = 1


@dataclass
class WasmObject:
    """A relocatable object."""

    types: list[bytes] = field(default_factory=list)  # encoded
    imported_functions: list[str] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)  # types of the functions that are defined
    code: bytes = b""  # the section
    segments: list[Segment] = field(default_factory=list)
    symbols: list[WasmSymbol] = field(default_factory=list)
    code_relocations: list[WasmRelocation] = field(default_factory=list)
    data_relocations: list[WasmRelocation] = field(default_factory=list)


class _ObjectReader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        start = self.at
        value = self.unsigned()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def text(self) -> str:
        return self.bytes(self.unsigned()).decode()

    def many(self, read: Callable[[], Value]) -> list[Value]:
        return [read() for _ in range(self.unsigned())]


def read_object(data: bytes) -> WasmObject:
    """The parts of an object file."""
    if data[:8] != b"\0asm\1\0\0\0":
        raise InternalError("wasm", "a WebAssembly object of version 1 is required.")
    found, reader = WasmObject(), _ObjectReader(data)
    reader.at = 8
    sections: list[int] = []
    while reader.at < len(data):
        kind = reader.byte()
        sections.append(kind)
        _read_section(found, kind, _ObjectReader(reader.bytes(reader.unsigned())), sections)
    return found


def _read_section(found: WasmObject, kind: int, reader: _ObjectReader, sections: list[int]) -> None:
    if kind == WasmSection.CUSTOM:
        _read_custom(found, reader, sections)
    elif kind == WasmSection.TYPE:
        found.types = reader.many(lambda: _function_type(reader))
    elif kind == WasmSection.IMPORT:
        reader.many(lambda: _read_import(found, reader))
    elif kind == WasmSection.FUNCTION:
        found.functions = reader.many(reader.unsigned)
    elif kind == WasmSection.CODE:
        found.code = reader.data
    elif kind == WasmSection.DATA:
        found.segments = reader.many(lambda: _segment(reader))
    elif kind not in (WasmSection.ELEMENT, WasmSection.DATA_COUNT):  # made again for the module
        raise InternalError("wasm", f"section {kind} of a WebAssembly object is not known.")


def _function_type(reader: _ObjectReader) -> bytes:
    start = reader.at
    reader.byte()
    for _ in range(2):  # parameters and results
        reader.bytes(reader.unsigned())
    return reader.data[start : reader.at]


def _read_import(found: WasmObject, reader: _ObjectReader) -> None:
    reader.text()
    name = reader.text()
    kind = reader.byte()
    if kind == 0:
        found.imported_functions.append(name)
        reader.unsigned()
    elif kind in (1, 2):  # the table, the memory
        if kind == 1:
            reader.byte()
        flags = reader.unsigned()
        reader.unsigned()
        if flags & 1:
            reader.unsigned()
    elif kind == 3 and name == "__stack_pointer":
        reader.bytes(2)
    else:
        raise InternalError("wasm", f"the import {name!r} of a WebAssembly object is not known.")


def _segment(reader: _ObjectReader) -> Segment:
    if (reader.unsigned(), reader.byte()) != (0, _I32_CONST):
        raise InternalError("wasm", "a data segment of another kind is not known.")
    reader.signed()
    if reader.byte() != _END:
        raise InternalError("wasm", "the address of a data segment is not a constant.")
    size = reader.unsigned()
    start = reader.at
    return Segment(reader.bytes(size), start)


def _read_custom(found: WasmObject, reader: _ObjectReader, sections: list[int]) -> None:
    name = reader.text()
    if name == "linking":
        _read_linking(found, reader)
    elif name in ("reloc.CODE", "reloc.DATA"):
        if sections[reader.unsigned()] != (WasmSection.CODE if name == "reloc.CODE" else WasmSection.DATA):
            raise InternalError("wasm", f"{name} of a WebAssembly object is for another section.")
        relocations = reader.many(lambda: _relocation(reader))
        if name == "reloc.CODE":
            found.code_relocations = relocations
        else:
            found.data_relocations = relocations


def _relocation(reader: _ObjectReader) -> WasmRelocation:
    number = reader.byte()
    if number not in list(RelocationKind):
        raise InternalError("wasm", f"relocation {number} of a WebAssembly object is not known.")
    kind, offset, index = RelocationKind(number), reader.unsigned(), reader.unsigned()
    return WasmRelocation(kind, offset, index, reader.signed() if kind.is_address else 0)


def _read_linking(found: WasmObject, reader: _ObjectReader) -> None:
    if reader.unsigned() != 2:
        raise InternalError("wasm", "version 2 of the linking section is required.")
    while reader.at < len(reader.data):
        kind = reader.byte()
        part = _ObjectReader(reader.bytes(reader.unsigned()))
        if kind == _SYMBOL_TABLE:
            found.symbols = [_symbol(found, part) for _ in range(part.unsigned())]
        elif kind == _SEGMENT_INFO:
            for number in range(part.unsigned()):
                segment = found.segments[number]
                segment.name, segment.alignment = part.text(), 1 << part.unsigned()
                part.unsigned()  # flags
        elif kind == _INIT_FUNCTIONS:
            raise InternalError("wasm", "functions that run at the start are not supported.")


def _symbol(found: WasmObject, reader: _ObjectReader) -> WasmSymbol:
    kind, flags = SymbolKind(reader.byte()), reader.unsigned()
    is_defined = not flags & _UNDEFINED
    if kind == SymbolKind.DATA:
        name = reader.text()
        if not is_defined:
            return WasmSymbol(kind, name, False)
        index, offset, _ = (reader.unsigned() for _ in range(3))  # and its size
        return WasmSymbol(kind, name, True, index, offset)
    index = reader.unsigned()
    if kind != SymbolKind.SECTION and (is_defined or flags & _EXPLICIT_NAME):
        return WasmSymbol(kind, reader.text(), is_defined, index)
    return WasmSymbol(kind, found.imported_functions[index] if kind == SymbolKind.FUNCTION else "", is_defined, index)
