"""The lines of pixels that a slab of a filter gradient overlaps.

The pixels of a slab are parts of some lines of g, and of the corresponding lines of x. The facts of such a part are the position of its
first pixel in x, the index of that pixel in the slab, and the number of pixels.
"""

from __future__ import annotations

from types import SimpleNamespace

from llvmlite import ir

from ..ir_builder import I8, I64, Code, Value
from ..library import library
from .function_builder import Signature, split

FACTS = 3  # of the part of a line, as i64s
LINE_WORDS = (
    "batch", "groups", "inputs",  # channels of one group of x
    "chunk", "chunks", "slab",  # pixels of a chunk, and of a slab, which is a part of it
    "slab_lines",  # the most lines that a slab has a part of
    *(f"{i}_{word}" for i in "zyx" for word in ("pixels", "step", "size")),
)  # fmt: skip
LINES = Signature(("work",), ("tid", "threads", "table", *LINE_WORDS))


def lines_of(code: Code, a: SimpleNamespace, begin: Value, pixels: Value) -> tuple[Value, Value]:
    """The first line of which the pixels from `begin` on are a part, and the one after the last."""
    end = code.sdiv(code.plus(begin, pixels, -1), a.x_pixels)
    return code.sdiv(begin, a.x_pixels), code.plus(end, 1)


def part_of(
    code: Code, a: SimpleNamespace, group: Value, begin: Value, pixels: Value, line: Value
) -> tuple[Value, Value, Value]:
    """The facts of the part that the pixels from `begin` on have of a line."""
    channels, start = code.mul(a.groups, a.inputs), code.mul(line, a.x_pixels)
    x0 = code.maximum(0, code.sub(begin, start))
    x1 = code.minimum(a.x_pixels, code.sub(code.plus(begin, pixels), start))
    n, z, y = split(code, line, a.z_pixels, a.y_pixels)
    z = code.plus(code.mul(n, a.z_size), code.mul(z, a.z_step))
    y = code.plus(code.mul(z, a.y_size), code.mul(y, a.y_step))
    x = code.plus(code.mul(y, a.x_size), code.mul(x0, a.x_step))
    source = code.plus(code.mul(x, channels), code.mul(group, a.inputs))
    return source, code.sub(code.plus(start, x0), begin), code.sub(x1, x0)


def write_down(code: Code, a: SimpleNamespace, group: Value, begin: Value, pixels: Value, place: Value) -> None:
    """The facts of all lines of a slab, one after the other."""
    first, end = lines_of(code, a, begin, pixels)
    with code.loop(first, end) as line:
        for i, fact in enumerate(part_of(code, a, group, begin, pixels, line)):
            code.write(fact, place, code.plus(code.times(code.sub(line, first), FACTS), i))


def place_in_table(code: Code, a: SimpleNamespace, begin: Value) -> Value:
    """Where the table of all slabs has the one that begins with this pixel."""
    chunk = code.sdiv(begin, a.chunk)
    slab = code.sdiv(code.sub(begin, code.mul(chunk, a.chunk)), a.slab)
    number = code.plus(code.mul(chunk, slabs_of_chunk(code, a)), slab)
    return code.at(code.at(a.work, a.table, I8), code.times(code.mul(number, a.slab_lines), FACTS), I64)


def slabs_of_chunk(code: Code, a: SimpleNamespace) -> Value:
    return code.sdiv(code.plus(a.chunk, a.slab, -1), a.slab)


@library("conv_lines")
def _make(symbol: str) -> ir.Module:
    """conv_lines: the lines of all slabs, for a convolution without groups."""
    code, a = LINES.begin(symbol)
    total = code.mul(code.mul(a.batch, a.z_pixels), code.mul(a.y_pixels, a.x_pixels))
    slabs = slabs_of_chunk(code, a)
    first, last = code.share(code.mul(a.chunks, slabs), a.tid, a.threads)
    with code.loop(first, last) as number:
        chunk, slab = split(code, number, slabs)
        begin = code.plus(code.mul(chunk, a.chunk), code.mul(slab, a.slab))
        end = code.minimum(total, code.mul(code.plus(chunk, 1), a.chunk))
        # The last chunk may be a short one: it has fewer slabs, but one at least.
        pixels = code.maximum(0, code.minimum(a.slab, code.sub(end, begin)))
        write_down(code, a, code.i64(0), begin, pixels, place_in_table(code, a, begin))
    code.done()
    return code.module
