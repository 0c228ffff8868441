"""Filter gradients by Winograd's algorithm: 2.25 or 4 times fewer products, for some loss of accuracy.

For each tile of pixels, a square of x and one of g are transformed to as many points, and for each point and every input and output
channel their products are summed over all tiles: a matrix product for each point. The sums are transformed to the taps at the end.

A unit of work is a chunk of tiles for some input and output channels, whose sums for all points stay in the L2 cache. It processes its
tiles in slabs. Chunks depend on the shape alone and are added in order, so results do not depend on the number of threads.
"""

from __future__ import annotations

import functools

from llvmlite import ir

from ..conv.function_builder import Signature, call_epilogue, fill, split
from ..gemm.register_tile import columns, load, multiply, store
from ..ir_builder import F32, I8, Value
from ..library import library
from .tiles import APART, Image, WinogradEmitter, square, written
from .transforms import GRADIENTS, Transform, both_axes

GRADIENT = Signature(
    ("x", "g", "w", "work", "epilogue", "context"),
    (
        "tid", "threads",
        "partial",  # as in filter_gradient.py
        "scratch", "scratch_size",  # a thread's memory: transformed x, and from there on
        "gradients", "sums", "patch",  # transformed g, sums, a square at the edge
        "batch", "inputs", "outputs",
        "y_inside", "x_inside", "y_outside", "x_outside",
        "y_before", "x_before",  # padding
        "rows", "columns",  # input and output channels of a unit
        "chunk", "chunks", "slab",  # tiles
    ),
)  # fmt: skip


@library("winograd_gradient")
def _make(symbol: str) -> ir.Module:
    """winograd_gradient.SIZE.ROWSxVECTORS"""
    return written(symbol, GRADIENT, _Gradient)


class _Gradient(WinogradEmitter):
    """Tiles of x and of g, their products for each point, the taps."""

    def write(self) -> None:
        code, a = self.code, self.a
        self.x = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
        self.g, sums, self.patch = (code.at(self.x, n, I8) for n in (a.gradients, a.sums, a.patch))
        self.nothing = sums  # a tile of zeros comes before the sums
        fill(code, self.nothing, code.i64(self.tile.rows * self.width))
        self.sums = code.at(sums, self.tile.rows * self.width, F32)
        self.x_pitch = code.times(code.ceil_div(a.rows, self.tile.rows), self.tile.rows)
        self.g_pitch = code.times(code.ceil_div(a.columns, self.width), self.width)
        self._clear()
        self.x_point = code.plus(code.mul(a.slab, self.x_pitch), APART)
        self.g_point = code.plus(code.mul(a.slab, self.g_pitch), APART)
        self.sums_point = code.plus(code.mul(self.x_pitch, self.g_pitch), APART)
        self.tiles_y, self.tiles_x = code.ceil_div(a.y_outside, self.size), code.ceil_div(a.x_outside, self.size)
        self.tiles = code.mul(a.batch, code.mul(self.tiles_y, self.tiles_x))
        blocks = [code.sdiv(code.plus(n, m, -1), m) for n, m in ((a.inputs, a.rows), (a.outputs, a.columns))]
        first, last = code.share(code.mul(a.chunks, code.mul(*blocks)), a.tid, a.threads)
        with code.loop(first, last) as unit:
            chunk, row, column = split(code, unit, *blocks)
            row, column = code.mul(row, a.rows), code.mul(column, a.columns)
            rows, some = (
                code.minimum(a.rows, code.sub(a.inputs, row)),
                code.minimum(a.columns, code.sub(a.outputs, column)),
            )
            self._unit(chunk, (row, rows), (column, some))

    def _clear(self) -> None:
        """Channels beyond the last stay zero: stale memory may hold subnormal numbers, which are slow on some CPUs."""
        code, a = self.code, self.a
        pairs = ((a.rows, self.x_pitch), (a.columns, self.g_pitch), (a.inputs, a.rows), (a.outputs, a.columns))
        over = [code.icmp_signed("!=", code.srem(n, m), code.i64(0)) for n, m in pairs]
        with code.if_then(functools.reduce(code.or_, over)):
            fill(code, self.x, code.sdiv(a.sums, code.i64(4)))

    def _unit(self, chunk: Value, inputs: tuple[Value, Value], outputs: tuple[Value, Value]) -> None:
        """The tiles of a chunk, for some channels: (first, count) of each."""
        code, a = self.code, self.a
        x = Image(a.x, a.y_inside, a.x_inside, a.inputs, *inputs)
        g = Image(a.g, a.y_outside, a.x_outside, a.outputs, *outputs)
        begin = code.mul(chunk, a.chunk)
        end = code.minimum(self.tiles, code.plus(begin, a.chunk))
        # At least once: the sum of no tiles is 0.
        with code.loop(begin, code.maximum(end, code.plus(begin, 1)), a.slab) as start:
            count = code.minimum(a.slab, code.sub(end, start))
            with code.loop(0, count) as place:
                n, ty, tx = split(code, code.plus(start, place), self.tiles_y, self.tiles_x)
                y, px = code.times(ty, self.size), code.times(tx, self.size)
                corner = n, code.sub(y, a.y_before), code.sub(px, a.x_before)
                to_x, to_g, _ = GRADIENTS[self.size]
                self._transform(
                    x, corner, self.reach, to_x, code.at(self.x, code.mul(place, self.x_pitch), F32), self.x_point
                )
                self._transform(
                    g, (n, y, px), self.size, to_g, code.at(self.g, code.mul(place, self.g_pitch), F32), self.g_point
                )
            self._products(code.icmp_signed("==", start, begin), count, inputs[1], outputs[1])
        final = code.icmp_signed("<", a.partial, code.i64(0))
        taps = code.mul(code.times(a.inputs, 9), a.outputs)
        partial = code.at(code.at(a.work, a.partial, I8), code.mul(chunk, taps), F32)
        self._finish(code.select(final, a.w, partial), inputs, outputs)

    def _transform(
        self,
        image: Image,
        place: tuple[Value, Value, Value],
        reach: int,
        transform: Transform,
        home: Value,
        point: Value,
    ) -> None:
        """The points of a square, a vector of channels at a time."""
        code = self.code
        pixels, line, pixel = square(code, image, place, reach, self.patch)
        with code.loop(0, image.count, self.lanes) as step:
            # The last vector overlaps the one before, so that it ends with the last channel.
            channel = code.minimum(step, code.plus(image.count, -self.lanes))
            source, target = code.at(pixels, channel, F32), code.at(home, channel, F32)
            values = [
                [
                    code.read(source, code.plus(code.times(line, y), code.times(pixel, x)), self.kind)
                    for x in range(reach)
                ]
                for y in range(reach)
            ]
            for i, value in enumerate(value for row in both_axes(code, values, transform) for value in row):
                code.write(value, target, code.times(point, i))

    def _products(self, first: Value, tiles: Value, inputs: Value, outputs: Value) -> None:
        """Add the products of a slab to the sums of all points."""
        code, tile = self.code, self.tile
        with code.loop(0, self.points) as point:
            x, g = (code.at(m, code.mul(point, n), F32) for m, n in ((self.x, self.x_point), (self.g, self.g_point)))
            sums = code.at(self.sums, code.mul(point, self.sums_point), F32)
            with code.loop(0, outputs, self.width) as column, code.loop(0, inputs, tile.rows) as row:
                home = code.at(sums, code.plus(code.mul(row, self.g_pitch), column), F32)
                self._product(first, tiles, code.at(x, row, F32), code.at(g, column, F32), home)

    def _product(self, first: Value, tiles: Value, x: Value, g: Value, home: Value) -> None:
        """One register tile."""
        code, tile = self.code, self.tile

        def right(k: Value, step: int) -> list[Value]:
            at = code.mul(code.plus(k, step), self.g_pitch)
            return [code.read(g, code.plus(at, v * self.lanes), self.kind) for v in range(tile.vectors)]

        left = columns(code, self.target, tile, F32, x, self.x_pitch)
        pitch = code.select(first, code.i64(self.width), self.g_pitch)
        initial = load(code, tile, F32, self.lanes, code.select(first, self.nothing, home), pitch)
        store(code, tile, multiply(code, tile, tiles, left, right, initial), self.lanes, home, self.g_pitch)

    def _finish(self, result: Value, inputs: tuple[Value, Value], outputs: tuple[Value, Value]) -> None:
        """The taps of some channels from their sums."""
        code, a, reach = self.code, self.a, self.reach
        tap = code.mul(a.inputs, a.outputs)
        with code.loop(0, inputs[1]) as row:
            home = code.plus(code.mul(code.plus(inputs[0], row), a.outputs), outputs[0])
            with code.loop(0, outputs[1], self.lanes) as step:
                column = code.minimum(step, code.plus(outputs[1], -self.lanes))
                source = code.at(self.sums, code.plus(code.mul(row, self.g_pitch), column), F32)
                values = [
                    [code.read(source, code.times(self.sums_point, i * reach + j), self.kind) for j in range(reach)]
                    for i in range(reach)
                ]
                taps = [value for line in both_axes(code, values, GRADIENTS[self.size][2]) for value in line]
                target = code.at(result, code.plus(home, column), F32)
                for t, value in enumerate(taps):
                    code.write(value, target, code.times(tap, t))
        with code.if_then(code.icmp_signed("==", a.partial, code.i64(-1))), code.loop(0, 9) as t:
            begin = code.plus(code.mul(t, a.inputs), inputs[0])
            call_epilogue(code, a, (begin, code.plus(begin, inputs[1])), (outputs[0], code.plus(*outputs)))
