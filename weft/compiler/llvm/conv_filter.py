"""The filter gradient: for each tap, input channel and output channel a sum over all pixels.

It is a product of two matrices with very long sums: dw[row, o] = sum over pixels p of x[place(p) + offset(row)] * g[p, o],
a row being a tap and an input channel. x is padded first if the kernel reaches over its edges, so that offset(row) does not
depend on the pixel. A unit of work is some blocks of rows and one chunk of the pixels. It goes over its pixels in slabs, for
which g is packed in panels of a few output channels that stay in the second cache; for each block of rows it packs x in one panel
that stays in the first, and adds the products of the panels to its sums.

Chunks are cut by the shape alone, and their sums are added in order, so results do not depend on the number of threads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

from llvmlite import ir

from .build import F32, I1, I8, I64, Code, Value, vector
from .conv_code import Signature, call_epilogue, copy, fill, split
from .library import library
from .target import Target, host
from .tile import Tile, columns, load, multiply, pieces, store

PAD = Signature(
    ("x", "work"),
    (
        "tid",
        "threads",
        "offset",
        "batch",
        "channels",
        *(f"{i}_{word}" for i in "zyx" for word in ("inside", "padded", "before")),
    ),
)
FILTER = Signature(
    ("x", "g", "w", "work", "epilogue", "context"),
    (
        "tid", "threads",
        # Bytes to where in work the chunks' sums are put. -1: there is one chunk, and its sums are the result. -2: the same, but
        # the epilogue is to see it later.
        "partial",
        "scratch", "scratch_size", "panels", "sums", "offsets",  # a thread's memory: panels of g, of x, sums, offsets
        "batch", "groups", "inputs", "outputs",  # channels of one group
        "rows",  # taps x inputs
        "unit",  # blocks of rows of a unit
        "chunk", "chunks",  # pixels of a chunk
        "slab", "few",  # pixels and blocks of rows that are packed at a time
        *(f"{i}_{word}" for i in "zyx" for word in ("kernel", "pixels", "step", "move", "size")),
    ),
)  # fmt: skip
SUM = Signature(("w", "work", "epilogue", "context"), ("tid", "threads", "partial", "rows", "columns", "chunks"))

FINISH = Signature(
    ("w", "work", "epilogue", "context"), ("tid", "threads", "partial", "taps", "inputs", "columns", "chunks")
)
_FEW_INPUTS = 32  # of a block that is finished at a time


@library("conv_pad")
def _make_pad(symbol: str) -> ir.Module:
    """conv_pad: x with zeros around it, or cut to what the kernel reaches."""
    code, a = PAD.begin(symbol)
    lines = code.mul(code.mul(a.batch, a.z_padded), a.y_padded)
    first, last = code.share(lines, a.tid, a.threads)
    length = code.mul(a.x_padded, a.channels)
    left = code.mul(code.minimum(a.x_before, a.x_padded), a.channels)
    middle = code.minimum(code.mul(a.x_inside, a.channels), code.sub(length, left))
    with code.loop(first, last) as line:
        n, z, y = split(code, line, a.z_padded, a.y_padded)
        z, y = code.sub(z, a.z_before), code.sub(y, a.y_before)
        target = code.at(code.at(a.work, a.offset, I8), code.mul(line, length), F32)
        inside = code.and_(code.icmp_unsigned("<", z, a.z_inside), code.icmp_unsigned("<", y, a.y_inside))
        with code.if_else(inside) as (then, otherwise):
            with then:
                row = code.plus(code.mul(code.plus(code.mul(n, a.z_inside), z), a.y_inside), y)
                source = code.at(a.x, code.mul(code.mul(row, a.x_inside), a.channels), F32)
                fill(code, target, left)
                copy(code, source, code.at(target, left, F32), middle)
                rest = code.plus(left, middle)
                fill(code, code.at(target, rest, F32), code.sub(length, rest))
            with otherwise:
                fill(code, target, length)
    code.done()
    return code.module


@library("conv_sum")
def _make_sum(symbol: str) -> ir.Module:
    """conv_sum: the chunks' sums added up, from the first to the last."""
    code, a = SUM.begin(symbol)
    lanes = host().lanes(32)
    first, last = code.share(a.rows, a.tid, a.threads)
    size = code.mul(a.rows, a.columns)
    begin, end = code.mul(first, a.columns), code.mul(last, a.columns)
    partial = code.at(a.work, a.partial, I8)

    def add(at: Value, kind: ir.Type) -> None:
        start = code.read(partial, at, kind)
        rest = code.carry(
            1,
            a.chunks,
            [start],
            lambda c, v: [code.fadd(v[0], code.read(partial, code.plus(code.mul(c, size), at), kind))],
        )
        code.write(rest[0], a.w, at)

    whole = code.plus(begin, code.and_(code.sub(end, begin), code.i64(-lanes)))
    with code.loop(begin, whole, lanes) as at:
        add(at, vector(F32, lanes))
    with code.loop(whole, end) as at:
        add(at, F32)
    with code.if_then(code.icmp_signed("<", first, last)):
        call_epilogue(code, a, (first, last), (0, a.columns))
    code.done()
    return code.module


@library("conv_finish")
def _make_finish(symbol: str) -> ir.Module:
    """conv_finish: the same, but all taps of a few channels after each other. With no chunks, w is complete but for the epilogue.

    Who wants the filter in its usual order has the taps of a channel side by side, and output channels far apart. An epilogue that
    got whole rows would come back to each line of that memory for every tap, after thousands of others.
    """
    code, a = FINISH.begin(symbol)
    wide = host().lanes(32)
    blocks = code.ceil_div(a.inputs, _FEW_INPUTS), code.ceil_div(a.columns, wide)
    first, last = code.share(code.mul(*blocks), a.tid, a.threads)
    with code.loop(first, last) as block:
        channel, column = split(code, block, blocks[1])
        channel, column = code.times(channel, _FEW_INPUTS), code.times(column, wide)
        rows = code.minimum(_FEW_INPUTS, code.sub(a.inputs, channel))
        end = code.minimum(code.plus(column, wide), a.columns)
        with code.loop(0, a.taps) as tap:
            row = code.plus(code.mul(tap, a.inputs), channel)
            with code.if_then(code.icmp_signed(">", a.chunks, code.i64(0))), code.loop(row, code.plus(row, rows)) as r:
                _add_chunks(code, a, code.plus(code.mul(r, a.columns), column), code.sub(end, column))
            call_epilogue(code, a, (row, code.plus(row, rows)), (column, end))
    code.done()
    return code.module


def _add_chunks(code: Code, a: SimpleNamespace, start: Value, count: Value) -> None:
    """So many neighbours, at most a vector, of the chunks' sums, from the first to the last."""
    lanes = host().lanes(32)
    size = code.mul(code.mul(a.taps, a.inputs), a.columns)
    partial = code.at(a.work, a.partial, I8)

    def total(at: Value, kind: ir.Type) -> Value:
        def add(chunk: Value, so_far: list[Value]) -> list[Value]:
            return [code.fadd(so_far[0], code.read(partial, code.plus(code.mul(chunk, size), at), kind))]

        return code.carry(1, a.chunks, [code.read(partial, at, kind)], add)[0]

    with code.if_else(code.icmp_signed("==", count, code.i64(lanes))) as (then, otherwise):
        with then:
            code.write(total(start, vector(F32, lanes)), a.w, start)
        with otherwise, code.loop(start, code.plus(start, count)) as at:
            code.write(total(at, F32), a.w, at)


@library("conv_filter")
def _make(symbol: str) -> ir.Module:
    """conv_filter.ROWSxVECTORS"""
    height, vectors = map(int, symbol.split(".")[1].split("x"))
    code, a = FILTER.begin(symbol)
    _Filter(code, a, host(), Tile(height, vectors)).write()
    code.done()
    return code.module


class _Filter:
    """Writes the function for one shape of tile."""

    def __init__(self, code: Code, a: SimpleNamespace, target: Target, tile: Tile) -> None:
        self.code, self.a, self.target, self.tile = code, a, target, tile
        self.lanes = target.lanes(32)
        self.width = tile.columns(self.lanes)
        self.size = tile.rows * self.width

    def write(self) -> None:
        code, a = self.code, self.a
        self.g_panels = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
        self.panels, self.sums, self.offsets = (code.at(self.g_panels, n, I8) for n in (a.panels, a.sums, a.offsets))
        fill(code, self.sums, code.i64(self.size))
        self.pitch = code.mul(a.groups, a.outputs)
        self.pixels = code.mul(code.mul(a.batch, a.z_pixels), code.mul(a.y_pixels, a.x_pixels))
        self.g_blocks = code.ceil_div(a.outputs, self.width)
        # Columns after the last stay zero. What other kernels left there may be subnormal numbers, with which some CPUs are 20 times slower.
        panel = code.times(a.slab, self.width)
        fill(code, code.at(self.g_panels, code.mul(code.plus(self.g_blocks, -1), panel), F32), panel)
        row_blocks = code.ceil_div(a.rows, self.tile.rows)
        strips = code.sdiv(code.plus(row_blocks, a.unit, -1), a.unit)
        first, last = code.share(code.mul(code.mul(a.groups, a.chunks), strips), a.tid, a.threads)
        with code.loop(first, last) as unit:
            group, chunk, strip = split(code, unit, a.chunks, strips)
            block = code.mul(strip, a.unit)
            count = code.minimum(a.unit, code.sub(row_blocks, block))
            self._unit(group, chunk, code.times(block, self.tile.rows), count)

    def _unit(self, group: Value, chunk: Value, row: Value, count: Value) -> None:
        """`count` blocks of rows from `row` on, over the pixels of one chunk."""
        code, a = self.code, self.a
        self._find_offsets(row, count)
        begin = code.mul(chunk, a.chunk)
        end = code.minimum(self.pixels, code.plus(begin, a.chunk))
        final = code.icmp_signed("<", a.partial, code.i64(0))
        partial = code.at(code.at(a.work, a.partial, I8), code.mul(code.mul(chunk, a.rows), self.pitch), F32)
        result = code.select(final, a.w, partial)
        # At least once: the sum of no pixels is 0.
        with code.loop(begin, code.maximum(end, code.plus(begin, 1)), a.slab) as p:
            slab = _Slab(
                group, p, code.minimum(a.slab, code.sub(end, p)),
                first=code.icmp_signed("==", p, begin), last=code.icmp_signed(">=", code.plus(p, a.slab), end), result=result,
            )  # fmt: skip
            self._pack_g(group, p, slab.pixels)
            with code.loop(0, count, a.few) as i:
                some = code.minimum(a.few, code.sub(count, i))
                with code.loop(0, some) as j:
                    self._pack_x(group, p, slab.pixels, code.plus(i, j), j)
                with code.loop(0, self.g_blocks) as block, code.loop(0, some) as j:
                    place = code.plus(code.mul(code.plus(i, j), self.g_blocks), block)
                    top = code.plus(row, code.times(code.plus(i, j), self.tile.rows))
                    self._product(slab, block, j, place, top)
        with code.if_then(code.icmp_signed("==", a.partial, code.i64(-1))):
            left = code.mul(group, a.outputs)
            last = code.minimum(code.plus(row, code.times(count, self.tile.rows)), a.rows)
            call_epilogue(code, a, (row, last), (left, code.plus(left, a.outputs)))

    def _find_offsets(self, row: Value, count: Value) -> None:
        """How far from a pixel each row of x is. Rows after the last repeat it; what comes of them is thrown away."""
        code, a = self.code, self.a
        channels = code.mul(a.groups, a.inputs)
        with code.loop(0, code.times(count, self.tile.rows)) as i:
            r = code.minimum(code.plus(row, i), code.plus(a.rows, -1))
            tz, ty, tx, c = split(code, r, a.y_kernel, a.x_kernel, a.inputs)
            line = code.plus(code.mul(code.mul(tz, a.z_move), a.y_size), code.mul(ty, a.y_move))
            pixel = code.plus(code.mul(line, a.x_size), code.mul(tx, a.x_move))
            code.write(code.plus(code.mul(pixel, channels), c), self.offsets, i)

    def _pack_g(self, group: Value, p: Value, count: Value) -> None:
        """Panels of g for `count` pixels from p on. Columns after the last are zero already."""
        code, a = self.code, self.a
        panel = code.times(a.slab, self.width)
        source = code.at(a.g, code.plus(code.mul(p, self.pitch), code.mul(group, a.outputs)), F32)
        whole = code.sdiv(a.outputs, code.i64(self.width))
        # Pixel after pixel, because g is read from far away, and a straight line is fetched ahead.
        with code.loop(0, count) as i:
            row, target = (
                code.at(source, code.mul(i, self.pitch), F32),
                code.at(self.g_panels, code.times(i, self.width), F32),
            )
            with code.loop(0, whole) as block:
                at, home = code.times(block, self.width), code.mul(block, panel)
                for v in range(0, self.width, self.lanes):
                    code.write(code.read(row, code.plus(at, v), vector(F32, self.lanes)), target, code.plus(home, v))
            done = code.times(whole, self.width)
            copy(code, code.at(row, done, F32), code.at(target, code.mul(whole, panel), F32), code.sub(a.outputs, done))

    def _pack_x(self, group: Value, p: Value, count: Value, block: Value, panel: Value) -> None:
        """A panel of x for `count` pixels from p on: line after line of the result's pixels."""
        code, a = self.code, self.a
        channels = code.mul(a.groups, a.inputs)
        step = code.mul(a.x_step, channels)
        first, last = code.sdiv(p, a.x_pixels), code.sdiv(code.plus(p, count, -1), a.x_pixels)
        at = code.times(block, self.tile.rows)
        offsets = [code.read(self.offsets, code.plus(at, i), I64) for i in range(self.tile.rows)]
        with code.loop(first, code.plus(last, 1)) as line:
            start = code.mul(line, a.x_pixels)
            x0, x1 = code.maximum(0, code.sub(p, start)), code.minimum(a.x_pixels, code.sub(code.plus(p, count), start))
            n, z, y = split(code, line, a.z_pixels, a.y_pixels)
            z = code.plus(code.mul(n, a.z_size), code.mul(z, a.z_step))
            y = code.plus(code.mul(z, a.y_size), code.mul(y, a.y_step))
            x = code.plus(code.mul(y, a.x_size), code.mul(x0, a.x_step))
            source = code.at(a.x, code.plus(code.mul(x, channels), code.mul(group, a.inputs)), F32)
            place = code.plus(code.mul(panel, a.slab), code.sub(code.plus(start, x0), p))
            target = code.at(self.panels, code.times(place, self.tile.rows), F32)
            self._pack_line(source, target, offsets, step, code.sub(x1, x0))

    def _pack_line(self, source: Value, target: Value, offsets: list[Value], step: Value, count: Value) -> None:
        code, height = self.code, self.tile.rows
        # Each must follow the one before: the ends alone may be right by chance, with jumps and repetitions between.
        following = [code.icmp_signed("==", b, code.plus(a, 1)) for a, b in pairwise(offsets)]
        together = functools.reduce(code.and_, following, ir.Constant(I1, 1))
        with code.if_else(together) as (then, otherwise):
            with then, code.loop(0, count) as p:
                here = code.plus(offsets[0], code.mul(p, step))
                for i, some in pieces(height, self.lanes):
                    value = code.read(source, code.plus(here, i), vector(F32, some))
                    code.write(value, target, code.plus(code.times(p, height), i))
            with otherwise, code.loop(0, count) as p:
                here = code.mul(p, step)
                for i in range(height):
                    value = code.read(source, code.plus(here, offsets[i]), F32)
                    code.write(value, target, code.plus(code.times(p, height), i))

    def _product(self, slab: _Slab, block: Value, panel: Value, place: Value, row: Value) -> None:
        """Add the products of a panel of x and one of g to their sums, and bring those home when they are complete."""
        code, a, tile, kind = self.code, self.a, self.tile, vector(F32, self.lanes)
        g = code.at(self.g_panels, code.times(code.mul(block, a.slab), self.width), F32)
        x = code.at(self.panels, code.times(code.mul(panel, a.slab), tile.rows), F32)
        sums = code.at(self.sums, code.times(code.plus(place, 1), self.size), F32)

        def right(k: Value, step: int) -> list[Value]:
            at = code.times(code.plus(k, step), self.width)
            return [code.read(g, code.plus(at, v * self.lanes), kind) for v in range(tile.vectors)]

        left = columns(code, self.target, tile, F32, x, tile.rows)
        # The first tile of the sums is always zero.
        initial = load(code, tile, F32, self.lanes, code.select(slab.first, self.sums, sums), self.width)
        total = multiply(code, tile, slab.pixels, left, right, initial)
        column = code.times(block, self.width)
        home = code.at(slab.result, code.plus(code.mul(row, self.pitch), code.mul(slab.group, a.outputs), column), F32)
        rows, some = (
            code.minimum(tile.rows, code.sub(a.rows, row)),
            code.minimum(self.width, code.sub(a.outputs, column)),
        )
        full = code.and_(
            code.icmp_signed("==", rows, code.i64(tile.rows)), code.icmp_signed("==", some, code.i64(self.width))
        )
        straight = code.and_(slab.last, full)
        stride = code.select(straight, self.pitch, code.i64(self.width))
        store(code, tile, total, self.lanes, code.select(straight, home, sums), stride)
        with code.if_then(code.and_(slab.last, code.not_(full))), code.loop(0, rows) as i:
            copy(code, code.at(sums, code.times(i, self.width), F32), code.at(home, code.mul(i, self.pitch), F32), some)


@dataclass(frozen=True)
class _Slab:
    """The pixels that are packed at a time."""

    group: Value
    begin: Value
    pixels: Value
    first: Value  # of its chunk?
    last: Value
    result: Value  # where the complete sums go
