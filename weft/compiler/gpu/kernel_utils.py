"""Shared by several kernel writers: lines along an axis, operands by element number, tensors in scratch."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ...dtypes import DType
from ...graph.node import Node, Shape, Type, placeholder
from ...records import dataclass
from ..ir.index import Loop
from ..ir.kernel import View, is_contiguous
from ..ir.storage import ALIGN, nbytes
from .source import KernelWriter, decomposed

COUNTABLE = 2**31 - 1  # elements: kernels count in 32 bits
BUSY = 264  # programs that keep a large GPU busy: two for each of its multiprocessors


@dataclass(frozen=True)
class Lines:
    """A tensor as lines along one axis: how many, how long, and how far apart the elements of a line are."""

    count: int
    length: int
    inner: int

    def place(self, line: str, number: str) -> str:
        """The number of an element in the whole tensor, from its line and its position in the line."""
        if self.inner == 1:
            return f"{line} * {self.length} + {number}"
        return f"{line} // {self.inner} * {self.length * self.inner} + {line} % {self.inner} + {number} * {self.inner}"


def lines_of(shape: Shape, axis: int) -> Lines:
    inner = prod(shape[axis + 1 :])
    return Lines(prod(shape[:axis]) * inner, shape[axis], inner)


def next_power_of_two(count: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, count - 1).bit_length()


def ceil_div(count: int, by: int) -> int:
    return -(-count // by)


def element(writer: KernelWriter, view: View, shape: Shape, number: str) -> str:
    """A pointer to the element with this number, in the order of the operand's shape."""
    pointer = writer.pointer(view.base)
    begin = f"{pointer} + {view.offset}" if view.offset else pointer
    if is_contiguous(view.strides, shape):
        return f"{begin} + ({number})"
    loops = tuple(Loop(n) for n in shape)
    parts = decomposed(loops, f"({number})")
    steps = [f"{parts[loop]} * {step}" for loop, step in zip(loops, view.strides, strict=True) if step]
    return " + ".join([begin, *steps, f"0 * ({number})"])


def scratch_tensor(kind: str, anchor: Node, shape: Shape, dtype: DType) -> Node:
    """A tensor in the scratch memory of an anchor's kernel, internal to its phases."""
    return placeholder((kind, anchor), Type(shape, dtype))


def scratch_offsets(tensors: Iterable[Node]) -> dict[Node, int]:
    """The offset of each tensor in the scratch memory."""
    found, offset = {}, 0
    for node in tensors:
        found[node] = offset
        offset += ceil_div(nbytes(node), ALIGN) * ALIGN
    return found


def scratch_bytes(tensors: Iterable[Node]) -> int:
    return sum(ceil_div(nbytes(node), ALIGN) * ALIGN for node in tensors)
