"""The constants of a compiled library: one block of bytes, inside its object file or in a file beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import accumulate

import numpy as np

from ..compiler.ir.storage import ALIGN, KEPT, Slot
from ..errors import InternalError
from ..records import dataclass

DATA = "weights"  # the symbol of the block; it is local to the object file
_MARK = bytes(range(1, 251)) + b"weft"  # found in no other place of an object file


@dataclass(frozen=True)
class PackedWeights:
    """Prepared values, then inputs that are read as they are, then the first values of state; each aligned.

    Of the memory with prepared values only the ranges that runs read are stored: intermediate results, such as a filter with a batch
    norm folded into it before it is packed, are not.
    """

    memory: np.ndarray
    ranges: Mapping[int, int]  # from the first byte to the end of each, aligned
    inputs: Mapping[int, np.ndarray]  # by position
    state: Mapping[int, np.ndarray]

    @cached_property
    def _places(self) -> dict[int, int]:
        """Where each range begins."""
        sizes = [end - begin for begin, end in self.ranges.items()]
        return dict(zip(self.ranges, accumulate(sizes, initial=0), strict=False))

    def place_of(self, slot: Slot) -> int:
        """The offset of a slot; that of a prepared value is a new one."""
        if slot.base != KEPT:
            return slot.offset
        begin = max(begin for begin in self._places if begin <= slot.offset)
        return self._places[begin] + slot.offset - begin

    @property
    def prepared_size(self) -> int:
        return sum(end - begin for begin, end in self.ranges.items())

    @property
    def offsets(self) -> dict[int, int]:
        """Where each input begins."""
        return _offsets(self.inputs, self.prepared_size)

    @property
    def state_offsets(self) -> dict[int, int]:
        """Where each part of the state begins, in the memory of the state."""
        return _offsets(self.state, 0)

    @property
    def state_begin(self) -> int:
        """Where the first values of the state are."""
        return self.prepared_size + _total(self.inputs)

    @property
    def state_size(self) -> int:
        return _total(self.state)

    @property
    def size(self) -> int:
        return self.state_begin + self.state_size

    def packed(self) -> bytes:
        prepared = [self.memory[begin:end] for begin, end in self.ranges.items()]
        parts = [*prepared, *self.inputs.values(), *self.state.values()]
        return b"".join(part.tobytes().ljust(_whole(part.nbytes), b"\0") for part in parts)


def kept_ranges(slots: Collection[Slot]) -> dict[int, int]:
    """The memory of slots as disjoint ranges that begin and end at aligned places."""
    ranges: dict[int, int] = {}
    last = -1
    for slot in sorted(slots, key=lambda slot: slot.offset):
        begin, end = slot.offset // ALIGN * ALIGN, _whole(slot.offset + slot.nbytes)
        if last >= 0 and begin < ranges[last]:
            ranges[last] = max(ranges[last], end)
        else:
            last, ranges[begin] = begin, end
    return ranges


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
