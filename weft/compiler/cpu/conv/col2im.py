"""Data gradients as a matrix product followed by col2im.

For each pixel of g, the product of its channels with the filter as a matrix (filters, taps x channels) is computed. The products
are then added to the result, a kernel row at a time, whose taps are neighbours in the image unless the kernel is dilated. This pays
for few channels: with 3 of them, vectors along the channels would use 3 lanes; here the lanes hold all taps and their channels.

A unit of work is a band of lines of one image. Every element of the result is the sum of its products in the order of g's pixels,
however the work is partitioned: lines of g that overlap two bands are multiplied for both.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

from llvmlite import ir

from ...ir.conv_shape import ConvShape
from ...ir.plan import Plan, PlanPhase
from ..gemm.packing import before, read_masked, write_masked
from ..gemm.register_tile import RegisterTile, multiply, opaque, rows, store, zeros
from ..ir_builder import F32, I8, Code, Value, vector
from ..library import library
from ..target import CpuTarget, current_target
from .function_builder import Signature, call_epilogue, fill, split
from .shape import Sweep, whole_lines
from .sweep_plan import SweepOperands, sweep_cycles

_AXIS = (
    "kernel",
    "step",
    "reach",
    "dilation",
    "source",
    "size",
)  # of g and of the image along an axis, see shape.py
_SHAPE = ("images", "filters", "channels", *(f"{letter}_{word}" for letter in "zyx" for word in _AXIS))
SCATTER = Signature(
    ("g", "packed", "x", "work", "epilogue", "context"),
    ("tid", "threads", "bands", "lines", "columns", "row_taps", "scratch", "scratch_size", *_SHAPE),
)
PACK = Signature(
    ("w", "packed"),
    (
        "tid",
        "threads",
        "taps",
        "columns",
        "filter_stride",
        "channel_stride",
        "z_stride",
        "y_stride",
        "x_stride",
        *_SHAPE,
    ),
)
_TILES = {8: RegisterTile(6, 1), 16: RegisterTile(6, 2), 32: RegisterTile(12, 2)}  # by vector registers
_FEWEST_LINES = 8  # of a band


# --- plans ----------------------------------------------------------------------------------------------------------------------


def scatters(shape: ConvShape, sweep: Sweep, target: CpuTarget) -> bool:
    """Whether this algorithm is estimated to be faster. It needs masked stores, which only x86 has."""
    quick = target.arch != "aarch64" and shape.groups == 1 and shape.dilation[-1] == 1
    few = shape.channels < target.lanes(32)
    return quick and few and _cycles(shape, target) < sweep_cycles(sweep, target)


def _cycles(shape: ConvShape, target: CpuTarget) -> float:
    """The estimated cycles of one thread: the products, and their addition kernel row by kernel row."""
    lanes, vectors = target.lanes(32), _TILES[target.registers].vectors
    panels = -(-prod(shape.kernel) * shape.channels // (vectors * lanes))
    products = shape.filters * panels * vectors / 2 / 0.9
    adding = prod(shape.kernel[:-1]) * (8 + 4 * -(-shape.kernel[-1] * shape.channels // lanes))
    return shape.batch * prod(shape.out) * (products + adding)


def packed_size(sweep: Sweep, target: CpuTarget) -> int:
    """The bytes of the packed filter."""
    return whole_lines(4 * _columns(sweep, target) * sweep.inputs)


def pack_phase(sweep: Sweep, target: CpuTarget, into: str) -> PlanPhase:
    strides = dict(zip(("z_stride", "y_stride", "x_stride"), sweep.filter.taps, strict=True))
    strides |= {"filter_stride": sweep.filter.input, "channel_stride": sweep.filter.output, "taps": sweep.taps}
    symbol = f"conv_scatter_pack.{_width(target)}"
    return PACK.phase(symbol, {"packed": into}, _numbers(sweep, target) | strides, reads=["w"], writes=[into])


def scatter_plan(
    name: str, sweep: Sweep, threads: int, target: CpuTarget, names: SweepOperands, prepacked: bool = False
) -> Plan:
    """A data gradient, with the filter in `names.packed`."""
    tile, lines = _TILES[target.registers], sweep.axes[1].outside
    scratch = 0 if prepacked else packed_size(sweep, target)
    size = whole_lines(4 * _columns(sweep, target) * tile.rows)
    band = -(-lines // max(1, min(-(-threads // max(1, sweep.batch)), lines // _FEWEST_LINES)))
    numbers = _numbers(sweep, target) | {"bands": -(-lines // band), "lines": band}
    numbers |= {"scratch": scratch, "scratch_size": size}
    across = sweep.axes[2]
    numbers["row_taps"] = across.kernel if across.dilation == 1 else 1  # that are neighbours in the image
    pointers = {"g": names.source, "x": names.result, "packed": names.packed}
    main = SCATTER.phase(
        f"conv_scatter.{tile.rows}x{tile.vectors}", pointers, numbers,
        reads=[names.source, names.packed], writes=[names.result, "work"],
    )  # fmt: skip
    phases = (main,) if prepacked else (pack_phase(sweep, target, names.packed), main)
    return Plan(name, phases, scratch + threads * size, sweep.flops)


def _width(target: CpuTarget) -> int:
    return _TILES[target.registers].columns(target.lanes(32))


def _columns(sweep: Sweep, target: CpuTarget) -> int:
    """The columns of the filter as a matrix, and the padding of its last panel."""
    return -(-sweep.taps * sweep.outputs // _width(target)) * _width(target)


def _numbers(sweep: Sweep, target: CpuTarget) -> dict[str, int]:
    found = {"images": sweep.batch, "filters": sweep.inputs, "channels": sweep.outputs}
    for letter, axis in zip("zyx", sweep.axes, strict=True):
        facts = (axis.kernel, axis.phases, axis.reach, axis.dilation, axis.inside, axis.outside)
        found |= {f"{letter}_{word}": fact for word, fact in zip(_AXIS, facts, strict=True)}
    return found | {"columns": _columns(sweep, target)}


# --- code -----------------------------------------------------------------------------------------------------------------------


@library("conv_scatter_pack")
def _make_pack(symbol: str) -> ir.Module:
    """conv_scatter_pack.WIDTH: panels of WIDTH columns of the filter as a matrix (filters, taps x channels)."""
    width = int(symbol.split(".")[1])
    code, a = PACK.begin(symbol)
    used = code.mul(a.taps, a.channels)
    first, last = code.share(a.columns, a.tid, a.threads)
    with code.loop(first, last) as column:
        z, y, x, channel = split(code, code.minimum(column, code.plus(used, -1)), a.y_kernel, a.x_kernel, a.channels)
        source = code.plus(
            code.mul(z, a.z_stride),
            code.mul(y, a.y_stride),
            code.mul(x, a.x_stride),
            code.mul(channel, a.channel_stride),
        )
        panel, lane = split(code, column, width)
        home = code.plus(code.mul(panel, code.times(a.filters, width)), lane)
        with code.loop(0, a.filters) as f:
            value = code.read(a.w, code.plus(source, code.mul(f, a.filter_stride)), F32)
            code.write(value, a.packed, code.plus(home, code.times(f, width)))
    code.done()
    return code.module


@library("conv_scatter")
def _make(symbol: str) -> ir.Module:
    """conv_scatter.ROWSxVECTORS"""
    height, vectors = map(int, symbol.split(".")[1].split("x"))
    code, a = SCATTER.begin(symbol)
    _Col2Im(code, a, current_target(), RegisterTile(height, vectors)).write()
    code.done()
    return code.module


class _Col2Im:
    """Emits the function for one shape of tile."""

    def __init__(self, code: Code, a: SimpleNamespace, target: CpuTarget, tile: RegisterTile) -> None:
        self.code, self.a, self.target, self.tile = code, a, target, tile
        self.lanes = target.lanes(32)
        self.width = tile.columns(self.lanes)

    def write(self) -> None:
        code, a = self.code, self.a
        self.products = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
        self.row = code.mul(a.x_kernel, a.channels)  # floats of a kernel row
        self.row_parts = code.sdiv(a.x_kernel, a.row_taps)
        self.line = code.mul(a.x_size, a.channels)  # floats of a line of the image
        self.pixels = code.mul(code.mul(a.images, a.z_source), code.mul(a.y_source, a.x_source))
        first, last = code.share(code.mul(a.images, a.bands), a.tid, a.threads)
        with code.loop(first, last) as unit:
            image, band = split(code, unit, a.bands)
            top = code.mul(band, a.lines)
            self._band(image, top, code.minimum(code.plus(top, a.lines), a.y_size))

    def _band(self, image: Value, top: Value, bottom: Value) -> None:
        """Lines [top, bottom) of an image."""
        code, a = self.code, self.a
        planes = code.mul(image, a.z_size)
        with code.loop(0, a.z_size) as z:
            start = code.plus(code.mul(code.plus(planes, z), a.y_size), top)
            fill(code, code.at(a.x, code.mul(start, self.line), F32), code.mul(code.sub(bottom, top), self.line))
        begin, end = self._lines_of_g(top, bottom)
        with code.loop(0, a.z_source) as z:
            plane = code.mul(code.plus(code.mul(image, a.z_source), z), a.y_source)
            pixel, stop = (code.mul(y, a.x_source) for y in (begin, end))
            with code.loop(pixel, stop, self.tile.rows) as p:
                self._multiply(code.plus(code.mul(plane, a.x_source), p))
                with code.loop(0, code.minimum(self.tile.rows, code.sub(stop, p))) as i:
                    y, x = split(code, code.plus(p, i), a.x_source)
                    self._add(i, planes, (z, y, x), top, bottom)
        with code.loop(0, a.z_size) as z:
            start = code.mul(code.plus(planes, z), a.y_size)
            edges = [code.mul(code.plus(start, y), a.x_size) for y in (top, bottom)]
            call_epilogue(code, a, (edges[0], edges[1]), (0, a.channels))

    def _lines_of_g(self, top: Value, bottom: Value) -> tuple[Value, Value]:
        """The first line of g that reaches into a band, and the first after it that does not."""
        code, a = self.code, self.a
        extent = code.mul(code.plus(a.y_kernel, -1), a.y_dilation)
        least = code.maximum(0, code.sub(code.plus(top, a.y_reach), extent))
        begin = code.sdiv(code.plus(least, a.y_step, -1), a.y_step)
        end = code.sdiv(code.plus(bottom, a.y_reach, a.y_step, -1), a.y_step)
        return begin, code.minimum(end, a.y_source)

    def _multiply(self, pixel: Value) -> None:
        """The products of a tile of g's pixels, starting at `pixel`, with the whole filter, as rows. The last pixel is repeated at the end."""
        code, a, tile = self.code, self.a, self.tile
        lines = []
        for i in range(tile.rows):
            here = code.minimum(code.plus(pixel, i), code.plus(self.pixels, -1))
            lines.append(opaque(code, code.at(a.g, code.mul(here, a.filters), F32)))
        kind = vector(F32, self.lanes)
        with code.loop(0, a.columns, self.width) as column:
            panel = code.at(a.packed, code.mul(column, a.filters), F32)

            def right(k: Value, step: int, panel: Value = panel) -> list[Value]:
                at = code.times(code.plus(k, step), self.width)
                return [code.read(panel, code.plus(at, v * self.lanes), kind) for v in range(tile.vectors)]

            left = rows(code, self.target, F32, lines, 2)
            sums = multiply(code, tile, a.filters, left, right, zeros(tile, F32, self.lanes))
            store(code, tile, sums, self.lanes, code.at(self.products, column, F32), a.columns)

    def _add(self, i: Value, planes: Value, place: tuple[Value, Value, Value], top: Value, bottom: Value) -> None:
        """Add the products of one pixel of g to the lines of the band that it reaches."""
        code, a = self.code, self.a
        z0, y0, x0 = (
            code.sub(code.mul(at, getattr(a, f"{letter}_step")), getattr(a, f"{letter}_reach"))
            for letter, at in zip("zyx", place, strict=True)
        )
        with code.loop(0, self.row_parts) as part:
            first = code.mul(part, a.row_taps)
            here = code.plus(x0, code.mul(first, a.x_dilation))
            # The taps before the beginning of the line, and those up to its end.
            left = code.maximum(0, code.sub(code.i64(0), here))
            right = code.minimum(a.row_taps, code.sub(a.x_size, here))
            skip, count = code.mul(code.plus(first, left), a.channels), code.mul(code.sub(right, left), a.channels)
            source = code.at(self.products, code.plus(code.mul(i, a.columns), skip), F32)
            start = code.mul(code.plus(here, left), a.channels)
            with code.loop(0, a.z_kernel) as tz, code.loop(0, a.y_kernel) as ty:
                z, y = code.plus(z0, code.mul(tz, a.z_dilation)), code.plus(y0, code.mul(ty, a.y_dilation))
                inside = code.and_(code.icmp_signed(">=", y, top), code.icmp_signed("<", y, bottom))
                inside = code.and_(inside, code.icmp_unsigned("<", z, a.z_size))
                with code.if_then(inside):
                    line = code.plus(code.mul(code.plus(planes, z), a.y_size), y)
                    target = code.at(a.x, code.plus(code.mul(line, self.line), start), F32)
                    tap = code.plus(code.mul(tz, a.y_kernel), ty)
                    self._add_row(code.at(source, code.mul(tap, self.row), F32), target, count)

    def _add_row(self, source: Value, target: Value, count: Value) -> None:
        """target += source, whole vectors and the rest of one."""
        code, kind = self.code, vector(F32, self.lanes)
        whole = code.and_(code.maximum(0, count), code.i64(-self.lanes))
        with code.loop(0, whole, self.lanes) as at:
            code.write(code.fadd(code.read(target, at, kind), code.read(source, at, kind)), target, at)
        with code.if_then(code.icmp_signed("<", whole, count)):
            some = before(code, code.sub(count, whole), self.lanes)
            ends = [code.at(pointer, whole, F32) for pointer in (target, source)]
            total = code.fadd(*(read_masked(code, end, some, kind) for end in ends))
            write_masked(code, total, ends[0], some)
