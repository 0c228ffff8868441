"""The constants of a compiled library: one block of bytes, inside its object file or in a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..compiler.ir.storage import ALIGN
from ..errors import InternalError

DATA = "weights"  # the symbol of the block; it is local to the object file
_MARK = bytes(range(1, 251)) + b"weft"  # found in no other place of an object file


@dataclass(frozen=True)
class PackedWeights:
    """What was prepared, then inputs that are read as they are, then the first values of state; each aligned."""

    prepared: np.ndarray
    inputs: Mapping[int, np.ndarray]  # by position
    state: Mapping[int, np.ndarray]

    @property
    def offsets(self) -> dict[int, int]:
        """Where each input begins."""
        return _offsets(self.inputs, _whole(self.prepared.nbytes))

    @property
    def state_offsets(self) -> dict[int, int]:
        """Where each part of the state begins, in the memory of the state."""
        return _offsets(self.state, 0)

    @property
    def state_begin(self) -> int:
        """Where the first values of the state are."""
        return _whole(self.prepared.nbytes) + _total(self.inputs)

    @property
    def state_size(self) -> int:
        return _total(self.state)

    @property
    def size(self) -> int:
        return self.state_begin + self.state_size

    def packed(self) -> bytes:
        parts = [self.prepared, *self.inputs.values(), *self.state.values()]
        return b"".join(part.tobytes().ljust(_whole(part.nbytes), b"\0") for part in parts)


def _offsets(arrays: Mapping[int, np.ndarray], end: int) -> dict[int, int]:
    found = {}
    for position, array in arrays.items():
        found[position], end = end, end + _whole(array.nbytes)
    return found


def _total(arrays: Mapping[int, np.ndarray]) -> int:
    return sum(_whole(array.nbytes) for array in arrays.values())


def _whole(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def data_module(size: int) -> str:
    """A module with room for so many bytes, which `filled` finds by its first ones.

    As text, millions of weights would take minutes to write and parse. `externally_initialized`: what LLVM sees of the content is not
    what it will be, so nothing may be concluded from it.
    """
    mark = _MARK[:size]
    text = "".join(f"\\{byte:02x}" for byte in mark)
    type = f"<{{ [{len(mark)} x i8], [{size - len(mark)} x i8] }}>"
    value = f'<{{ [{len(mark)} x i8] c"{text}", [{size - len(mark)} x i8] zeroinitializer }}>'
    return f"@{DATA} = externally_initialized constant {type} {value}, align {ALIGN}\n"


def filled(code: bytes, content: bytes) -> bytes:
    """The object file with these bytes in the room that `data_module` made."""
    mark = _MARK[: len(content)]
    begin = code.find(mark)
    if begin < 0 or code.find(mark, begin + 1) >= 0:
        raise InternalError("export_c", "the place of the weights is not found in the object file.")
    return code[:begin] + content + code[begin + len(content) :]
