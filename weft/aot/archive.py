"""Writes static libraries: archives in the format of `ar`, with the index of symbols that linkers require."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_MAGIC = b"!<arch>\n"


def static_library(member: str, content: bytes, symbols: Sequence[str]) -> bytes:
    """An archive of one object file. `symbols`: those that it defines. Equal content gives equal bytes: there is no date in it."""
    names = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    index_size = 4 + 4 * len(symbols) + len(names)
    first = len(_MAGIC) + len(_member("/", b"\0" * index_size))
    index = struct.pack(f">I{len(symbols)}I", len(symbols), *[first] * len(symbols)) + names
    return _MAGIC + _member("/", index) + _member(f"{member}/", content)


def _member(name: str, content: bytes) -> bytes:
    """A file with its header: name, date, owner, group, mode, size. It begins at an even place."""
    if len(name) > 16:
        name = "net.o/"
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)
