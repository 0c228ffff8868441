"""Depthwise convolutions of float32, forward and data gradient: line after line of the result, vectors along the channels.

For a line of the result a thread notes once which taps meet the source, and where (see shape.py for phases and taps); all pixels of the
line whose taps lie inside the source then share these notes. Tiles of pixels and vectors of channels are summed tap by tap in registers.
Pixels at the border are computed one by one, and read zeros in place of the padding. The epilogue is called once a line, also where
the phases of a data gradient with a stride compute every second pixel of it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from llvmlite import ir

from ...ir.plan import PlanPhase
from ..ir_builder import F32, I8, I64, Code, Int, Value, constant, vector
from ..library import library
from ..target import CpuTarget, current_target
from .filter_packing import zeros_size
from .function_builder import Signature, all_of, below, call_epilogue, numbers, split
from .shape import SWEEP_WORDS, Sweep, whole_lines
from .sweep import axis_phase
from .sweep_plan import SweepOperands

_PIXELS = 4  # of a tile
_UNITS = 4  # for each thread: enough for even shares
_PHASE = ("count", "start", "first_out", "first_in", "pixels", "low", "high")  # words of a phase of an axis
_TAP = (
    "source",
    "weights",
    "x",
)  # words of a tap of a line: its offset in the source and in a panel, in floats, and its x

LINES = Signature(
    ("x", "packed", "y", "work", "epilogue", "context"),
    ("tid", "threads", "panels", "scratch", "scratch_size", "strip", *SWEEP_WORDS),
)


def vectors_of(target: CpuTarget) -> int:
    """Vectors of channels of a tile, such that its accumulators and a vector of the filter stay in registers."""
    return {8: 1, 16: 3, 32: 4}[target.registers]


def notes_size(sweep: Sweep) -> int:
    """The bytes of a thread's notes: the phases of the axes, and the taps of a line."""
    phases = sum(axis.phases for axis in sweep.axes)
    return whole_lines(8 * (len(_PHASE) * phases + len(_TAP) * sweep.most_taps))


def lines_phase(sweep: Sweep, threads: int, target: CpuTarget, names: SweepOperands, scratch: int) -> PlanPhase:
    """The sweep, with the filter packed in panels of one vector of channels."""
    lines = sweep.batch * sweep.axes[0].outside * sweep.axes[1].outside
    block = vectors_of(target) * target.lanes(32)
    strips = max(1, min(-(-sweep.groups // block), -(-_UNITS * threads // max(1, lines))))
    own = {
        "panels": zeros_size(sweep), "scratch": scratch, "scratch_size": notes_size(sweep),
        "strip": -(-sweep.groups // (strips * block)) * block,
    }  # fmt: skip
    pointers = {"x": names.source, "packed": names.packed, "y": names.result}
    reads, writes = [names.source, names.packed], [names.result, "work"]
    return LINES.phase("conv_depth_lines", pointers, sweep.numbers | own, reads=reads, writes=writes)


def each_width(code: Code, begin: Value, end: Value, vectors: int, body: Callable[[Value, int, int], None]) -> None:
    """body(channel, vectors, lanes) over some channels: first several vectors at a time, then one vector, then narrower ones."""
    lanes = current_target().lanes(32)
    sizes = [(count, lanes) for count in (vectors, 2) if 1 < count <= vectors]
    sizes = [*dict.fromkeys(sizes), *((1, lanes >> i) for i in range(lanes.bit_length()))]
    for count, width in sizes:
        size = count * width
        stop = code.plus(begin, code.and_(code.sub(end, begin), code.i64(-size))) if not size & (size - 1) else None
        if stop is None:
            stop = code.plus(begin, code.times(code.sdiv(code.sub(end, begin), code.i64(size)), size))
        with code.loop(begin, stop, size) as channel:
            body(channel, count, width)
        begin = stop


@library("conv_depth_lines")
def _make(symbol: str) -> ir.Module:
    code, a = LINES.begin(symbol)
    _LineSweep(code, a).write()
    code.done()
    return code.module


class _LineSweep:
    """Emits the function."""

    def __init__(self, code: Code, a: SimpleNamespace) -> None:
        self.code, self.a, self.lanes = code, a, current_target().lanes(32)
        own = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
        self.axes: dict[str, Value] = {}  # the notes of each axis
        for letter in "zyx":
            self.axes[letter] = own
            own = code.at(own, code.times(getattr(a, f"{letter}_phases"), len(_PHASE)), I64)
        self.taps, self.found = own, numbers(code, 1)
        self.all_taps = code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel)

    def write(self) -> None:
        code, a = self.code, self.a
        for letter in "zyx":
            self._note_phases(letter)
        lines = code.mul(code.mul(a.batch, a.z_outside), a.y_outside)
        strips = code.sdiv(code.plus(a.groups, a.strip, -1), a.strip)
        first, last = code.share(code.mul(lines, strips), a.tid, a.threads)
        with code.loop(first, last) as unit:
            line, strip = split(code, unit, strips)
            begin = code.mul(strip, a.strip)
            channels = begin, code.minimum(code.plus(begin, a.strip), a.groups)
            with code.loop(0, a.x_phases) as phase:
                self._line(line, phase, channels)
            pixels = code.mul(line, a.x_outside), code.mul(code.plus(line, 1), a.x_outside)
            call_epilogue(code, a, pixels, channels)

    # --- notes ----------------------------------------------------------------------------------------------------------

    def _note_phases(self, letter: str) -> None:
        """Write the words of all phases of an axis; `low` to `high` are the pixels whose taps all lie inside the source."""
        code, a = self.code, self.a
        with code.loop(0, getattr(a, f"{letter}_phases")) as r:
            p = axis_phase(code, a, letter, r)
            low = code.minimum(p.pixels, code.maximum(0, self._ceil_div(code.sub(code.i64(0), p.first_in), p.step)))
            extent = code.mul(code.plus(p.count, -1), p.move)
            inside = code.sub(p.inside, code.plus(p.first_in, extent))
            high = code.maximum(low, code.minimum(p.pixels, self._ceil_div(inside, p.step)))
            none = code.icmp_signed("==", p.count, code.i64(0))
            words = (
                p.count, p.start, p.first_out, p.first_in, p.pixels,
                code.select(none, code.i64(0), low), code.select(none, p.pixels, high),
            )  # fmt: skip
            for i, word in enumerate(words):
                code.write(word, self.axes[letter], code.plus(code.times(r, len(_PHASE)), i))

    def _ceil_div(self, a: Value, b: Value) -> Value:
        """a / b rounded up; 0 if a is negative."""
        code = self.code
        return code.sdiv(code.plus(code.maximum(0, a), b, -1), b)

    def _phase(self, letter: str, r: Value) -> SimpleNamespace:
        words = {
            name: self.code.read(self.axes[letter], self.code.plus(self.code.times(r, len(_PHASE)), i), I64)
            for i, name in enumerate(_PHASE)
        }
        rest = {name: getattr(self.a, f"{letter}_{name}") for name in ("phases", "step", "inside", "kernel")}
        move = self.code.sdiv(getattr(self.a, f"{letter}_dilation"), getattr(self.a, f"{letter}_common"))
        return SimpleNamespace(**words, **rest, move=move)

    def _phase_at(self, letter: str, out: Value) -> tuple[SimpleNamespace, Value]:
        """The phase of an index of the result along an axis, and where its first tap meets the source."""
        code, phases = self.code, getattr(self.a, f"{letter}_phases")
        rest = code.srem(code.plus(out, getattr(self.a, f"{letter}_reach")), phases)
        found = self._phase(
            letter, code.select(code.icmp_signed("<", rest, code.i64(0)), code.plus(rest, phases), rest)
        )
        index = code.sdiv(code.sub(out, found.first_out), phases)
        return found, code.plus(found.first_in, code.mul(index, found.step))

    def _note_taps(self, line: Value, x: SimpleNamespace) -> Value:
        """Write the taps that a line meets inside the source, and return where the filters of its phase begin in a panel, in floats."""
        code, a = self.code, self.a
        n, z_out, y_out = split(code, line, a.z_outside, a.y_outside)
        (z, z_in), (y, y_in) = self._phase_at("z", z_out), self._phase_at("y", y_out)
        code.write(code.i64(0), self.found, 0)
        with code.loop(0, z.count) as tz, code.loop(0, y.count) as ty:
            z_at, y_at = code.plus(z_in, code.mul(tz, z.move)), code.plus(y_in, code.mul(ty, y.move))
            with code.if_then(all_of(code, below(code, z_at, a.z_inside), below(code, y_at, a.y_inside))):
                place = code.plus(code.mul(code.plus(code.mul(n, a.z_inside), z_at), a.y_inside), y_at)
                place = code.mul(code.mul(place, a.x_inside), a.groups)
                row = code.mul(code.plus(code.mul(tz, y.count), ty), x.count)
                with code.loop(0, x.count) as tx:
                    found, move = code.read(self.found, 0, I64), code.mul(tx, x.move)
                    words = (
                        code.plus(place, code.mul(move, a.groups)), code.times(code.plus(row, tx), self.lanes), move,
                    )  # fmt: skip
                    for i, word in enumerate(words):
                        code.write(word, self.taps, code.plus(code.times(found, len(_TAP)), i))
                    code.write(code.plus(found, 1), self.found, 0)
        before = code.plus(
            code.mul(code.mul(z.start, a.y_kernel), a.x_kernel),
            code.mul(code.mul(z.count, y.start), a.x_kernel),
            code.mul(code.mul(z.count, y.count), x.start),
        )
        return code.times(before, self.lanes)

    # --- pixels ---------------------------------------------------------------------------------------------------------

    def _line(self, line: Value, phase: Value, channels: tuple[Value, Value]) -> None:
        """All pixels of one phase of a line."""
        code, a = self.code, self.a
        x = self._phase("x", phase)
        filters = code.at(a.packed, code.plus(a.panels, self._note_taps(line, x)), F32)
        taps = code.read(self.found, 0, I64)
        result = code.plus(code.mul(line, a.x_outside), x.first_out)

        def tile(pixel: Value, count: int, at_border: bool) -> None:
            where = code.plus(x.first_in, code.mul(pixel, x.step))
            target = code.mul(code.plus(result, code.mul(pixel, x.phases)), a.groups)

            def block(channel: Value, vectors: int, lanes: int) -> None:
                sums = self._sums(x, filters, taps, where, channel, (count, vectors, lanes), at_border)
                for i in range(count):
                    row = code.plus(target, code.times(code.mul(x.phases, a.groups), i), channel)
                    for v in range(vectors):
                        code.write(sums[i * vectors + v], a.y, code.plus(row, v * lanes))

            each_width(code, *channels, vectors_of(current_target()), block)

        tiles_end = code.plus(x.low, code.and_(code.sub(x.high, x.low), code.i64(-_PIXELS)))
        for begin, end, count in ((code.i64(0), x.low, 1), (x.low, tiles_end, _PIXELS), (tiles_end, x.pixels, 1)):
            with code.loop(begin, end, count) as pixel:
                tile(pixel, count, count == 1)

    def _sums(
        self, x: SimpleNamespace, filters: Value, taps: Value, where: Value, channel: Value, tile: tuple[int, int, int], at_border: bool
    ) -> list[Value]:  # fmt: skip
        """The sums of a tile of (pixels, vectors, lanes), the pixels one after the other."""
        code, a, (pixels, vectors, lanes) = self.code, self.a, tile
        type = vector(F32, lanes)
        first, lane = split(code, channel, self.lanes)
        panels = [code.mul(code.plus(first, v), code.times(self.all_taps, self.lanes)) for v in range(vectors)]
        start, apart = code.plus(code.mul(where, a.groups), channel), code.mul(x.step, a.groups)

        def add(tap: Value, sums: list[Value]) -> list[Value]:
            source, weights, move = (
                code.read(self.taps, code.plus(code.times(tap, len(_TAP)), i), I64) for i in range(len(_TAP))
            )
            # Not inbounds: the address of a pixel in the padding is never used.
            place = code.gep(a.x, [code.plus(start, source)], source_etype=F32)
            if at_border:
                inside = below(code, code.plus(where, move), a.x_inside)
                place = code.select(inside, place, code.at(a.packed, channel, F32))
            for v in range(vectors):
                weight = code.read(filters, code.plus(panels[v], weights, lane), type)
                for i in range(pixels):
                    at: Int = code.plus(code.times(apart, i), v * lanes)
                    sums[i * vectors + v] = code.fma(code.read(place, at, type), weight, sums[i * vectors + v])
            return sums

        zeros = [constant(type, 0.0)] * (pixels * vectors)
        return code.loop_carrying(0, taps, zeros, add)
