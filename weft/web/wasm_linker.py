"""Makes a WebAssembly module of one relocatable object, so that a page needs no linker but weft.

The module imports nothing. Its memory begins with the stack, which grows towards address 0, so that an overflow traps; then the
constants; from the exported `__heap_base` on the caller places inputs, outputs and weights.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..errors import InternalError, UserError
from .wasm_object import (
    RelocationKind,
    Segment,
    SymbolKind,
    WasmObject,
    WasmRelocation,
    WasmSection,
    WasmSymbol,
    read_object,
)

STACK = 1 << 16  # bytes
_PAGE = 1 << 16
_ALIGNMENT = 64  # of the stack and of the heap
_MOST_PAGES = 1 << 16  # 4 GiB
_I32, _FUNCREF, _I32_CONST, _END = 0x7F, 0x70, 0x41, 0x0B
_EXPORT_FUNCTION, _EXPORT_MEMORY, _EXPORT_GLOBAL = 0, 2, 3


def link(data: bytes, exports: Sequence[str], stack: int = STACK) -> bytes:
    """A module with these functions of an object, its `memory` and `__heap_base`."""
    found = read_object(data)
    if found.imported_functions:
        missing = ", ".join(found.imported_functions)
        raise UserError(
            "export",
            f"code that needs no functions from outside is required, got {missing}. Use another target (to=c).",
        )
    addresses, heap = _place(found.segments, stack)
    linker = _Linker(found, addresses)
    code = linker.relocated(found.code, found.code_relocations)
    placed = zip(addresses, map(linker.relocated_segment, found.segments), strict=True)
    segments = [(address, part) for address, part in placed if any(part)]  # memory is zero at the start
    pages = -(-heap // _PAGE)
    if pages > _MOST_PAGES:
        raise UserError("export", f"4 GiB of memory can be addressed, and the constants end at {heap:,} bytes.")
    table = len(linker.table) + 1  # place 0 is the null function
    sections = [
        (WasmSection.TYPE, _vector(found.types)),
        (WasmSection.FUNCTION, _vector([_unsigned(index) for index in found.functions])),
        (WasmSection.TABLE, _vector([bytes([_FUNCREF, 1]) + _unsigned(table) * 2])),
        (WasmSection.MEMORY, _vector([b"\0" + _unsigned(pages)])),
        (WasmSection.GLOBAL, _vector([_global(stack, True), _global(heap, False)])),
        (WasmSection.EXPORT, _vector([*_own_exports(), *(_export(n, _EXPORT_FUNCTION, linker.function(n)) for n in exports)])),
        (WasmSection.ELEMENT, _vector([b"\0" + _constant(1) + _vector([_unsigned(f) for f in linker.table])] if linker.table else [])),
        (WasmSection.DATA_COUNT, _unsigned(len(segments))),
        (WasmSection.CODE, code),
        (WasmSection.DATA, _vector([b"\0" + _constant(address) + _unsigned(len(part)) + part for address, part in segments])),
    ]  # fmt: skip
    return b"\0asm\1\0\0\0" + b"".join(bytes([kind]) + _unsigned(len(body)) + body for kind, body in sections)


def _place(segments: Sequence[Segment], stack: int) -> tuple[list[int], int]:
    """The address of each segment, and the first free one."""
    addresses, at = [], stack
    for segment in segments:
        at += -at % segment.alignment
        addresses.append(at)
        at += len(segment.data)
    return addresses, at + -at % _ALIGNMENT


class _Linker:
    """Resolves the symbols of an object to numbers of the module."""

    def __init__(self, found: WasmObject, addresses: Sequence[int]) -> None:
        self.found, self.addresses = found, addresses
        self.table: list[int] = []  # functions whose address is taken

    def function(self, name: str) -> int:
        for symbol in self.found.symbols:
            if symbol.kind == SymbolKind.FUNCTION and symbol.name == name and symbol.is_defined:
                return symbol.index
        raise InternalError("wasm", f"the object has no function {name!r}.")

    def relocated(self, section: bytes, relocations: Sequence[WasmRelocation], start: int = 0) -> bytes:
        """A part of a section, which begins at `start`, with the numbers of the module."""
        result = bytearray(section)
        for relocation in relocations:
            encoded, at = self._encoded(relocation), relocation.offset - start
            result[at : at + len(encoded)] = encoded
        return bytes(result)

    def relocated_segment(self, segment: Segment) -> bytes:
        end = segment.start + len(segment.data)
        own = [r for r in self.found.data_relocations if segment.start <= r.offset < end]
        return self.relocated(segment.data, own, segment.start)

    def _encoded(self, relocation: WasmRelocation) -> bytes:
        """The number of a relocation; nothing where the object's own number is that of the module."""
        kind, symbol = relocation.kind, relocation.index
        if kind.is_address:
            value = self._address(self.found.symbols[symbol]) + relocation.addend
        elif kind in (RelocationKind.TABLE_INDEX_SLEB, RelocationKind.TABLE_INDEX_I32):
            value = self._place_in_table(self.found.symbols[symbol])
        else:
            return b""
        if kind.name.endswith("I32"):
            return struct.pack("<I", value & 0xFFFFFFFF)
        return _padded(value, kind.name.endswith("SLEB"))

    def _place_in_table(self, symbol: WasmSymbol) -> int:
        if symbol.index not in self.table:
            self.table.append(symbol.index)
        return self.table.index(symbol.index) + 1

    def _address(self, symbol: WasmSymbol) -> int:
        if symbol.kind != SymbolKind.DATA or not symbol.is_defined:
            raise InternalError("wasm", f"data that is missing: {symbol.name}.")
        return self.addresses[symbol.index] + symbol.offset


# --- encodings --------------------------------------------------------------------------------------------------------------


def _unsigned(value: int) -> bytes:
    """LEB128."""
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _padded(value: int, is_signed: bool) -> bytes:
    """LEB128 in the five bytes that a relocation reserves."""
    if is_signed:  # i32.const reads addresses as signed numbers
        value = (value + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
    parts = [value >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)]
    last = value >> 28
    return bytes([*parts, last & (0x7F if is_signed else 0x0F)])


def _constant(value: int) -> bytes:
    return bytes([_I32_CONST]) + _padded(value, True) + bytes([_END])


def _vector(items: Sequence[bytes]) -> bytes:
    return _unsigned(len(items)) + b"".join(items)


def _global(value: int, is_mutable: bool) -> bytes:
    return bytes([_I32, is_mutable]) + _constant(value)


def _own_exports() -> list[bytes]:
    return [_export("memory", _EXPORT_MEMORY, 0), _export("__heap_base", _EXPORT_GLOBAL, 1)]


def _export(name: str, kind: int, index: int) -> bytes:
    return _vector([bytes([c]) for c in name.encode()]) + bytes([kind]) + _unsigned(index)
