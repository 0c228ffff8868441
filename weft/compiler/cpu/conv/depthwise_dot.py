"""Depthwise convolutions of int8 by dot products: four taps of a channel are one word of 32 bits.

The vectors of four taps (16 channels each) are interleaved into words, whose dot products with four weights are added to int32. A multiply-add that widens would do
fewer products in a cycle. Filters of three columns need the words of a row of taps twice where the stride is 1: for two neighbours of the result,

    columns x, x + 1, x + 2, x + 3    times    w0 w1 w2 0    and    0 w0 w1 w2

Tiles of pixels whose taps all lie inside of the image need no record of pointers (see sweep.py): the places of their taps differ by constants.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from llvmlite import ir

from ...ir.plan import Plan, PlanPhase
from ..gemm.arithmetic import WORD
from ..ir_builder import I1, I8, I16, I32, I64, Code, Value, constant, vector
from ..library import library
from ..target import CpuTarget
from .function_builder import Signature, all_of, below, call_epilogue, fill, numbers, split
from .shape import SWEEP_WORDS, Sweep, whole_lines
from .sweep import HEAD, PixelCursor, phases, read_address, record_words, take_pixels, write_segments
from .sweep_plan import SweepOperands

PIXELS = 4  # of a tile
CHANNELS = 16  # of a block: the bytes of a vector
_QUADS = CHANNELS // WORD
_MOST_TAPS = 128  # whose offsets are on the stack

PACK = Signature(("w", "packed"), ("tid", "threads", "border", "zeros", "channels", "taps", "groups", "rows"))
SWEEP = Signature(
    ("x", "packed", "y", "work", "epilogue", "context"),
    ("tid", "threads", "panels", "scratch", "scratch_size", "sums", "streamed", *SWEEP_WORDS),
)
Pointer = Callable[[Value, int], Value]  # (tap, pixel) -> where its channels begin


# --- plans ------------------------------------------------------------------------------------------------------------------


def applies(sweep: Sweep, target: CpuTarget) -> bool:
    return sweep.kind == "s8" and target.dot == "dotprod" and sweep.groups >= CHANNELS and sweep.taps <= _MOST_TAPS


def by_rows(sweep: Sweep) -> bool:
    """Whether neighbours of the result share the words of a row of taps; they are pairs in rows of even length."""
    axis = sweep.axes[2]
    return axis.kernel == 3 and axis.step == axis.dilation == 1 and axis.outside % 2 == 0


def word_groups(sweep: Sweep) -> int:
    """The words of weights of a channel."""
    return 2 * sweep.taps // 3 if by_rows(sweep) else -(-sweep.taps // WORD)


def packed_bytes(sweep: Sweep) -> int:
    return _border_bytes(sweep) + whole_lines(word_groups(sweep) * sweep.groups * WORD)


def _border_bytes(sweep: Sweep) -> int:
    return whole_lines(sweep.groups)


def pack_phase(sweep: Sweep, into: str) -> PlanPhase:
    """A row of the border, then for each word the weights of all channels."""
    words = {
        "border": (sweep.border & 0xFF) * 0x01010101, "zeros": _border_bytes(sweep), "channels": sweep.groups, "taps": sweep.taps,
        "groups": word_groups(sweep), "rows": int(by_rows(sweep)),
    }  # fmt: skip
    return PACK.phase("conv_depth_dot_pack.s8", {"packed": into}, words, reads=["w"], writes=[into])


def sweep_plan(sweep: Sweep, threads: int, names: SweepOperands, prepacked: bool, streamed: bool) -> Plan:
    scratch = 0 if prepacked else packed_bytes(sweep)
    found = [] if prepacked else [pack_phase(sweep, names.packed)]
    record = whole_lines(8 * record_words(PIXELS, sweep.taps))
    size = record + whole_lines(4 * PIXELS * sweep.groups) * streamed
    words = {
        **sweep.numbers, "panels": _border_bytes(sweep), "scratch": scratch, "scratch_size": size, "sums": record,
        "streamed": int(streamed),
    }  # fmt: skip
    pointers = {"x": names.source, "packed": names.packed, "y": "work" if streamed else names.result}
    symbol = f"conv_depth_dot.{'rows' if by_rows(sweep) else 'taps'}"
    reads, writes = [names.source, names.packed, "context"], ["work"] if streamed else [names.result, "work"]
    found.append(SWEEP.phase(symbol, pointers, words, reads=reads, writes=writes))
    return Plan("DIRECT", tuple(found), scratch + threads * size, sweep.flops, hidden=streamed)


# --- native code ------------------------------------------------------------------------------------------------------------


@library("conv_depth_dot_pack")
def _make_pack(symbol: str) -> ir.Module:
    """conv_depth_dot_pack.s8: words of four taps; with `rows` two words for each row of three taps, the second one shifted by one.

    Filters are int32, as all depthwise kernels read them.
    """
    code, a = PACK.begin(symbol)
    with code.if_then(code.icmp_signed("==", a.tid, code.i64(0))):
        fill(code, a.packed, code.sdiv(a.zeros, code.i64(4)), code.bitcast(code.trunc(a.border, I32), ir.FloatType()))
    first, last = code.share(a.groups, a.tid, a.threads)
    by_row = code.icmp_signed("!=", a.rows, code.i64(0))
    with code.loop(first, last) as group, code.loop(0, a.channels) as channel, code.loop(0, WORD) as lane:
        row, shift = split(code, group, 2)
        begin = code.select(by_row, code.times(row, 3), code.times(group, WORD))
        size = code.select(by_row, code.i64(3), code.minimum(WORD, code.sub(a.taps, begin)))
        place = code.sub(lane, code.select(by_row, shift, code.i64(0)))
        inside = below(code, place, size)
        tap = code.select(inside, code.plus(begin, place), code.i64(0))
        weight = code.trunc(code.read(a.w, code.plus(code.mul(channel, a.taps), tap), I32), I8)
        target = code.plus(a.zeros, code.times(code.plus(code.mul(group, a.channels), channel), WORD), lane)
        code.write(code.select(inside, weight, constant(I8, 0)), a.packed, target)
    code.done()
    return code.module


@library("conv_depth_dot")
def _make(symbol: str) -> ir.Module:
    """conv_depth_dot.taps, conv_depth_dot.rows"""
    code, a = SWEEP.begin(symbol)
    own = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
    _Sweep(code, a, own, symbol.split(".")[1] == "rows").write()
    code.done()
    return code.module


class _Sweep:
    def __init__(self, code: Code, a: SimpleNamespace, record: Value, by_row: bool) -> None:
        self.code, self.a, self.record, self.by_row = code, a, record, by_row
        self.weights = code.at(a.packed, a.panels, I8)
        self.taps = code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel)
        self.offsets = self._offsets()

    def _offsets(self) -> Value:
        """Where each tap is, relative to the first one."""
        code, a = self.code, self.a
        found = numbers(code, _MOST_TAPS)
        with code.loop(0, self.taps) as tap:
            z, y, x = split(code, tap, a.y_kernel, a.x_kernel)
            line = code.plus(code.mul(code.mul(z, a.z_dilation), a.y_inside), code.mul(y, a.y_dilation))
            place = code.plus(code.mul(line, a.x_inside), code.mul(x, a.x_dilation))
            code.write(code.mul(place, a.groups), found, tap)
        return found

    def write(self) -> None:
        code, a = self.code, self.a
        pixels = numbers(code, 4 * PIXELS)
        with phases(code, a) as phase:
            first, last = code.share(code.ceil_div(phase.pixels, PIXELS), a.tid, a.threads)
            walk = PixelCursor(code, a, phase, code.i64(0))
            with code.if_then(code.icmp_signed("<", first, last)):
                walk.seek(code.times(first, PIXELS))
            with code.loop(first, last) as tile:
                merged = take_pixels(code, walk, PIXELS, self.record, pixels)
                pixel = code.times(tile, PIXELS)
                valid = code.minimum(PIXELS, code.sub(phase.pixels, pixel))
                y = self._target(pixel)
                with code.if_else(self._are_inside(pixels), likely=True) as (then, otherwise):
                    with then:
                        self._channels(self._near(pixels), y, valid)
                    with otherwise:
                        keep_all = ir.Constant(I1, 1)
                        write_segments(code, walk, PIXELS, self.record, pixels, merged, a.x, a.packed, keep_all, I8)
                        self._channels(self._recorded(), y, valid)
                call_epilogue(code, a, (pixel, code.plus(pixel, valid)), (0, a.groups))

    def _are_inside(self, pixels: Value) -> Value:
        """Whether no tap of the pixels lies in the padding."""
        code, a, checks = self.code, self.a, []
        for i in range(PIXELS):
            for j, letter in enumerate("zyx"):
                kernel, dilation, inside = (getattr(a, f"{letter}_{word}") for word in ("kernel", "dilation", "inside"))
                begin = code.read(pixels, j * PIXELS + i, I64)
                end = code.plus(begin, code.mul(code.plus(kernel, -1), dilation))
                checks += [below(code, begin, inside), below(code, end, inside)]
        return all_of(code, *checks)

    def _near(self, pixels: Value) -> Pointer:
        code = self.code
        begins = [code.gep(self.a.x, [code.read(pixels, 3 * PIXELS + i, I64)], source_etype=I8) for i in range(PIXELS)]
        return lambda tap, i: code.at(begins[i], code.read(self.offsets, tap, I64), I8)

    def _recorded(self) -> Pointer:
        code = self.code

        def pointer(tap: Value, i: int) -> Value:
            return read_address(code, self.record, code.plus(code.times(tap, PIXELS + 1), HEAD + PIXELS + 1 + i))

        return pointer

    def _target(self, pixel: Value) -> Value:
        """Where the sums of a tile go: into the result, or into scratch memory that the epilogue reads."""
        code, a = self.code, self.a
        streamed = code.icmp_signed("!=", a.streamed, code.i64(0))
        place = code.mul(pixel, a.groups)
        here = code.at(self.record, a.sums, I8)
        with code.if_then(streamed):  # the epilogue finds the pixel where it would be in the result
            code.write(code.gep(here, [code.sub(code.i64(0), place)], source_etype=I32), a.context, 0)
        return code.select(streamed, here, code.at(a.y, place, I32))

    def _channels(self, pointer: Pointer, y: Value, valid: Value) -> None:
        code, a = self.code, self.a
        with code.loop(0, code.ceil_div(a.groups, CHANNELS)) as block:
            channel = code.minimum(code.times(block, CHANNELS), code.plus(a.groups, -CHANNELS))
            sums = self._rows(pointer, channel) if self.by_row else self._taps(pointer, channel)
            for i in range(PIXELS):
                with code.if_then(code.icmp_signed("<", code.i64(i), valid)):
                    row = code.plus(code.times(a.groups, i), channel)
                    for q in range(_QUADS):
                        code.write(sums[i * _QUADS + q], y, code.plus(row, q * WORD))

    def _rows(self, pointer: Pointer, channel: Value) -> list[Value]:
        code, a = self.code, self.a

        def row(r: Value, sums: list[Value]) -> list[Value]:
            tap = code.times(r, 3)
            left, right = (self._weights(code.plus(code.times(r, 2), side), channel) for side in (0, 1))
            for i in range(0, PIXELS, 2):
                places = [pointer(code.plus(tap, t), i) for t in range(3)] + [pointer(code.plus(tap, 2), i + 1)]
                words = self._words(places, channel)
                for side, weights in ((i, left), (i + 1, right)):
                    for q in range(_QUADS):
                        at = side * _QUADS + q
                        sums[at] = self._dot(sums[at], words[q], weights[q])
            return sums

        return code.loop_carrying(0, code.mul(a.z_kernel, a.y_kernel), self._zeros(), row)

    def _taps(self, pointer: Pointer, channel: Value) -> list[Value]:
        code, last = self.code, self.code.plus(self.taps, -1)

        def group(g: Value, sums: list[Value]) -> list[Value]:
            weights = self._weights(g, channel)
            taps = [code.minimum(code.plus(code.times(g, WORD), t), last) for t in range(WORD)]  # weights beyond are 0
            for i in range(PIXELS):
                words = self._words([pointer(tap, i) for tap in taps], channel)
                for q in range(_QUADS):
                    sums[i * _QUADS + q] = self._dot(sums[i * _QUADS + q], words[q], weights[q])
            return sums

        return code.loop_carrying(0, code.ceil_div(self.taps, WORD), self._zeros(), group)

    def _zeros(self) -> list[Value]:
        return [constant(vector(I32, WORD), 0)] * (PIXELS * _QUADS)

    def _weights(self, group: Value, channel: Value) -> list[Value]:
        code = self.code
        place = code.times(code.plus(code.mul(group, self.a.groups), channel), WORD)
        return [code.read(self.weights, code.plus(place, q * CHANNELS), vector(I8, CHANNELS)) for q in range(_QUADS)]

    def _words(self, places: list[Value], channel: Value) -> list[Value]:
        """The channels of four taps as words: vectors of four channels, each with its four taps."""
        code = self.code
        a, b, c, d = (code.read(place, channel, vector(I8, CHANNELS)) for place in places)
        pairs = [
            [code.bitcast(half, vector(I16, CHANNELS // 2)) for half in self._interleaved(x, y)]
            for x, y in ((a, b), (c, d))
        ]
        words = [word for first, second in zip(*pairs, strict=True) for word in self._interleaved(first, second)]
        return [code.bitcast(word, vector(I8, CHANNELS)) for word in words]

    def _interleaved(self, x: Value, y: Value) -> list[Value]:
        lanes = x.type.count
        found = []
        for begin in (0, lanes // 2):
            order = [n for i in range(begin, begin + lanes // 2) for n in (i, lanes + i)]
            mask = ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, n) for n in order])
            found.append(self.code.shuffle_vector(x, y, mask))
        return found

    def _dot(self, total: Value, words: Value, weights: Value) -> Value:
        types = [vector(I32, WORD), vector(I8, CHANNELS)]
        return self.code.intrinsic("aarch64.neon.sdot", total, words, weights, types=types)
