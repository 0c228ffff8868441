"""Depthwise convolutions, where every channel has its own filter: vectors run along the channels.

The sweep (forward or data gradient) traverses pixels as the direct one does, see sweep.py: for a tile of pixels and vectors of
channels it accumulates the products of pixels and filter tap by tap. The filter gradient accumulates, tap by tap, the products of x
and g over the pixels of a chunk; the partition into chunks depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from types import SimpleNamespace

from llvmlite import ir

from ...ir.conv_shape import ConvShape
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..ir_builder import F32, I1, I8, I16, I32, I64, PTR, Code, Value, constant, lanes_of, like, vector
from ..library import library
from ..target import CpuTarget, current_target
from .filter_gradient_sums import SUM
from .filter_packing import pack_phase, panels_size, zeros_size
from .function_builder import Signature, call_epilogue, split
from .shape import SWEEP_WORDS, FilterView, Sweep, whole_lines
from .sweep import HEAD, PixelCursor, SweepPhase, phases, prepare, record_words
from .sweep_plan import SweepOperands

_PIXELS = 4  # of a tile
_CHUNKS = 16  # of a filter gradient, at the most

SWEEP = Signature(
    ("x", "packed", "y", "work", "epilogue", "context"),
    ("tid", "threads", "panels", "scratch", "scratch_size", *SWEEP_WORDS),
)
FILTER = Signature(
    ("x", "g", "work"),
    (
        "tid", "threads", "partial", "batch", "channels", "lines", "chunks",  # lines of g of a chunk
        *(f"{i}_{word}" for i in "zyx" for word in ("inside", "outside", "kernel", "step", "before", "move")),
    ),
)  # fmt: skip


# --- plans ----------------------------------------------------------------------------------------------------------------


def packed_sweep(sweep: Sweep) -> Sweep:
    """The sweep for the packing functions: one group, whose output channels are all channels."""
    view = FilterView(sweep.filter.base, 0, sweep.filter.group, 0, sweep.filter.taps)
    return replace(sweep, groups=1, outputs=sweep.groups, filter=view)


def pack_phases(sweep: Sweep, target: CpuTarget, into: str) -> list[PlanPhase]:
    """A row of zeros for all channels; then panels of one vector of channels."""
    zeros = zeros_size(sweep)
    return [pack_phase(packed_sweep(sweep), (0, sweep.groups), target.lanes(32), zeros, into, zeros)]


def packed_size(sweep: Sweep, target: CpuTarget) -> int:
    """In floats."""
    return zeros_size(sweep) + panels_size(packed_sweep(sweep), sweep.groups, target.lanes(32))


def sweep_plan(
    name: str, sweep: Sweep, threads: int, target: CpuTarget, names: SweepOperands, prepacked: bool = False
) -> Plan:
    scratch = 0 if prepacked else whole_lines(4 * packed_size(sweep, target))
    found = [] if prepacked else pack_phases(sweep, target, names.packed)
    size = whole_lines(8 * record_words(_PIXELS, sweep.most_taps))
    numbers = {
        **sweep.numbers, "panels": zeros_size(sweep), "scratch": scratch, "scratch_size": size,
    }  # fmt: skip
    pointers = {"x": names.source, "packed": names.packed, "y": names.result}
    reads, writes = [names.source, names.packed], [names.result, "work"]
    found.append(SWEEP.phase(f"conv_depth.{sweep.kind.split()[0]}", pointers, numbers, reads=reads, writes=writes))
    return Plan(name, tuple(found), scratch + threads * size, sweep.flops)


def filter_plan(name: str, shape: ConvShape) -> Plan:
    lifted = shape.lifted
    lines = shape.batch * lifted.out[0] * lifted.out[1]
    chunks = max(1, min(_CHUNKS, lines * lifted.out[2] // thresholds.depthwise_chunk, lines))
    a_chunk = max(1, -(-lines // chunks))
    chunks, rows = max(1, -(-lines // a_chunk)), prod(shape.kernel)
    numbers = {"partial": 0, "batch": shape.batch, "channels": shape.channels, "lines": a_chunk, "chunks": chunks}
    for i, letter in enumerate("zyx"):
        facts = (lifted.spatial, lifted.out, lifted.kernel, lifted.stride, lifted.padding, lifted.dilation)
        words = ("inside", "outside", "kernel", "step", "before", "move")
        numbers |= {f"{letter}_{word}": fact[i] for word, fact in zip(words, facts, strict=True)}
    sums = {"partial": 0, "rows": rows, "columns": shape.channels, "chunks": chunks}
    found = (
        FILTER.phase("conv_depth_filter", {}, numbers, reads=["x", "g"], writes=["work"]),
        SUM.phase("conv_sum", {}, sums, reads=["work"], writes=["w"]),
    )
    return Plan(name, found, whole_lines(4 * chunks * rows * shape.channels), shape.flops)


# --- native code ----------------------------------------------------------------------------------------------------------


_ELEMENTS = {"f32": F32, "s8": I8, "u8": I8}  # of the source


def _add_product(code: Code, kind: str, pixel: Value, weight: Value, total: Value) -> Value:
    """Add the product of a pixel and a weight. A weight has 8 bits too: products of 16-bit integers are fast."""
    if kind == "f32":
        return code.fma(pixel, weight, total)
    wide = code.sext(pixel, weight.type) if kind == "s8" else code.zext(pixel, weight.type)
    weight = code.sext(code.trunc(weight, like(weight.type, I16)), weight.type)
    return code.add(total, code.mul(wide, weight))


def _vectors() -> int:
    """Vectors of channels of a tile, such that its accumulators and a vector of the filter stay in registers."""
    return {8: 1, 16: 3, 32: 4}[current_target().registers]


def _each_width(code: Code, begin: Value, end: Value, lanes: int, body: Callable[[Value, int, int], None]) -> None:
    """body(channel, vectors, lanes) over some channels: first several vectors at a time, then one vector, then one channel."""
    for vectors, width in ((_vectors(), lanes), (1, lanes), (1, 1)):
        size = vectors * width
        stop = code.plus(begin, code.times(code.sdiv(code.sub(end, begin), code.i64(size)), size))
        with code.loop(begin, stop, size) as channel:
            body(channel, vectors, width)
        begin = stop


@library("conv_depth")
def _make(symbol: str) -> ir.Module:
    """conv_depth.TYPE: a sweep over pixels of float32, int8 or uint8; filters are of 32 bits."""
    kind = symbol.split(".")[1]
    code, a = SWEEP.begin(symbol)
    record = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
    with phases(code, a) as phase:
        tiles = code.ceil_div(phase.pixels, _PIXELS)
        first, last = code.share(tiles, a.tid, a.threads)
        walk = PixelCursor(code, a, phase, code.i64(0))
        with code.if_then(code.icmp_signed("<", first, last)):
            walk.seek(code.times(first, _PIXELS))
        with code.loop(first, last) as tile:
            keep_all = ir.Constant(I1, kind != "f32")  # a border of integers need not be 0
            prepare(code, walk, _PIXELS, record, a.x, a.packed, keep_all, _ELEMENTS[kind])
            filters = code.at(a.packed, code.plus(a.panels, code.times(phase.before, current_target().lanes(32))), F32)
            valid = code.minimum(_PIXELS, code.sub(phase.pixels, code.times(tile, _PIXELS)))

            def block(channel: Value, vectors: int, lanes: int, filters: Value = filters, valid: Value = valid) -> None:
                _block(code, a, kind, record, filters, channel, valid, vectors, lanes)

            _each_width(code, code.i64(0), a.groups, current_target().lanes(32), block)
            _finished(code, a, phase, record, code.times(tile, _PIXELS), valid)
    code.done()
    return code.module


def _block(
    code: Code,
    a: SimpleNamespace,
    kind: str,
    record: Value,
    filters: Value,
    channel: Value,
    valid: Value,
    vectors: int,
    lanes: int,
) -> None:
    """Some vectors of channels of a tile."""
    type, whole = vector(F32 if kind == "f32" else I32, lanes), current_target().lanes(32)
    taps = code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel)
    first, lane = split(code, channel, whole)

    def tap(s: Value, values: list[Value]) -> list[Value]:
        here = code.at(record, code.plus(code.times(s, _PIXELS + 1), HEAD + _PIXELS), I64)
        pointers = [code.read(here, 1 + i, PTR) for i in range(_PIXELS)]
        row = code.times(code.read(here, 0, I64), whole)
        for v in range(vectors):
            panel = code.times(code.mul(code.plus(first, v), taps), whole)
            weight = code.read(filters, code.plus(panel, row, lane), type)
            for i, pointer in enumerate(pointers):
                pixel = code.read(pointer, code.plus(channel, v * lanes), vector(_ELEMENTS[kind], lanes))
                values[i * vectors + v] = _add_product(code, kind, pixel, weight, values[i * vectors + v])
        return values

    sums = code.loop_carrying(0, code.read(record, 0, I64), [constant(type, 0.0)] * (vectors * _PIXELS), tap)
    for i in range(_PIXELS):
        with code.if_then(code.icmp_signed("<", code.i64(i), valid)):
            row = code.plus(code.mul(code.read(record, HEAD + i, I64), a.groups), channel)
            for v in range(vectors):
                code.write(sums[i * vectors + v], a.y, code.plus(row, v * lanes))


def _finished(code: Code, a: SimpleNamespace, phase: SweepPhase, record: Value, pixel: Value, valid: Value) -> None:
    """Call the epilogue of a tile: once where its pixels are contiguous, else pixel by pixel."""
    one = code.icmp_signed("==", code.mul(code.mul(a.z_phases, a.y_phases), a.x_phases), code.i64(1))
    with code.if_else(one) as (then, otherwise):
        with then:
            call_epilogue(code, a, (pixel, code.plus(pixel, valid)), (0, a.groups))
        with otherwise, code.loop(0, valid) as i:
            out = code.read(record, code.plus(i, HEAD), I64)
            call_epilogue(code, a, (out, code.plus(out, 1)), (0, a.groups))


@library("conv_depth_filter")
def _make_filter(symbol: str) -> ir.Module:
    """conv_depth_filter: the sums of each chunk of lines of g, one matrix (taps x channels) after the other."""
    code, a = FILTER.begin(symbol)
    lanes = current_target().lanes(32)
    lines = code.mul(code.mul(a.batch, a.z_outside), a.y_outside)
    blocks = code.ceil_div(a.channels, _vectors() * lanes)
    first, last = code.share(code.mul(a.chunks, blocks), a.tid, a.threads)
    with code.loop(first, last) as unit:
        # All taps of a few channels, whose pixels stay in the L1 cache.
        chunk, block = split(code, unit, blocks)
        begin, channel = code.mul(chunk, a.lines), code.times(block, _vectors() * lanes)
        end, last_channel = (
            code.minimum(n, code.plus(b, size))
            for n, b, size in ((lines, begin, a.lines), (a.channels, channel, _vectors() * lanes))
        )
        with code.loop(0, a.z_kernel) as z, code.loop(0, a.y_kernel) as y, code.loop(0, a.x_kernel) as x:
            tap = code.plus(code.mul(code.plus(code.mul(z, a.y_kernel), y), a.x_kernel), x)
            taps = code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel)
            target = code.mul(code.plus(code.mul(chunk, taps), tap), a.channels)
            sums = _Sums(code, a, begin, end, (z, y, x), code.at(code.at(a.work, a.partial, I8), target, F32))
            _each_width(code, channel, last_channel, lanes, sums.write)
    code.done()
    return code.module


class _Sums:
    """The sums of one tap over the lines of a chunk."""

    def __init__(
        self, code: Code, a: SimpleNamespace, begin: Value, end: Value, tap: tuple[Value, Value, Value], target: Value
    ) -> None:
        self.code, self.a, self.begin, self.end, self.target = code, a, begin, end, target
        z, y, x = tap
        self.dz = code.sub(code.mul(z, a.z_move), a.z_before)
        self.dy = code.sub(code.mul(y, a.y_move), a.y_before)
        self.dx = code.sub(code.mul(x, a.x_move), a.x_before)
        # The pixels p of a line with 0 <= p * step + dx < inside.
        self.lo = code.maximum(0, code.sdiv(code.plus(code.sub(a.x_step, self.dx), -1), a.x_step))
        beyond = code.maximum(0, code.sub(a.x_inside, self.dx))
        self.hi = code.minimum(a.x_outside, code.sdiv(code.plus(beyond, a.x_step, -1), a.x_step))

    def write(self, channel: Value, vectors: int, lanes: int) -> None:
        code, a = self.code, self.a
        place = split(code, self.begin, a.z_outside, a.y_outside)

        def line(index: Value, values: list[Value]) -> list[Value]:
            n, z, y = values[vectors:]
            sums = self._line(index, n, z, y, channel, values[:vectors])
            down, over_y = self._next(code.plus(y, 1), a.y_outside)
            deep, over_z = self._next(code.plus(z, code.zext(over_y, I64)), a.z_outside)
            return [*sums, code.plus(n, code.zext(over_z, I64)), deep, down]

        zeros = [constant(vector(F32, lanes), 0.0)] * vectors
        for v, value in enumerate(code.loop_carrying(self.begin, self.end, zeros + place, line)[:vectors]):
            code.write(value, self.target, code.plus(channel, v * lanes))

    def _next(self, value: Value, limit: Value) -> tuple[Value, Value]:
        over = self.code.icmp_signed("==", value, limit)
        return self.code.select(over, self.code.i64(0), value), over

    def _line(self, line: Value, n: Value, z: Value, y: Value, channel: Value, sums: list[Value]) -> list[Value]:
        """Add the products of one line of g with the line of x that the tap meets, if there is one."""
        code, a = self.code, self.a
        zi, yi = code.plus(code.mul(z, a.z_step), self.dz), code.plus(code.mul(y, a.y_step), self.dy)
        inside = code.and_(code.icmp_unsigned("<", zi, a.z_inside), code.icmp_unsigned("<", yi, a.y_inside))
        hi = code.select(inside, self.hi, self.lo)
        x_line = code.plus(code.mul(code.plus(code.mul(n, a.z_inside), zi), a.y_inside), yi)
        source = code.plus(code.mul(code.plus(code.mul(x_line, a.x_inside), self.dx), a.channels), channel)
        x = code.gep(a.x, [source], source_etype=F32)  # not inbounds: it may begin before the line
        g = code.at(a.g, code.plus(code.mul(code.mul(line, a.x_outside), a.channels), channel), F32)
        step = code.mul(a.x_step, a.channels)

        def add(p: Value, values: list[Value]) -> list[Value]:
            for v, value in enumerate(values):
                at = v * lanes_of(value.type)
                left = code.read(x, code.plus(code.mul(p, step), at), value.type)
                right = code.read(g, code.plus(code.mul(p, a.channels), at), value.type)
                values[v] = code.fma(left, right, value)
            return values

        return code.loop_carrying(self.lo, hi, sums, add)
