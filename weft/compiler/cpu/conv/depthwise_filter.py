"""Filter gradients of depthwise convolutions: every tap of a channel sums x times g over all pixels; vectors run along the channels.

The lines of g are cut into chunks by the shape alone, and the sums of chunks are added in order. For each line of g and each row of
taps, all taps of the row (or a group of them) are summed in registers while the line passes once; a line's sums are then added to
those of its chunk, so that long sums are sums of short ones.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

from llvmlite import ir

from ...ir.conv_shape import ConvShape
from ...ir.plan import Plan
from ...thresholds import thresholds
from ..ir_builder import F32, I8, Code, Value, constant, vector
from ..library import library
from ..target import current_target
from .depthwise_lines import each_width
from .filter_gradient_sums import SUM
from .function_builder import Signature, all_of, below, fill, split
from .shape import whole_lines

_CHUNKS = 16  # at the most
_MOST_TAPS = 7  # of a row that are summed together
_ACCUMULATORS = {8: 4, 16: 9, 32: 16}  # by the registers of the CPU

FILTER = Signature(
    ("x", "g", "work"),
    (
        "tid", "threads", "partial", "batch", "channels", "lines", "chunks",  # lines of g of a chunk
        *(f"{i}_{word}" for i in "zyx" for word in ("inside", "outside", "kernel", "step", "before", "move")),
    ),
)  # fmt: skip


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
    group = taps_together(lifted.kernel[2])
    found = (
        FILTER.phase(f"conv_depth_filter.{group}", {}, numbers, reads=["x", "g"], writes=["work"]),
        SUM.phase("conv_sum", {}, sums, reads=["work"], writes=["w"]),
    )
    return Plan(name, found, whole_lines(4 * chunks * rows * shape.channels), shape.flops)


def taps_together(taps: int) -> int:
    """The taps of a row that are summed together: all, or groups of nearly equal size."""
    most = min(_MOST_TAPS, max(1, thresholds.row_taps))
    return -(-taps // -(-taps // most))


@library("conv_depth_filter")
def _make(symbol: str) -> ir.Module:
    """conv_depth_filter.TAPS: the sums of each chunk of lines of g, one matrix (taps x channels) after the other."""
    code, a = FILTER.begin(symbol)
    taps, target = int(symbol.split(".")[1]), current_target()
    vectors = max(1, min(4, _ACCUMULATORS[target.registers] // taps))
    size = code.i64(vectors * target.lanes(32))
    lines = code.mul(code.mul(a.batch, a.z_outside), a.y_outside)
    blocks = code.sdiv(code.plus(a.channels, size, -1), size)
    first, last = code.share(code.mul(a.chunks, blocks), a.tid, a.threads)
    with code.loop(first, last) as unit:
        chunk, block = split(code, unit, blocks)
        begin, channel = code.mul(chunk, a.lines), code.mul(block, size)
        channels = channel, code.minimum(a.channels, code.plus(channel, size))
        _ChunkSums(code, a, chunk, channels, taps, vectors).write(begin, code.minimum(lines, code.plus(begin, a.lines)))
    code.done()
    return code.module


class _ChunkSums:
    """The sums of a chunk of lines for some channels."""

    def __init__(
        self, code: Code, a: SimpleNamespace, chunk: Value, channels: tuple[Value, Value], taps: int, vectors: int
    ) -> None:
        self.code, self.a, self.channels, self.taps, self.vectors = code, a, channels, taps, vectors
        self.all_taps = code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel)
        place = code.mul(code.mul(chunk, self.all_taps), a.channels)
        self.sums = code.at(code.at(a.work, a.partial, I8), place, F32)

    def write(self, begin: Value, end: Value) -> None:
        code, a = self.code, self.a
        with code.loop(0, self.all_taps) as tap:
            target = code.at(self.sums, code.plus(code.mul(tap, a.channels), self.channels[0]), F32)
            fill(code, target, code.sub(self.channels[1], self.channels[0]))
        with code.loop(begin, end) as line:
            n, z, y = split(code, line, a.z_outside, a.y_outside)
            with code.loop(0, a.z_kernel) as tz, code.loop(0, a.y_kernel) as ty:
                zi = code.plus(code.mul(z, a.z_step), code.sub(code.mul(tz, a.z_move), a.z_before))
                yi = code.plus(code.mul(y, a.y_step), code.sub(code.mul(ty, a.y_move), a.y_before))
                with code.if_then(all_of(code, below(code, zi, a.z_inside), below(code, yi, a.y_inside))):
                    source = code.plus(code.mul(code.plus(code.mul(n, a.z_inside), zi), a.y_inside), yi)
                    row = code.plus(code.mul(tz, a.y_kernel), ty)
                    with code.loop(0, a.x_kernel, self.taps) as tap:
                        self._row(line, source, row, tap)

    def _row(self, line: Value, source: Value, row: Value, tap: Value) -> None:
        """Add the products of a line of g with a line of x, for a group of taps of a row that begins with `tap`."""
        code, a = self.code, self.a
        start = code.sub(code.mul(tap, a.x_move), a.x_before)  # where the first tap of the first pixel meets the line
        extent = code.times(a.x_move, self.taps - 1)
        # The pixels whose taps all lie inside the line: 0 <= p * step + start and p * step + start + extent < inside.
        low = code.minimum(a.x_outside, self._ceil_div(code.sub(code.i64(0), start)))
        high = self._ceil_div(code.sub(a.x_inside, code.plus(start, extent)))
        high = code.maximum(low, code.minimum(a.x_outside, high))
        g = code.mul(code.mul(line, a.x_outside), a.channels)
        x = code.mul(code.plus(code.mul(source, a.x_inside), start), a.channels)
        target = code.mul(code.plus(code.mul(row, a.x_kernel), tap), a.channels)

        def block(channel: Value, vectors: int, lanes: int) -> None:
            places = code.plus(g, channel), code.plus(x, channel)
            sums = [constant(vector(F32, lanes), 0.0)] * (self.taps * vectors)
            for first, last, inside in ((0, low, None), (low, high, True), (high, a.x_outside, None)):

                def add(pixel: Value, sums: list[Value], inside: bool | None = inside) -> list[Value]:
                    return self._pixel(pixel, sums, places, tap, start, (vectors, lanes), bool(inside))

                sums = code.loop_carrying(first, last, sums, add)
            self._add(sums, code.plus(target, channel), tap, vectors, lanes)

        each_width(code, *self.channels, self.vectors, block)

    def _ceil_div(self, a: Value) -> Value:
        """a / step rounded up; 0 if a is negative."""
        code, step = self.code, self.a.x_step
        return code.sdiv(code.plus(code.maximum(0, a), step, -1), step)

    def _pixel(
        self, pixel: Value, sums: list[Value], places: tuple[Value, Value], tap: Value, start: Value, shape: tuple[int, int], inside: bool
    ) -> list[Value]:  # fmt: skip
        """Add the products of a pixel of g with the pixels of x that the taps meet; at the border only with those that exist."""
        code, a, (vectors, lanes) = self.code, self.a, shape
        type = vector(F32, lanes)
        g = code.gep(a.g, [code.plus(places[0], code.mul(pixel, a.channels))], source_etype=F32)
        where = code.mul(pixel, a.x_step)
        # Not inbounds: it may begin before the line.
        x = code.gep(a.x, [code.plus(places[1], code.mul(where, a.channels))], source_etype=F32)
        factors = [code.read(g, v * lanes, type) for v in range(vectors)]
        for t in range(self.taps):
            there = code.gep(x, [code.i64(code.times(code.mul(a.x_move, a.channels), t))], source_etype=F32)
            if not inside:
                at = code.plus(start, where, code.times(a.x_move, t))
                exists = all_of(code, below(code, at, a.x_inside), code.icmp_signed("<", code.plus(tap, t), a.x_kernel))
                there = code.select(exists, there, g)  # any that can be read
            for v in range(vectors):
                before = sums[t * vectors + v]
                product = code.fma(code.read(there, v * lanes, type), factors[v], before)
                sums[t * vectors + v] = product if inside else code.select(exists, product, before)
        return sums

    def _add(self, sums: list[Value], target: Value, tap: Value, vectors: int, lanes: int) -> None:
        """Add the sums of a line to those of the chunk; the last group of taps may have fewer."""
        code, a, type = self.code, self.a, vector(F32, lanes)
        for t in range(self.taps):
            with code.if_then(code.icmp_signed("<", code.plus(tap, t), a.x_kernel)):
                for v in range(vectors):
                    at = code.plus(target, code.times(a.channels, t), v * lanes)
                    code.write(code.fadd(code.read(self.sums, at, type), sums[t * vectors + v]), self.sums, at)
