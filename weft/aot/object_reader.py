"""Reads object files (ELF, WebAssembly): the symbols that they define and need, and the bytes of code.

A library may need the C library's simplest functions only; this is how that is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..errors import UserError
from ..records import dataclass

_CODE_FLAGS = 0x2 | 0x4  # allocated and executable
_SYMBOLS = 2  # the type of the section
_WASM_IMPORT, _WASM_CODE = 2, 10


# What a library may need: simple functions of the C library, its mathematics, and what compilers for a CPU bring with them.
_MEMORY = {"memcpy", "memmove", "memset"}
_MATHS = {
    name + kind for name in ("ceil", "cos", "floor", "rint", "roundeven", "sin", "tan", "trunc") for kind in ("", "f")
}
_ARM = "ldivmod uldivmod lmul l2d l2f ul2d ul2f d2lz d2ulz f2lz f2ulz memcpy memset memmove"  # 64-bit integers on a 32-bit CPU
_OF_COMPILER = {"arm": {f"__aeabi_{name}" for name in _ARM.split()}}


@dataclass(frozen=True)
class ObjectSummary:
    """What a linker sees of an object file."""

    defined: tuple[str, ...]  # visible symbols
    undefined: tuple[str, ...]
    code: int  # bytes


def read_object(content: bytes) -> ObjectSummary:
    """Read an object file."""
    if content[:4] == b"\x7fELF":
        return _read_elf(content)
    if content[:4] == b"\0asm":
        return _read_wasm(content)
    raise UserError(
        "export_c", "object files are ELF (Linux) or WebAssembly; this platform's are neither. Name another target."
    )


def check_symbols(summary: ObjectSummary, arch: str, more: frozenset[str]) -> None:
    """Refuse code that needs more of its surroundings than it may: `more` beside what every library may need."""
    allowed = _MEMORY | _MATHS | _OF_COMPILER.get(arch, set()) | more
    missing = sorted(set(summary.undefined) - allowed)
    if missing:
        raise UserError(
            "export_c",
            f"this program needs functions that C programs for {arch} do not have ({', '.join(missing)}). Use float32 throughout, or "
            "another target.",
        )


def _read_elf(content: bytes) -> ObjectSummary:
    wide = content[4] == 2
    begin = struct.unpack_from("<Q" if wide else "<I", content, 40 if wide else 32)[0]
    size, count = struct.unpack_from("<HH", content, 58 if wide else 46)
    header = "<IIQQQQIIQQ" if wide else "<IIIIIIIIII"  # name type flags address offset size link info align entry
    sections = [struct.unpack_from(header, content, begin + i * size) for i in range(count)]
    code = sum(s[5] for s in sections if s[2] & _CODE_FLAGS == _CODE_FLAGS)
    symbols = [
        symbol for s in sections if s[1] == _SYMBOLS for symbol in _elf_symbols(content, s, sections[s[6]][4], wide)
    ]
    visible = [(name, section) for name, info, section in symbols if info >> 4 != 0]
    return ObjectSummary(
        tuple(name for name, section in visible if section),
        tuple(name for name, section in visible if not section),
        code,
    )


def _elf_symbols(content: bytes, section: tuple[int, ...], names: int, wide: bool) -> Iterator[tuple[str, int, int]]:
    """The name, binding and section of every symbol."""
    offset, size, entry = section[4], section[5], section[9]
    for place in range(offset + entry, offset + size, entry):
        if wide:
            name, info, _, index = struct.unpack_from("<IBBH", content, place)
        else:
            name, _, _, info, _, index = struct.unpack_from("<IIIBBH", content, place)
        end = content.index(b"\0", names + name)
        yield content[names + name : end].decode(), info, index


class _WasmReader:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 8

    def number(self) -> int:
        """An unsigned LEB128."""
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self) -> str:
        size = self.number()
        self.at += size
        return self.content[self.at - size : self.at].decode()

    def sections(self) -> Iterator[tuple[int, int]]:
        """The number and the size of each section; the reader stands at its beginning."""
        self.at = 8
        while self.at < len(self.content):
            kind = self.number()
            size = self.number()
            after = self.at + size
            yield kind, size
            self.at = after


def _read_wasm(content: bytes) -> ObjectSummary:
    reader = _WasmReader(content)
    code, undefined, defined = 0, [], []
    for kind, size in reader.sections():
        if kind == _WASM_CODE:
            code = size
        elif kind == _WASM_IMPORT:
            undefined = _wasm_functions(reader)
        elif kind == 0 and reader.text() == "linking":
            defined = _wasm_symbols(reader)
    return ObjectSummary(tuple(defined), tuple(undefined), code)


def _wasm_functions(reader: _WasmReader) -> list[str]:
    """The functions that are imported; memory, table and stack pointer are imported by every object file."""
    found = []
    for _ in range(reader.number()):
        reader.text()
        name, kind = reader.text(), reader.number()
        if kind == 0:  # function
            found.append(name)
            reader.number()
        elif kind == 3:  # global: type, whether it can change
            reader.at += 2
        else:  # table: type and limits; memory: limits
            reader.at += kind == 1
            limited = reader.number()
            reader.number()
            if limited & 1:
                reader.number()
    return found


def _wasm_symbols(reader: _WasmReader) -> list[str]:
    """The visible functions that the symbol table defines."""
    reader.number()  # version
    while (kind := reader.number()) != 8:  # the symbol table
        size = reader.number()
        reader.at += size
    reader.number()
    found = []
    for _ in range(reader.number()):
        kind, flags = reader.number(), reader.number()
        is_local, is_undefined, is_named = flags & 0x2, flags & 0x10, flags & 0x40
        if kind == 1:  # data
            reader.text()
            if not is_undefined:
                reader.number(), reader.number(), reader.number()
        elif kind == 3:  # section
            reader.number()
        else:
            reader.number()
            if not is_undefined or is_named:
                name = reader.text()
                if kind == 0 and not is_local and not is_undefined:
                    found.append(name)
    return found
