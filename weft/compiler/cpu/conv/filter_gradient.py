"""Filter gradients: a sum over all pixels for each tap, input channel and output channel.

This is a matrix product with a very long inner dimension: dw[row, o] = sum over pixels p of x[place(p) + offset(row)] * g[p, o],
a row being a tap and an input channel. x is padded first if the kernel reaches over its edges, so that offset(row) does not
depend on the pixel. A unit of work is some blocks of rows and one chunk of the pixels. It processes its pixels in slabs,
for which g is packed in panels of a few output channels that stay in the L2 cache; for each block of rows it packs x in one panel
that stays in L1, and accumulates the products of the panels.

Neighbours along x and their channels are contiguous in memory: they form a run of rows. Where blocks are parts of runs, or whole runs,
x need not be packed: a block has one pointer a run, which moves along the lines of pixels, and the panel of g stays in the L1 cache.
The positions of a slab's lines are computed before its products, or for all slabs at once.

The partition into chunks depends on the shape alone, and their sums are added in order, so results do not depend on the number of
threads.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from itertools import pairwise
from types import SimpleNamespace

from llvmlite import ir

from ....records import dataclass
from ..gemm.register_tile import (
    RegisterTile,
    Right,
    Sums,
    columns,
    flattened,
    in_rows,
    load,
    multiply,
    neighbours,
    opaque,
    pieces,
    store,
)
from ..ir_builder import F32, I1, I8, I64, Code, Value, vector
from ..library import library
from ..target import CpuTarget, current_target
from .function_builder import Signature, call_epilogue, copy, fill, split
from .pixel_lines import FACTS, LINE_WORDS, lines_of, part_of, place_in_table, write_down

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
        "scratch", "scratch_size",  # a thread's memory: panels of g, and from there on
        "panels", "sums", "offsets", "lines",  # those of x, sums, offsets of rows, lines of pixels
        "x_offset",  # bytes to where x begins
        "table",  # bytes to where in work the lines of all slabs are. -1: nowhere
        "outputs",  # channels of one group of g
        "rows",  # taps x inputs
        "unit",  # blocks of rows of a unit
        "few",  # blocks of rows that are packed at a time
        *LINE_WORDS,
        *(f"{i}_{word}" for i in "zyx" for word in ("kernel", "move")),
    ),
)  # fmt: skip


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


@library("conv_filter")
def _make(symbol: str) -> ir.Module:
    """conv_filter.ROWSxVECTORS, or conv_filter.ROWSxVECTORS.RUNS: x is read in place, with RUNS runs in a block of rows."""
    _, tile, *runs = symbol.split(".")
    height, vectors = map(int, tile.split("x"))
    code, a = FILTER.begin(symbol)
    (_InPlace if runs else _Packed)(code, a, current_target(), RegisterTile(height, vectors), *map(int, runs)).write()
    code.done()
    return code.module


class _Filter(ABC):
    """Emits the function for one shape of tile."""

    def __init__(self, code: Code, a: SimpleNamespace, target: CpuTarget, tile: RegisterTile, runs: int = 0) -> None:
        self.code, self.a, self.target, self.tile, self.runs = code, a, target, tile, runs
        self.lanes = target.lanes(32)
        self.width = tile.columns(self.lanes)
        self.size = tile.rows * self.width

    def write(self) -> None:
        code, a = self.code, self.a
        self.g_panels = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
        rest = (a.panels, a.sums, a.offsets, a.lines)
        self.panels, self.sums, self.offsets, self.lines = (code.at(self.g_panels, n, I8) for n in rest)
        fill(code, self.sums, code.i64(self.size))
        self.x = code.at(a.x, a.x_offset, I8)
        self.pitch = code.mul(a.groups, a.outputs)
        self.pixels = code.mul(code.mul(a.batch, a.z_pixels), code.mul(a.y_pixels, a.x_pixels))
        self.g_blocks = code.ceil_div(a.outputs, self.width)
        # Columns beyond the last stay zero: stale memory may hold subnormal numbers, with which some CPUs are 20 times slower.
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
                self._begin(slab, i, some)
                with code.loop(0, self.g_blocks) as block, code.loop(0, some) as j:
                    place = code.plus(code.mul(code.plus(i, j), self.g_blocks), block)
                    top = code.plus(row, code.times(code.plus(i, j), self.tile.rows))
                    self._product(slab, block, code.plus(i, j), j, place, top)
        with code.if_then(code.icmp_signed("==", a.partial, code.i64(-1))):
            left = code.mul(group, a.outputs)
            last = code.minimum(code.plus(row, code.times(count, self.tile.rows)), a.rows)
            call_epilogue(code, a, (row, last), (left, code.plus(left, a.outputs)))

    def _find_offsets(self, row: Value, count: Value) -> None:
        """Compute the offset of each row of x from a pixel. Rows beyond the last repeat it; their results are discarded."""
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
        # Pixel by pixel: g comes from memory, and hardware prefetchers follow sequential reads.
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

    def _product(self, slab: _Slab, block: Value, rows_of: Value, panel: Value, place: Value, row: Value) -> None:
        """Accumulate the products of a block of rows and a panel of g, and store the sums when they are complete."""
        code, a, tile = self.code, self.a, self.tile
        g = code.at(self.g_panels, code.times(code.mul(block, a.slab), self.width), F32)
        sums = code.at(self.sums, code.times(code.plus(place, 1), self.size), F32)
        # The first tile of the sums is always zero.
        initial = load(code, tile, F32, self.lanes, code.select(slab.first, self.sums, sums), self.width)
        total = self._add(slab, rows_of, panel, g, initial)
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

    def _step(self) -> Value:
        """From a pixel to its neighbour, in elements of x."""
        return self.code.mul(self.a.x_step, self.code.mul(self.a.groups, self.a.inputs))

    def _right(self, panel: Value) -> Right:
        """A panel of g."""
        code, kind = self.code, vector(F32, self.lanes)

        def read(k: Value, step: int) -> list[Value]:
            at = code.times(code.plus(k, step), self.width)
            return [code.read(panel, code.plus(at, v * self.lanes), kind) for v in range(self.tile.vectors)]

        return read

    # --- how x is read ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, slab: _Slab, block: Value, count: Value) -> None:
        """Prepare some blocks of rows for their products."""

    @abstractmethod
    def _add(self, slab: _Slab, block: Value, panel: Value, g: Value, initial: Sums) -> Sums:
        """Accumulate a panel of g into the sums of a block of rows, the panel-th of those prepared together."""


class _Packed(_Filter):
    """x is packed in panels first."""

    def _begin(self, slab: _Slab, block: Value, count: Value) -> None:
        with self.code.loop(0, count) as j:
            self._pack_x(slab, self.code.plus(block, j), j)

    def _pack_x(self, slab: _Slab, block: Value, panel: Value) -> None:
        """A panel of x for the pixels of a slab: line after line of them."""
        code, a = self.code, self.a
        step = self._step()
        at = code.times(block, self.tile.rows)
        offsets = [code.read(self.offsets, code.plus(at, i), I64) for i in range(self.tile.rows)]
        with code.loop(*lines_of(code, a, slab.begin, slab.pixels)) as line:
            source, first, count = part_of(code, a, slab.group, slab.begin, slab.pixels, line)
            place = code.plus(code.mul(panel, a.slab), first)
            target = code.at(self.panels, code.times(place, self.tile.rows), F32)
            self._pack_line(code.at(self.x, source, F32), target, offsets, step, count)

    def _pack_line(self, source: Value, target: Value, offsets: list[Value], step: Value, count: Value) -> None:
        code, height = self.code, self.tile.rows
        # Every row must follow the one before; comparing only the ends would miss gaps and repetitions.
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

    def _add(self, slab: _Slab, block: Value, panel: Value, g: Value, initial: Sums) -> Sums:
        code, tile = self.code, self.tile
        x = code.at(self.panels, code.times(code.mul(panel, self.a.slab), tile.rows), F32)
        left = columns(code, self.target, tile, F32, x, tile.rows)
        return multiply(code, tile, slab.pixels, left, self._right(g), initial)


class _InPlace(_Filter):
    """x is read in place, line by line."""

    def _begin(self, slab: _Slab, block: Value, count: Value) -> None:
        """Write the table of the slab's lines, which all blocks share, unless it was precomputed."""
        code, a = self.code, self.a
        none = code.icmp_signed("<", a.table, code.i64(0))
        self.facts = code.select(none, self.lines, place_in_table(code, a, slab.begin))
        with code.if_then(none):
            write_down(code, a, slab.group, slab.begin, slab.pixels, self.facts)
        first, end = lines_of(code, a, slab.begin, slab.pixels)
        self.line_count = code.sub(end, first)

    def _add(self, slab: _Slab, block: Value, panel: Value, g: Value, initial: Sums) -> Sums:
        code, tile = self.code, self.tile
        length, step = tile.rows // self.runs, self._step()
        firsts = [code.plus(code.times(block, tile.rows), run * length) for run in range(self.runs)]
        runs = [opaque(code, code.at(self.x, code.read(self.offsets, at, I64), F32)) for at in firsts]

        def line(number: Value, flat: list[Value]) -> list[Value]:
            at = code.times(number, FACTS)
            source, first, count = (code.read(self.facts, code.plus(at, i), I64) for i in range(FACTS))
            here = [code.at(run, source, F32) for run in runs]
            right = self._right(code.at(g, code.times(first, self.width), F32))
            left = neighbours(code, self.target, F32, here, length, step)
            return flattened(multiply(code, tile, count, left, right, in_rows(tile, flat)))

        return in_rows(tile, code.loop_carrying(0, self.line_count, flattened(initial), line))


@dataclass(frozen=True)
class _Slab:
    """The pixels that are packed at a time."""

    group: Value
    begin: Value
    pixels: Value
    first: Value  # of its chunk?
    last: Value
    result: Value  # where the complete sums go
