"""Forward convolutions and data gradients by fast Fourier transforms, in tiles that overlap (overlap-save).

A convolution is a product of spectra. The result is cut into tiles; the window of the source that a tile depends on is transformed, a
vector of channels at a time; for each point of the spectrum the windows (rows) x channels are multiplied with the transformed
filter: a product of complex matrices; the products are transformed back, and the pixels that did not wrap around are stored.

Each step is a phase of its own, so that threads divide windows and channels in the transforms, and points in the products. Every
number is computed by one thread in an order that depends on the shape alone.

Operands are those of a sweep (see conv/shape.py) with stride 1, so data gradients use the same functions.
"""

from __future__ import annotations

from types import SimpleNamespace

from llvmlite import ir

from ...ir.fft_tiling import FftWindow
from ..conv.function_builder import Signature, all_of, below, call_epilogue, copy, fill, numbers, split
from ..ir_builder import I8, Code, Value, constant
from ..library import library
from ..target import current_target
from .spectra import ELEMENTS, SpectraEmitter, scratch_elements

TILES = (
    "first",
    "count",
    "tiles_y",
    "tiles_x",
    "y_step",
    "x_step",
)  # tiles of a call; in an image; pixels between them

IMAGE = Signature(
    ("x", "work"),
    (
        "tid", "threads", *TILES,
        "spectra",  # where they begin in the workspace, in bytes
        "groups", "channels",  # of one group
        "row", "apart", "group_apart",  # elements: of a row of complex vectors, from point to point, from group to group
        "y_inside", "x_inside", "y_first", "x_first",  # pixels of the image; where the window of the first tile begins
        "y_extent", "x_extent",  # pixels of a window that are read: the others are zeros
    ),
)  # fmt: skip
FILTER = Signature(
    ("w", "packed"),
    (
        "tid", "threads", "groups", "outputs", "inputs", "width", "apart", "group_apart",
        "base", "group_stride", "output_stride", "input_stride", "y_stride", "x_stride",
        "y_taps", "x_taps", "y_dilation", "x_dilation",
    ),
)  # fmt: skip
RESULT = Signature(
    ("y", "work", "epilogue", "context"),
    (
        "tid", "threads", *TILES, "spectra", "groups", "channels", "row", "apart", "group_apart",
        "y_outside", "x_outside",
        "y_skipped", "x_skipped",  # pixels at the beginning of a window that wrapped around
        "strip",  # channels that are finished at a time, whole vectors
    ),
)  # fmt: skip


Pixels = tuple[Value, Value]  # the offset of the first one, and the elements from one to the next


class FftEmitter:
    """The common parts of the functions: a vector type, the transforms, and scratch memory on the stack."""

    def __init__(self, symbol: str, signature: Signature) -> None:
        _, kind, window = symbol.split(".")
        self.window, self.element = FftWindow.named(window), ELEMENTS[kind]
        self.code, self.a = signature.begin(symbol)
        self.spectra = SpectraEmitter(self.code.module, self.window, kind, current_target())
        self.lanes, self.kind = self.spectra.lanes, self.spectra.kind
        self.scratch = numbers(self.code, scratch_elements(self.window, self.lanes), self.element)
        self.line = self.spectra.line_of(self.code, self.scratch)

    def copy_pixels(self, count: Value, some: Value, source: Pixels, target: Pixels) -> None:
        """Copy the channels `some`, at most a vector, of this many pixels."""
        code = self.code
        (start, stride), (home, pitch) = source, target
        with code.if_else(code.icmp_signed("==", some, code.i64(self.lanes))) as (whole, part):
            with whole, code.loop(0, count) as i:
                code.write(code.read(start, code.mul(i, stride), self.kind), home, code.mul(i, pitch))
            with part, code.loop(0, count) as i:
                here, there = (
                    code.at(start, code.mul(i, stride), self.element),
                    code.at(home, code.mul(i, pitch), self.element),
                )
                copy(code, here, there, some, self.element)

    def fill(self, target: Value, length: Value) -> None:
        fill(self.code, target, length, element=self.element)

    def tile(self, tile: Value) -> tuple[Value, Value, Value]:
        """The image of a tile, and its first pixel."""
        code, a = self.code, self.a
        n, ty, tx = split(code, tile, a.tiles_y, a.tiles_x)
        return n, code.mul(ty, a.y_step), code.mul(tx, a.x_step)

    def done(self) -> ir.Module:
        self.code.done()
        return self.code.module


@library("fft_image")
def _make_image(symbol: str) -> ir.Module:
    """fft_image.TYPE.NYxNX: the spectra of windows of an image, for each group, point and tile a row of complex vectors of channels."""
    writer = _Image(symbol, IMAGE)
    code, a = writer.code, writer.a
    vectors = code.ceil_div(a.channels, writer.lanes)
    first, last = code.share(code.mul(a.count, code.mul(a.groups, vectors)), a.tid, a.threads)
    with code.loop(first, last) as unit:
        place, group, step = split(code, unit, a.groups, vectors)
        writer.window_of(place, group, code.times(step, writer.lanes))
    return writer.done()


class _Image(FftEmitter):
    def window_of(self, place: Value, group: Value, channel: Value) -> None:
        """The spectrum of a tile's window for a vector of channels."""
        code, a, window = self.code, self.a, self.window
        n, y, x = self.tile(code.plus(a.first, place))
        y, x = code.plus(y, a.y_first), code.plus(x, a.x_first)
        some = code.minimum(self.lanes, code.sub(a.channels, channel))
        all_channels = code.mul(a.groups, a.channels)
        within = all_of(
            code, code.icmp_signed("==", some, code.i64(self.lanes)), code.icmp_signed(">=", x, code.i64(0)),
            code.icmp_signed("<=", code.plus(x, window.x), a.x_inside), code.icmp_signed(">=", a.x_extent, code.i64(window.x)),
        )  # fmt: skip
        with code.loop(0, window.y) as row:
            yy = code.plus(y, row)
            there = code.and_(below(code, yy, a.y_inside), code.icmp_signed("<", row, a.y_extent))
            with code.if_else(there) as (then, otherwise):
                with then:
                    pixel = code.plus(code.mul(code.plus(code.mul(n, a.y_inside), yy), a.x_inside), x)
                    at = code.plus(code.mul(pixel, all_channels), code.mul(group, a.channels), channel)
                    source = code.gep(a.x, [at], source_etype=self.element)  # not inbounds: x may be negative
                    with code.if_then(code.not_(within)):
                        self._fill_line(source, x, some, all_channels)
                    pixels = code.select(within, source, self.line)
                    stride = code.select(within, all_channels, code.i64(self.lanes))
                    self.spectra.row_to_buffer(code, pixels, stride, self.scratch, row)
                with otherwise:
                    self.spectra.clear_row(code, self.scratch, row)
        home = code.plus(code.mul(group, a.group_apart), code.mul(place, a.row), code.times(channel, 2))
        points = code.at(code.at(a.work, a.spectra, I8), home, self.element)
        self.spectra.buffer_to_points(code, self.scratch, points, a.apart, a.row)

    def _fill_line(self, source: Value, x: Value, some: Value, stride: Value) -> None:
        """Copy a line that reaches over an edge of the image, or has fewer channels than a vector, between zeros."""
        code, a = self.code, self.a
        self.fill(self.line, code.i64(self.window.x * self.lanes))
        first = code.maximum(0, code.sub(code.i64(0), x))
        last = code.minimum(code.minimum(self.window.x, a.x_extent), code.sub(a.x_inside, x))
        here = code.gep(source, [code.mul(first, stride)], source_etype=self.element)
        there = code.at(self.line, code.times(first, self.lanes), self.element)
        self.copy_pixels(code.sub(last, first), some, (here, stride), (there, code.i64(self.lanes)))


@library("fft_filter")
def _make_filter(symbol: str) -> ir.Module:
    """fft_filter.TYPE.NYxNX: for each group and point the panels of the transformed filter, divided by the pixels of a window."""
    writer = FftEmitter(symbol, FILTER)
    code, a = writer.code, writer.a
    # Rows and pixels without taps stay zeros.
    writer.fill(writer.scratch, code.i64(scratch_elements(writer.window, writer.lanes)))
    blocks, vectors = code.sdiv(code.plus(a.outputs, a.width, -1), a.width), code.sdiv(a.width, code.i64(writer.lanes))
    first, last = code.share(code.mul(code.mul(a.groups, blocks), code.mul(a.inputs, vectors)), a.tid, a.threads)
    with code.loop(first, last) as unit:
        group, block, channel, lane = split(code, unit, blocks, a.inputs, vectors)
        lane = code.times(lane, writer.lanes)
        column = code.plus(code.mul(block, a.width), lane)
        source = code.plus(a.base, code.mul(group, a.group_stride), code.mul(channel, a.input_stride))
        with code.loop(0, a.y_taps) as y:
            with code.loop(0, a.x_taps) as x:
                tap = code.plus(source, code.mul(y, a.y_stride), code.mul(x, a.x_stride))
                home = code.at(writer.line, code.times(code.mul(x, a.x_dilation), writer.lanes), writer.element)
                _read_tap(code, a, writer, tap, column, home)
            writer.spectra.row_to_buffer(
                code, writer.line, code.i64(writer.lanes), writer.scratch, code.mul(y, a.y_dilation)
            )
        panel = code.plus(code.mul(block, a.inputs), channel)
        row = code.times(a.width, 2)
        home = code.plus(code.mul(group, a.group_apart), code.mul(panel, row), code.times(lane, 2))
        points = code.at(a.packed, home, writer.element)
        writer.spectra.buffer_to_points(code, writer.scratch, points, a.apart, row)
    return writer.done()


def _read_tap(code: Code, a: SimpleNamespace, writer: FftEmitter, tap: Value, column: Value, home: Value) -> None:
    """One tap of a vector of filters. Filters beyond the last are zeros."""
    lanes, scale = writer.lanes, 1.0 / writer.window.pixels
    whole = code.icmp_signed("<=", code.plus(column, lanes), a.outputs)
    together = code.and_(whole, code.icmp_signed("==", a.output_stride, code.i64(1)))
    with code.if_else(together) as (then, otherwise):
        with then:
            value = code.read(a.w, code.plus(tap, column), writer.kind)
            code.write(code.fmul(constant(writer.kind, scale), value), home, 0)
        with otherwise, code.loop(0, lanes) as lane:
            here = code.plus(column, lane)
            there = code.icmp_signed("<", here, a.outputs)
            safe = code.mul(code.minimum(here, code.plus(a.outputs, -1)), a.output_stride)
            value = code.fmul(ir.Constant(writer.element, scale), code.read(a.w, code.plus(tap, safe), writer.element))
            code.write(code.select(there, value, ir.Constant(writer.element, 0.0)), home, lane)


@library("fft_result")
def _make_result(symbol: str) -> ir.Module:
    """fft_result.TYPE.NYxNX: tiles of the result from the products of spectra."""
    writer = _Result(symbol, RESULT)
    code, a = writer.code, writer.a
    strips = code.sdiv(code.plus(a.channels, a.strip, -1), a.strip)
    first, last = code.share(code.mul(a.count, code.mul(a.groups, strips)), a.tid, a.threads)
    with code.loop(first, last) as unit:
        place, group, strip = split(code, unit, a.groups, strips)
        begin = code.mul(strip, a.strip)
        writer.tile_of(place, group, begin, code.minimum(a.channels, code.plus(begin, a.strip)))
    return writer.done()


class _Result(FftEmitter):
    def tile_of(self, place: Value, group: Value, begin: Value, end: Value) -> None:
        """A tile of the result for some channels."""
        code, a = self.code, self.a
        n, y, x = self.tile(code.plus(a.first, place))
        height = code.minimum(a.y_step, code.sub(a.y_outside, y))
        width = code.minimum(a.x_step, code.sub(a.x_outside, x))
        corner = code.plus(code.mul(code.plus(code.mul(n, a.y_outside), y), a.x_outside), x)
        base = code.mul(group, a.channels)
        row = code.plus(code.mul(group, a.group_apart), code.mul(place, a.row))
        spectra = code.at(code.at(a.work, a.spectra, I8), row, self.element)
        with code.loop(begin, end, self.lanes) as channel:
            here = code.at(spectra, code.times(channel, 2), self.element)
            self.spectra.points_to_buffer(code, here, a.apart, self.scratch)
            some = code.minimum(self.lanes, code.sub(a.channels, channel))
            with code.loop(0, height) as i:
                pixel = code.plus(corner, code.mul(i, a.x_outside))
                self._store_row(i, pixel, width, code.plus(base, channel), some)
        with code.loop(0, height) as i:
            pixel = code.plus(corner, code.mul(i, a.x_outside))
            call_epilogue(code, a, (pixel, code.plus(pixel, width)), (code.plus(base, begin), code.plus(base, end)))

    def _store_row(self, i: Value, pixel: Value, width: Value, channel: Value, some: Value) -> None:
        code, a = self.code, self.a
        self.spectra.buffer_to_row(code, self.scratch, code.plus(i, a.y_skipped), self.line)
        all_channels = code.mul(a.groups, a.channels)
        source = code.at(self.line, code.times(a.x_skipped, self.lanes), self.element)
        home = code.at(a.y, code.plus(code.mul(pixel, all_channels), channel), self.element)
        self.copy_pixels(width, some, (source, code.i64(self.lanes)), (home, all_channels))
