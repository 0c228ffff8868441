"""Winograd convolutions F(m x m, 3 x 3), m = 2 or 4: 2.25 or 4 times fewer products, for some loss of accuracy.

A unit of work is a chunk of tiles times some blocks of output channels. A thread transforms the tiles of the source, a
vector of channels at a time, to one matrix (tiles x inputs) for each of the (m + 2)^2 points, multiplies each with the
transformed filter of that point, and transforms the products back, all within the caches of its core. The bits of results
do not depend on the partition.

Operands are those of a sweep (see shape.py) with stride 1, so data gradients use the same functions.
"""

from __future__ import annotations

from types import SimpleNamespace

from llvmlite import ir

from ..conv.function_builder import Signature, all_of, call_epilogue, copy, numbers, split
from ..gemm.register_tile import multiply, rows, store, zeros
from ..ir_builder import F32, I8, Code, Value, vector
from ..library import library
from ..target import current_target
from .tiles import APART, Image, WinogradEmitter, square, written
from .transforms import TRANSFORMS, both_axes

WINOGRAD = Signature(
    ("x", "packed", "y", "work", "epilogue", "context"),
    (
        "tid", "threads",
        "scratch", "scratch_size", "products", "patch",  # bytes: a thread's scratch memory, and the offsets of its parts
        "batch", "inputs", "outputs",
        "y_inside", "x_inside", "y_outside", "x_outside",  # sizes
        "y_first", "x_first",  # where in the source the first pixel of the result begins
        "chunk", "blocks",  # tiles (a multiple of the tile's rows) and blocks of a unit
        "channels_first",  # 1: threads divide the blocks of output channels; 0: the chunks of tiles
    ),
)  # fmt: skip
FILTER = Signature(
    ("w", "packed"),
    ("tid", "threads", "outputs", "inputs", "width", "base", "output_stride", "input_stride", "y_stride", "x_stride"),
)


@library("winograd")
def _make(symbol: str) -> ir.Module:
    """winograd.SIZE.ROWSxVECTORS"""
    return written(symbol, WINOGRAD, _Winograd)


@library("winograd_filter")
def _make_filter(symbol: str) -> ir.Module:
    """winograd_filter.SIZE: for each point the panels of the transformed filter, as matrix products read them."""
    size = int(symbol.split(".")[1])
    code, a = FILTER.begin(symbol)
    blocks = code.sdiv(code.plus(a.outputs, a.width, -1), a.width)
    first, last = code.share(code.mul(blocks, a.inputs), a.tid, a.threads)
    point = code.plus(code.mul(code.mul(blocks, a.inputs), a.width), APART)
    lanes = current_target().lanes(32)
    taps = numbers(code, 9 * lanes, F32)
    with code.loop(first, last) as unit, code.loop(0, a.width, lanes) as lane:
        block, channel = split(code, unit, a.inputs)
        _read_taps(
            code,
            a,
            code.plus(a.base, code.mul(channel, a.input_stride)),
            code.plus(code.mul(block, a.width), lane),
            taps,
        )
        filters = [[code.read(taps, (3 * y + x) * lanes, vector(F32, lanes)) for x in range(3)] for y in range(3)]
        points = both_axes(code, filters, TRANSFORMS[size][1])
        home = code.plus(code.mul(unit, a.width), lane)
        for i, value in enumerate(value for row in points for value in row):
            code.write(value, a.packed, code.plus(home, code.times(point, i)))
    code.done()
    return code.module


def _read_taps(code: Code, a: SimpleNamespace, source: Value, column: Value, taps: Value) -> None:
    """Load the taps of some filters, from the last to the first as in sweeps. Filters beyond the last are zeros."""
    lanes = current_target().lanes(32)
    start = code.plus(source, code.mul(column, a.output_stride))
    whole = code.icmp_signed("<=", code.plus(column, lanes), a.outputs)
    together = code.and_(whole, code.icmp_signed("==", a.output_stride, code.i64(1)))
    with code.loop(0, 3) as y, code.loop(0, 3) as x:
        tap = code.plus(code.mul(code.sub(code.i64(2), y), a.y_stride), code.mul(code.sub(code.i64(2), x), a.x_stride))
        target = code.at(taps, code.times(code.plus(code.times(y, 3), x), lanes), F32)
        with code.if_else(together) as (then, otherwise):
            with then:
                code.write(code.read(a.w, code.plus(start, tap), vector(F32, lanes)), target, 0)
            with otherwise, code.loop(0, lanes) as lane:
                here = code.plus(column, lane)
                there = code.icmp_signed("<", here, a.outputs)
                safe = code.mul(code.minimum(here, code.plus(a.outputs, -1)), a.output_stride)
                value = code.read(a.w, code.plus(source, tap, safe), F32)
                code.write(code.select(there, value, ir.Constant(F32, 0.0)), target, lane)


class _Winograd(WinogradEmitter):
    """Tiles of the source, products, tiles of the result."""

    def write(self) -> None:
        code, a = self.code, self.a
        self.source = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
        self.products, self.patch = code.at(self.source, a.products, I8), code.at(self.source, a.patch, I8)
        self.tiles_y, self.tiles_x = code.ceil_div(a.y_outside, self.size), code.ceil_div(a.x_outside, self.size)
        self.all_blocks = code.ceil_div(a.outputs, self.width)
        self.pitch = code.times(a.blocks, self.width)  # floats of a row of products
        self.source_point = code.plus(code.mul(a.chunk, a.inputs), APART)
        self.products_point = code.plus(code.mul(a.chunk, self.pitch), APART)
        tiles = code.mul(a.batch, code.mul(self.tiles_y, self.tiles_x))
        chunks = code.sdiv(code.plus(tiles, a.chunk, -1), a.chunk)
        strips = code.sdiv(code.plus(self.all_blocks, a.blocks, -1), a.blocks)
        by_channel = code.icmp_signed("==", a.channels_first, code.i64(1))
        first, last = code.share(code.mul(chunks, strips), a.tid, a.threads)
        with code.loop(first, last) as unit:
            major, minor = split(code, unit, code.select(by_channel, chunks, strips))
            chunk, strip = code.select(by_channel, minor, major), code.select(by_channel, major, minor)
            begin, block = code.mul(chunk, a.chunk), code.mul(strip, a.blocks)
            end = code.minimum(tiles, code.plus(begin, a.chunk))
            self._unit(begin, end, block, code.minimum(self.all_blocks, code.plus(block, a.blocks)))

    def _unit(self, begin: Value, end: Value, block: Value, last_block: Value) -> None:
        code, a = self.code, self.a
        column, last_column = code.times(block, self.width), code.minimum(a.outputs, code.times(last_block, self.width))
        with code.loop(begin, end) as tile:
            self._transform_source(tile, code.sub(tile, begin))
        panel = code.times(a.inputs, self.width)
        filter_point = code.plus(code.mul(self.all_blocks, panel), APART)
        with code.loop(0, self.points) as point, code.loop(block, last_block) as b:
            filters = code.at(a.packed, code.plus(code.mul(point, filter_point), code.mul(b, panel)), F32)
            with code.loop(0, code.sub(end, begin), self.tile.rows) as row:
                source = code.plus(code.mul(point, self.source_point), code.mul(row, a.inputs))
                source = code.at(self.source, source, F32)
                home = code.plus(code.mul(point, self.products_point), code.mul(row, self.pitch))
                home = code.plus(home, code.times(code.sub(b, block), self.width))
                self._product(source, filters, code.at(self.products, home, F32))
        with code.loop(begin, end) as tile:
            self._transform_result(tile, code.sub(tile, begin), column, last_column)
        self._finished(begin, end, column, last_column)

    # --- from the source ------------------------------------------------------------------------------------------------

    def _transform_source(self, tile: Value, place: Value) -> None:
        code, a, reach = self.code, self.a, self.reach
        n, ty, tx = split(code, tile, self.tiles_y, self.tiles_x)
        y, x = code.plus(a.y_first, code.times(ty, self.size)), code.plus(a.x_first, code.times(tx, self.size))
        image = Image(a.x, a.y_inside, a.x_inside, a.inputs, code.i64(0), a.inputs)
        pixels, pitch, _ = square(code, image, (n, y, x), reach, self.patch)
        home = code.at(self.source, code.mul(place, a.inputs), F32)
        with code.loop(0, a.inputs, self.lanes) as step:
            # The last vector overlaps the one before, so that it ends with the last channel.
            channel = code.minimum(step, code.plus(a.inputs, -self.lanes))
            self._transform_channels(code.at(pixels, channel, F32), pitch, code.at(home, channel, F32))

    def _transform_channels(self, pixels: Value, pitch: Value, home: Value) -> None:
        code, a, reach = self.code, self.a, self.reach
        values = [
            [
                code.read(pixels, code.plus(code.times(pitch, y), code.times(a.inputs, x)), self.kind)
                for x in range(reach)
            ]
            for y in range(reach)
        ]
        for i, row in enumerate(both_axes(code, values, TRANSFORMS[self.size][0])):
            for j, value in enumerate(row):
                code.write(value, home, code.times(self.source_point, i * reach + j))

    # --- the products -----------------------------------------------------------------------------------------------------

    def _product(self, source: Value, filters: Value, home: Value) -> None:
        """One register tile. Rows beyond the last tile of a chunk are computed but never read."""
        code, a, tile = self.code, self.a, self.tile
        pointers = [code.at(source, code.times(a.inputs, i), F32) for i in range(tile.rows)]

        def right(k: Value, step: int) -> list[Value]:
            at = code.times(code.plus(k, step), self.width)
            return [code.read(filters, code.plus(at, v * self.lanes), self.kind) for v in range(tile.vectors)]

        left = rows(code, self.target, F32, pointers)
        sums = multiply(code, tile, a.inputs, left, right, zeros(tile, F32, self.lanes))
        store(code, tile, sums, self.lanes, home, self.pitch)

    # --- to the result ----------------------------------------------------------------------------------------------------

    def _transform_result(self, tile: Value, place: Value, column: Value, last_column: Value) -> None:
        code, a, size = self.code, self.a, self.size
        n, ty, tx = split(code, tile, self.tiles_y, self.tiles_x)
        y, x = code.times(ty, size), code.times(tx, size)
        corner = code.plus(code.mul(code.plus(code.mul(n, a.y_outside), y), a.x_outside), x)
        height, width = code.minimum(size, code.sub(a.y_outside, y)), code.minimum(size, code.sub(a.x_outside, x))
        whole_tile = all_of(code, *(code.icmp_signed("==", n, code.i64(size)) for n in (height, width)))
        row = code.at(self.products, code.mul(place, self.pitch), F32)
        with code.loop(column, last_column, self.lanes) as c:
            some = code.minimum(self.lanes, code.sub(last_column, c))
            home = code.at(a.y, code.plus(code.mul(corner, a.outputs), c), F32)
            values = self._results(code.at(row, code.sub(c, column), F32))
            with code.if_else(code.and_(whole_tile, code.icmp_signed("==", some, code.i64(self.lanes)))) as (
                then,
                otherwise,
            ):
                with then:
                    for i, line in enumerate(values):
                        for j, value in enumerate(line):
                            pixel = code.plus(code.times(a.x_outside, i), j)
                            code.write(value, home, code.mul(pixel, a.outputs))
                with otherwise:
                    self._store_part(values, home, height, width, some)

    def _results(self, products: Value) -> list[list[Value]]:
        code, reach = self.code, self.reach
        values = [
            [code.read(products, code.times(self.products_point, i * reach + j), self.kind) for j in range(reach)]
            for i in range(reach)
        ]
        return both_axes(code, values, TRANSFORMS[self.size][2])

    def _store_part(self, values: list[list[Value]], home: Value, height: Value, width: Value, some: Value) -> None:
        """Store the valid part of a tile at the edge."""
        code, a, size = self.code, self.a, self.size
        aside = numbers(code, size * size * self.lanes, F32)
        for i, value in enumerate(value for row in values for value in row):
            code.write(value, aside, i * self.lanes)
        with code.loop(0, height) as i, code.loop(0, width) as j:
            source = code.times(code.plus(code.times(i, size), j), self.lanes)
            target = code.mul(code.plus(code.mul(i, a.x_outside), j), a.outputs)
            copy(code, code.at(aside, source, F32), code.at(home, target, F32), some)

    def _finished(self, begin: Value, end: Value, column: Value, last_column: Value) -> None:
        """Call the epilogue, line by line."""
        code, a, size = self.code, self.a, self.size
        first, last = code.sdiv(begin, self.tiles_x), code.sdiv(code.plus(end, -1), self.tiles_x)
        with code.loop(first, code.plus(last, 1)) as strip:
            n, ty = split(code, strip, self.tiles_y)
            start = code.mul(strip, self.tiles_x)
            x0 = code.times(code.maximum(0, code.sub(begin, start)), size)
            x1 = code.minimum(a.x_outside, code.times(code.sub(end, start), size))
            y0 = code.times(ty, size)
            with code.loop(y0, code.minimum(a.y_outside, code.plus(y0, size))) as y:
                line = code.mul(code.plus(code.mul(n, a.y_outside), y), a.x_outside)
                call_epilogue(code, a, (code.plus(line, x0), code.plus(line, x1)), (column, last_column))
