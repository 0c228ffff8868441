"""Depthwise convolutions of int8 by dot products: four taps of a channel are one word of 32 bits.

The vectors of four taps are interleaved into words, whose dot products with four weights are added to int32. A multiply-add that widens would do
fewer products in a cycle. Filters of three columns need the words of a row of taps twice where the stride is 1: for two neighbours of the result,

    columns x, x + 1, x + 2, x + 3    times    w0 w1 w2 0    and    0 w0 w1 w2

Vectors longer than 16 bytes (x86) are interleaved in each 16 bytes on their own, so the sums of a block of channels lie in another order until they are stored; weights are
packed in that order. VNNI multiplies uint8 x int8: pixels are x ^ 128, and the sums begin with -128 times the sum of the weights.

Tiles of pixels whose taps all lie inside of the image need no record of pointers (see sweep.py): the places of their taps differ by constants.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

from llvmlite import ir

from ...ir.plan import Plan, PlanPhase
from ..gemm.arithmetic import WORD
from ..ir_builder import I1, I8, I16, I32, I64, Code, Value, constant, vector
from ..library import library
from ..target import CpuTarget, current_target
from .function_builder import Signature, all_of, below, call_epilogue, fill, numbers, split
from .shape import SWEEP_WORDS, Sweep, whole_lines
from .sweep import HEAD, PixelCursor, phases, read_address, record_words, take_pixels, write_segments
from .sweep_plan import SweepOperands

PIXELS = 4  # of a tile
CHANNELS = 16  # bytes that are interleaved: the shortest vector
_QUADS = CHANNELS // WORD  # vectors of words that four vectors of channels make
_RATES = {
    16: 0.3,
    32: 0.55,
    64: 1.0,
}  # relative channels per cycle by block size: the smallest block is not worth it on x86
_MOST_TAPS = 128  # whose offsets are on the stack

PACK = Signature(("w", "packed"), ("tid", "threads", "border", "zeros", "channels", "taps", "groups", "rows", "block"))
SWEEP = Signature(
    ("x", "packed", "y", "work", "epilogue", "context"),
    ("tid", "threads", "panels", "scratch", "scratch_size", "sums", "streamed", *SWEEP_WORDS),
)
Pointer = Callable[[Value, int], Value]  # (tap, pixel) -> where its channels begin


class _ChannelBlock(NamedTuple):
    """A block of channels: the place of its weights, and its first channel."""

    place: Value
    channel: Value


# --- plans ------------------------------------------------------------------------------------------------------------------


def applies(sweep: Sweep, target: CpuTarget) -> bool:
    return sweep.kind == "s8" and sweep.groups >= _narrowest(target) and sweep.taps <= _MOST_TAPS


def _narrowest(target: CpuTarget) -> float:
    """Channels of the smallest block that is faster than multiply-adds."""
    return {"dotprod": CHANNELS, "avx512vnni": 2 * CHANNELS}.get(target.dot, float("inf"))


def block_size(sweep: Sweep, target: CpuTarget) -> int:
    """Channels of a block: those of a vector, or of a shorter one if there are fewer."""
    if target.dot == "dotprod":
        return CHANNELS
    sizes = [size for size in _RATES if _narrowest(target) <= size <= sweep.groups]
    return min(sizes, key=lambda size: -(-sweep.groups // size) * size / _RATES[size])


def by_rows(sweep: Sweep) -> bool:
    """Whether neighbours of the result share the words of a row of taps; they are pairs in rows of even length."""
    axis = sweep.axes[2]
    return axis.kernel == 3 and axis.step == axis.dilation == 1 and axis.outside % 2 == 0


def word_groups(sweep: Sweep) -> int:
    """The words of weights of a channel."""
    return 2 * sweep.taps // 3 if by_rows(sweep) else -(-sweep.taps // WORD)


def packed_bytes(sweep: Sweep) -> int:
    size = block_size(sweep, current_target())
    return _border_bytes(sweep) + whole_lines((word_groups(sweep) + 1) * -(-sweep.groups // size) * size * WORD)


def _border_bytes(sweep: Sweep) -> int:
    return whole_lines(sweep.groups)


def pack_phase(sweep: Sweep, into: str) -> PlanPhase:
    """A row of the border, then for each word the weights of all channels, block by block; then -128 times the sum of the weights of each."""
    words = {
        "border": (sweep.border & 0xFF) * 0x01010101, "zeros": _border_bytes(sweep), "channels": sweep.groups, "taps": sweep.taps,
        "groups": word_groups(sweep), "rows": int(by_rows(sweep)), "block": block_size(sweep, current_target()),
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
    symbol = f"conv_depth_dot.{'rows' if by_rows(sweep) else 'taps'}.{block_size(sweep, current_target())}"
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
    by_row = code.icmp_signed("!=", a.rows, code.i64(0))
    places = code.mul(code.sdiv(code.plus(a.channels, a.block, -1), a.block), a.block)
    first, last = code.share(places, a.tid, a.threads)
    with code.loop(first, last) as place:
        channel = _channel_at(code, a, place)
        weights = code.at(a.w, code.mul(channel, a.taps), I32)
        with code.loop(0, a.groups) as group, code.loop(0, WORD) as lane:
            row, shift = split(code, group, 2)
            begin = code.select(by_row, code.times(row, 3), code.times(group, WORD))
            size = code.select(by_row, code.i64(3), code.minimum(WORD, code.sub(a.taps, begin)))
            at = code.sub(lane, code.select(by_row, shift, code.i64(0)))
            inside = below(code, at, size)
            tap = code.select(inside, code.plus(begin, at), code.i64(0))
            weight = code.trunc(code.read(weights, tap, I32), I8)
            target = code.plus(a.zeros, code.times(code.plus(code.mul(group, places), place), WORD), lane)
            code.write(code.select(inside, weight, constant(I8, 0)), a.packed, target)
        (total,) = code.loop_carrying(
            0, a.taps, [constant(I32, 0)], lambda tap, t: [code.add(t[0], code.read(weights, tap, I32))]
        )
        sums = code.at(a.packed, code.plus(a.zeros, code.times(code.mul(a.groups, places), WORD)), I8)
        code.write(code.mul(total, constant(I32, -128)), sums, place)
    code.done()
    return code.module


def _channel_at(code: Code, a: SimpleNamespace, place: Value) -> Value:
    """The channel whose sum lies at a place. The last block begins earlier, if it would end beyond the channels."""
    block, rest = code.sdiv(place, a.block), code.srem(place, a.block)
    quad, rest = split(code, rest, code.sdiv(a.block, code.i64(_QUADS)))
    part, word = split(code, rest, WORD)
    first = code.minimum(code.mul(block, a.block), code.sub(a.channels, a.block))
    return code.plus(first, code.times(part, CHANNELS), code.times(quad, WORD), word)


@library("conv_depth_dot")
def _make(symbol: str) -> ir.Module:
    """conv_depth_dot.taps.BLOCK, conv_depth_dot.rows.BLOCK"""
    code, a = SWEEP.begin(symbol)
    own = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
    _, how, block = symbol.split(".")
    _Sweep(code, a, own, how == "rows", int(block)).write()
    code.done()
    return code.module


class _Sweep:
    def __init__(self, code: Code, a: SimpleNamespace, record: Value, by_row: bool, size: int) -> None:
        self.code, self.a, self.record, self.by_row, self.size = code, a, record, by_row, size
        self.words, self.blocks = size // WORD, code.ceil_div(a.groups, size)
        self.places = code.times(self.blocks, size)
        self.has_offset = current_target().dot != "dotprod"
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
        """The destination of a tile's sums: the result, or scratch memory that the epilogue reads."""
        code, a = self.code, self.a
        streamed = code.icmp_signed("!=", a.streamed, code.i64(0))
        place = code.mul(pixel, a.groups)
        here = code.at(self.record, a.sums, I8)
        with code.if_then(streamed):  # the epilogue finds the pixel where it would be in the result
            code.write(code.gep(here, [code.sub(code.i64(0), place)], source_etype=I32), a.context, 0)
        return code.select(streamed, here, code.at(a.y, place, I32))

    def _channels(self, pointer: Pointer, y: Value, valid: Value) -> None:
        code, a = self.code, self.a
        with code.loop(0, self.blocks) as block:
            channel = code.minimum(code.times(block, self.size), code.plus(a.groups, -self.size))
            at = _ChannelBlock(code.times(block, self.size), channel)
            sums = self._rows(pointer, at) if self.by_row else self._taps(pointer, at)
            for i in range(PIXELS):
                with code.if_then(code.icmp_signed("<", code.i64(i), valid)):
                    row = code.plus(code.times(a.groups, i), channel)
                    for n, some in enumerate(self._in_order(sums[i * _QUADS : (i + 1) * _QUADS])):
                        code.write(some, y, code.plus(row, n * self.words))

    def _in_order(self, quads: list[Value]) -> list[Value]:
        """The sums in the order of the channels: parts of WORD lanes, of which vector q has every _QUADS-th from the q-th on."""
        parts = self.words // WORD
        if parts == 1:
            return quads
        return [
            self._gathered([(quads[n % _QUADS], n // _QUADS) for n in range(v * parts, (v + 1) * parts)])
            for v in range(_QUADS)
        ]

    def _gathered(self, parts: list[tuple[Value, int]]) -> Value:
        """One vector of parts of others: the given part of each."""
        half = len(parts) // 2
        if half == 1:
            (x, p), (y, q) = parts
            order = [p * WORD + i for i in range(WORD)] + [self.words + q * WORD + i for i in range(WORD)]
            return self._lanes(x, y, order)
        low, high = self._gathered(parts[:half]), self._gathered(parts[half:])
        return self._lanes(low, high, list(range(2 * half * WORD)))

    def _lanes(self, x: Value, y: Value, order: list[int]) -> Value:
        mask = ir.Constant(ir.VectorType(I32, len(order)), [ir.Constant(I32, n) for n in order])
        return self.code.shuffle_vector(x, y, mask)

    def _rows(self, pointer: Pointer, at: _ChannelBlock) -> list[Value]:
        code, a = self.code, self.a

        def row(r: Value, sums: list[Value]) -> list[Value]:
            tap = code.times(r, 3)
            left, right = (self._weights(code.plus(code.times(r, 2), side), at) for side in (0, 1))
            for i in range(0, PIXELS, 2):
                places = [pointer(code.plus(tap, t), i) for t in range(3)] + [pointer(code.plus(tap, 2), i + 1)]
                words = self._words(places, at.channel)
                for side, weights in ((i, left), (i + 1, right)):
                    for q in range(_QUADS):
                        n = side * _QUADS + q
                        sums[n] = self._dot(sums[n], words[q], weights[q])
            return sums

        return code.loop_carrying(0, code.mul(a.z_kernel, a.y_kernel), self._begin(at), row)

    def _taps(self, pointer: Pointer, at: _ChannelBlock) -> list[Value]:
        code, last = self.code, self.code.plus(self.taps, -1)

        def group(g: Value, sums: list[Value]) -> list[Value]:
            weights = self._weights(g, at)
            taps = [code.minimum(code.plus(code.times(g, WORD), t), last) for t in range(WORD)]  # weights beyond are 0
            for i in range(PIXELS):
                words = self._words([pointer(tap, i) for tap in taps], at.channel)
                for q in range(_QUADS):
                    sums[i * _QUADS + q] = self._dot(sums[i * _QUADS + q], words[q], weights[q])
            return sums

        return code.loop_carrying(0, code.ceil_div(self.taps, WORD), self._begin(at), group)

    def _begin(self, at: _ChannelBlock) -> list[Value]:
        """The sums before the first tap."""
        code, a, some = self.code, self.a, vector(I32, self.words)
        if not self.has_offset:
            return [constant(some, 0)] * (PIXELS * _QUADS)
        rows = code.mul(a.z_kernel, a.y_kernel)
        groups = code.times(rows, 2) if self.by_row else code.ceil_div(self.taps, WORD)
        place = code.plus(code.mul(groups, self.places), at.place)
        sums = [code.read(self.weights, code.plus(place, q * self.words), some) for q in range(_QUADS)]
        return sums * PIXELS

    def _weights(self, group: Value, at: _ChannelBlock) -> list[Value]:
        code = self.code
        place = code.times(code.plus(code.mul(group, self.places), at.place), WORD)
        return [code.read(self.weights, code.plus(place, q * self.size), vector(I8, self.size)) for q in range(_QUADS)]

    def _words(self, places: list[Value], channel: Value) -> list[Value]:
        """The channels of four taps as words: vectors of a quarter of the channels, each with its four taps."""
        code = self.code
        a, b, c, d = (self._pixels(place, channel) for place in places)
        pairs = [
            [code.bitcast(half, vector(I16, self.size // 2)) for half in self._interleaved(x, y)]
            for x, y in ((a, b), (c, d))
        ]
        words = [word for first, second in zip(*pairs, strict=True) for word in self._interleaved(first, second)]
        return [code.bitcast(word, vector(I8, self.size)) for word in words]

    def _pixels(self, place: Value, channel: Value) -> Value:
        found = self.code.read(place, channel, vector(I8, self.size))
        return self.code.xor(found, constant(found.type, -128)) if self.has_offset else found

    def _interleaved(self, x: Value, y: Value) -> list[Value]:
        """The first and the second halves of all 16 bytes, interleaved."""
        lanes = x.type.count
        some = lanes * CHANNELS // self.size  # of 16 bytes
        found = []
        for half in (0, some // 2):
            firsts = [part + half + i for part in range(0, lanes, some) for i in range(some // 2)]
            found.append(self._lanes(x, y, [n for i in firsts for n in (i, lanes + i)]))
        return found

    def _dot(self, total: Value, words: Value, weights: Value) -> Value:
        if self.has_offset:
            return self.code.intrinsic(f"x86.avx512.vpdpbusd.{8 * self.size}", total, words, weights, types=[])
        types = [vector(I32, WORD), vector(I8, CHANNELS)]
        return self.code.intrinsic("aarch64.neon.sdot", total, words, weights, types=types)
