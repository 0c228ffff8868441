"""Emits the traversal of a sweep (see shape.py): its phases, and the source pointers of each tile of pixels.

For a tile of some pixels of the result, `prepare` writes a record of i64s: how many segments there are, how many floats a
segment has, the pixels' places in the result; and for each segment the row of the filter's panel it begins with, and for each
pixel a pointer to where it begins in the source, or to a row of zeros. A segment is one tap; or, where the taps of a kernel
row are contiguous in memory and none falls into the padding, the whole row of taps. Segments of padding only are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from llvmlite import ir

from ....records import dataclass
from ..ir_builder import F32, I1, I64, PTR, Code, Int, Value, constant, lanes_of, vector
from ..target import current_target
from .function_builder import all_of, below, copy, numbers, split

HEAD = 2  # a record's first words: segments, length


def record_words(pixels: int, segments: int) -> int:
    """The i64s of a record."""
    return HEAD + pixels + (1 + pixels) * segments


@dataclass(frozen=True)
class AxisPhase:
    """One phase along one axis, as native numbers."""

    count: Value  # taps
    start: Value  # taps of the classes before
    kernel: Value
    pixels: Value
    first_out: Value
    first_in: Value
    phases: Value
    step: Value  # in the source, from pixel to pixel
    move: Value  # in the source, from tap to tap
    inside: Value
    outside: Value


@dataclass(frozen=True)
class SweepPhase:
    """One phase of the sweep."""

    z: AxisPhase
    y: AxisPhase
    x: AxisPhase
    pixels: Value  # of the whole batch
    taps: Value
    before: Value  # taps of the phases that are packed before this one


@contextmanager
def phases(code: Code, a: SimpleNamespace) -> Iterator[SweepPhase]:
    """A loop over the phases of the sweep whose numbers are in `a`."""
    with code.loop(0, a.z_phases) as i, code.loop(0, a.y_phases) as j, code.loop(0, a.x_phases) as k:
        z, y, x = (axis_phase(code, a, letter, r) for letter, r in zip("zyx", (i, j, k), strict=True))
        pixels = code.mul(code.mul(a.batch, z.pixels), code.mul(y.pixels, x.pixels))
        taps = code.mul(code.mul(z.count, y.count), x.count)
        before = code.plus(
            code.mul(code.mul(z.start, y.kernel), x.kernel),
            code.mul(code.mul(z.count, y.start), x.kernel),
            code.mul(code.mul(z.count, y.count), x.start),
        )
        yield SweepPhase(z, y, x, pixels, taps, before)


def axis_phase(code: Code, a: SimpleNamespace, letter: str, r: Value) -> AxisPhase:
    def of(word: str) -> Value:
        return getattr(a, f"{letter}_{word}")

    kernel, phase_count, classes = of("kernel"), of("phases"), of("classes")
    quotient, rest = split(code, r, of("common"))
    which = code.srem(code.mul(quotient, of("inverse")), classes)
    full, more = split(code, kernel, classes)
    count = code.plus(full, code.zext(code.icmp_signed("<", which, more), I64))
    count = code.select(code.icmp_signed("==", rest, code.i64(0)), count, code.i64(0))
    start = code.plus(code.mul(which, full), code.minimum(which, more))
    remainder = code.srem(code.sub(r, of("reach")), phase_count)
    first_out = code.select(code.icmp_signed("<", remainder, code.i64(0)), code.plus(remainder, phase_count), remainder)
    pixels = code.maximum(0, code.sdiv(code.plus(code.sub(of("outside"), first_out), phase_count, -1), phase_count))
    last_tap = code.plus(which, code.mul(code.plus(count, -1), classes))
    meeting = code.sub(code.plus(first_out, of("reach")), code.mul(last_tap, of("dilation")))
    return AxisPhase(
        count, start, kernel, pixels, first_out, code.sdiv(meeting, phase_count), phase_count, of("step"),
        code.sdiv(of("dilation"), of("common")), of("inside"), of("outside"),
    )  # fmt: skip


@dataclass(frozen=True)
class SeveralPixels:
    """Consecutive pixels, as vectors: what `PixelCursor.take` returns for one."""

    exist: Value  # whether there are this many; if not, the other values are unspecified
    coordinates: list[Value]
    base: Value
    out: Value
    last: list[Value]  # batch, z, y and x of the last one, as numbers


class PixelCursor:
    """Iterates over the pixels of a phase, from a given one on."""

    def __init__(self, code: Code, a: SimpleNamespace, phase: SweepPhase, group: Value) -> None:
        self.code, self.a, self.phase = code, a, phase
        self.channels = code.mul(a.groups, a.inputs)
        self.group_offset = code.mul(group, a.inputs)
        self.place = numbers(code, 4)

    def seek(self, pixel: Value) -> None:
        p = self.phase
        for i, digit in enumerate(split(self.code, pixel, p.z.pixels, p.y.pixels, p.x.pixels)):
            self.code.write(digit, self.place, i)

    def take(self) -> tuple[list[Value], Value, Value]:
        """The next pixel: z, y and x of its first tap in the source, the float where that is, and its place in the result.

        The address of a pixel in the padding must not be read. The last pixel of all is repeated.
        """
        code = self.code
        n, z, y, x = (code.read(self.place, i, I64) for i in range(4))
        for i, value in enumerate(self._next(n, z, y, x)):
            code.write(value, self.place, i)
        source, out, coordinates = n, n, []
        for axis, i in zip((self.phase.z, self.phase.y, self.phase.x), (z, y, x), strict=True):
            coordinates.append(code.plus(axis.first_in, code.mul(i, axis.step)))
            source = code.plus(code.mul(source, axis.inside), coordinates[-1])
            out = code.plus(code.mul(out, axis.outside), axis.first_out, code.mul(i, axis.phases))
        return coordinates, code.plus(code.mul(source, self.channels), self.group_offset), out

    def several(self, count: int) -> SeveralPixels:
        """The next pixels as vectors: they exist if they end in the line in which they begin, or in the next one."""
        code, p = self.code, self.phase
        kind = vector(I64, count)
        numbering = ir.Constant(kind, [ir.Constant(I64, i) for i in range(count)])
        n, z, y, x = (code.splat(code.read(self.place, i, I64), count) for i in range(4))
        x = code.add(x, numbering)
        carry = code.icmp_signed(">=", x, code.splat(p.x.pixels, count))
        x = code.sub(x, code.select(carry, code.splat(p.x.pixels, count), constant(kind, 0)))
        indices = [x]
        for value, axis in ((y, p.y), (z, p.z)):
            more = code.add(value, code.zext(carry, kind))
            carry = code.icmp_signed(">=", more, code.splat(axis.pixels, count))
            indices.insert(0, code.select(carry, constant(kind, 0), more))
        n = code.add(n, code.zext(carry, kind))
        source, out, coordinates = n, n, []
        for axis, i in zip((p.z, p.y, p.x), indices, strict=True):
            step, inside, outside, phases = (
                code.splat(value, count) for value in (axis.step, axis.inside, axis.outside, axis.phases)
            )
            coordinates.append(code.add(code.splat(axis.first_in, count), code.mul(i, step)))
            source = code.add(code.mul(source, inside), coordinates[-1])
            out = code.add(code.mul(out, outside), code.add(code.splat(axis.first_out, count), code.mul(i, phases)))
        base = code.add(code.mul(source, code.splat(self.channels, count)), code.splat(self.group_offset, count))
        exist = code.and_(
            code.icmp_signed(">=", p.x.pixels, code.i64(count)),
            code.icmp_signed("<", code.lane(n, count - 1), self.a.batch),
        )
        last = [code.lane(value, count - 1) for value in (n, *indices)]
        return SeveralPixels(exist, coordinates, base, out, last)

    def skip(self, several: SeveralPixels) -> None:
        """Go on behind some pixels."""
        for i, value in enumerate(self._next(*several.last)):
            self.code.write(value, self.place, i)

    def _next(self, n: Value, z: Value, y: Value, x: Value) -> list[Value]:
        code, p = self.code, self.phase
        carry, following = code.icmp_signed("==", code.i64(0), code.i64(0)), []
        for value, axis in ((x, p.x), (y, p.y), (z, p.z)):
            more = code.plus(value, code.zext(carry, I64))
            carry = code.icmp_signed("==", more, axis.pixels)
            following.append(code.select(carry, code.i64(0), more))
        following.append(code.plus(n, code.zext(carry, I64)))
        end = code.icmp_signed("==", following[-1], self.a.batch)
        return [code.select(end, old, new) for old, new in zip((n, z, y, x), reversed(following), strict=True)]


def prepare(
    code: Code,
    walk: PixelCursor,
    count: int,
    record: Value,
    source: Value,
    zeros: Value,
    keep_all: Value,
    element: ir.Type = F32,
) -> None:
    """Write the record of the next tile of `count` pixels. `keep_all`: include segments of padding only. `element`: of the source."""
    pixels = numbers(code, 4 * count)
    merged = take_pixels(code, walk, count, record, pixels)
    write_segments(code, walk, count, record, pixels, merged, source, zeros, keep_all, element)


def write_segments(
    code: Code, walk: PixelCursor, count: int, record: Value, pixels: Value, merged: Value, source: Value, zeros: Value, keep_all: Value,
    element: ir.Type,
) -> None:  # fmt: skip
    """Write the segments of the pixels that were taken."""
    phase, inputs = walk.phase, walk.a.inputs
    width = code.select(merged, code.i64(1), phase.x.count)
    code.write(code.mul(inputs, code.select(merged, phase.x.count, code.i64(1))), record, 1)
    code.write(code.i64(0), record, 0)
    with code.loop(0, phase.z.count) as tz, code.loop(0, phase.y.count) as ty, code.loop(0, width) as tx:
        found = code.read(record, 0, I64)
        segment = code.at(record, code.plus(code.times(found, count + 1), HEAD + count), I64)
        tap = code.plus(code.mul(code.plus(code.mul(tz, phase.y.count), ty), phase.x.count), tx)
        code.write(code.mul(tap, inputs), segment, 0)
        some = _segment(code, walk, count, pixels, (tz, ty, tx), merged, segment, source, zeros, element)
        code.write(code.plus(found, code.zext(code.or_(some, keep_all), I64)), record, 0)


def take_pixels(code: Code, walk: PixelCursor, count: int, record: Value, pixels: Value) -> Value:
    """Write the pixels of a tile; whether the taps of a kernel row are contiguous for all of them."""
    axis = walk.phase.x
    extent = code.mul(code.plus(axis.count, -1), axis.move)
    side_by_side = all_of(
        code,
        code.icmp_signed("==", walk.a.inputs, walk.channels),
        code.icmp_signed("==", axis.move, code.i64(1)),
        code.icmp_signed(">", axis.count, code.i64(0)),
    )

    def note(i: Value, so_far: list[Value]) -> list[Value]:
        (z, y, x), base, out = walk.take()
        for j, value in enumerate((z, y, x, base)):
            code.write(value, pixels, code.plus(i, j * count))
        code.write(out, record, code.plus(i, HEAD))
        return [all_of(code, so_far[0], below(code, x, axis.inside), below(code, code.plus(x, extent), axis.inside))]

    contiguous = code.variable(I1)
    code.store(side_by_side, contiguous)
    together = walk.several(count)
    with code.if_else(together.exist) as (then, otherwise):
        with then:
            for j, value in enumerate((*together.coordinates, together.base)):
                code.write(value, pixels, j * count)
            code.write(together.out, record, HEAD)
            x = together.coordinates[2]
            inside = (_below(code, x, axis.inside), _below(code, code.add(x, code.splat(extent, count)), axis.inside))
            every = code.intrinsic("vector.reduce.and", code.and_(*inside), types=[inside[0].type], result=I1)
            code.store(code.and_(side_by_side, every), contiguous)
            walk.skip(together)
        with otherwise:
            code.store(code.loop_carrying(0, count, [side_by_side], note)[0], contiguous)
    return code.load(contiguous, typ=I1)


def _below(code: Code, values: Value, limit: Value) -> Value:
    """0 <= value < limit, for each of several."""
    return code.icmp_unsigned("<", values, code.splat(limit, lanes_of(values.type)))


def _segment(
    code: Code, walk: PixelCursor, count: int, pixels: Value, tap: tuple[Value, Value, Value], merged: Value,
    segment: Value, source: Value, zeros: Value, element: ir.Type,
) -> Value:  # fmt: skip
    """Write the pointers of one segment; whether any of them is not padding."""
    phase, kind = walk.phase, vector(I64, count)
    moves = [code.mul(t, axis.move) for t, axis in zip(tap, (phase.z, phase.y, phase.x), strict=True)]
    offset = code.plus(code.mul(code.plus(code.mul(moves[0], phase.y.inside), moves[1]), phase.x.inside), moves[2])
    offset = code.mul(offset, walk.channels)
    z, y, x, base = (code.read(pixels, j * count, kind) for j in range(4))
    inside = [
        _below(code, code.add(at, code.splat(move, count)), axis.inside)
        for at, move, axis in zip((z, y, x), moves, (phase.z, phase.y, phase.x), strict=True)
    ]
    there = code.and_(code.and_(inside[0], inside[1]), code.or_(inside[2], code.splat(merged, count)))
    size = 4 if element is F32 else 1
    start = code.plus(code.ptrtoint(source, I64), code.times(offset, size))
    places = code.add(code.mul(base, constant(kind, size)), code.splat(start, count))
    places = code.select(there, places, code.splat(code.ptrtoint(zeros, I64), count))
    code.write(places, segment, 1)
    return code.intrinsic("vector.reduce.or", there, types=[there.type], result=I1)


def gather(
    code: Code, walk: PixelCursor, count: int, record: Value, patches: Value, source: Value, zeros: Value
) -> None:
    """Copy all taps of the next `count` pixels to `patches`, one pixel after the other; the record has a single segment."""
    phase, inputs = walk.phase, walk.a.inputs
    z, y, x = phase.z, phase.y, phase.x
    size = code.mul(phase.taps, inputs)
    contiguous = code.and_(code.icmp_signed("==", inputs, walk.channels), code.icmp_signed("==", x.move, code.i64(1)))
    for value, word in ((code.i64(1), 0), (size, 1), (code.i64(0), HEAD + count)):
        code.write(value, record, word)
    with code.loop(0, count) as i:
        first_tap, base, out = walk.take()
        patch = code.at(patches, code.mul(i, size), F32)
        code.write(out, record, code.plus(i, HEAD))
        code.write(code.ptrtoint(patch, I64), record, code.plus(i, HEAD + count + 1))
        with code.loop(0, z.count) as tz, code.loop(0, y.count) as ty:
            at_z, at_y = code.mul(tz, z.move), code.mul(ty, y.move)
            there = code.and_(
                below(code, code.plus(first_tap[0], at_z), z.inside),
                below(code, code.plus(first_tap[1], at_y), y.inside),
            )
            line = code.mul(code.mul(code.plus(code.mul(at_z, y.inside), at_y), x.inside), walk.channels)
            taps = code.mul(code.plus(code.mul(tz, y.count), ty), code.mul(x.count, inputs))
            row = _TapRow(
                code.at(source, code.plus(base, line), F32), code.at(patch, taps, F32), zeros, first_tap[2], there
            )
            with code.if_else(code.and_(there, contiguous)) as (then, otherwise):
                with then:
                    _copy_contiguous(code, walk, row)
                with otherwise:
                    _copy_taps(code, walk, row)


@dataclass(frozen=True)
class _TapRow:
    """The taps of a pixel along one row of the kernel."""

    source: Value  # where the first one would be, also if it is padding
    patch: Value  # where they are copied to
    zeros: Value  # what is copied for padding
    x: Value  # of the first one
    there: Value  # whether the row is inside the source


def _copy_contiguous(code: Code, walk: PixelCursor, row: _TapRow) -> None:
    """Copy taps that are neighbours in the source; those before and after it are padding."""
    x, inputs = walk.phase.x, walk.a.inputs
    first = code.minimum(code.maximum(0, code.sub(code.i64(0), row.x)), x.count)
    last = code.maximum(first, code.minimum(code.sub(x.inside, row.x), x.count))
    for begin, end in ((code.i64(0), first), (last, x.count)):
        with code.loop(begin, end) as tap:
            copy(code, row.zeros, code.at(row.patch, code.mul(tap, inputs), F32), inputs)
    start = code.mul(first, inputs)
    length = code.mul(code.sub(last, first), inputs)
    copy(code, code.at(row.source, start, F32), code.at(row.patch, start, F32), length)


def _copy_taps(code: Code, walk: PixelCursor, row: _TapRow) -> None:
    """Copy taps one by one."""
    x, inputs = walk.phase.x, walk.a.inputs
    with code.loop(0, x.count) as tap:
        move = code.mul(tap, x.move)
        inside = code.and_(row.there, below(code, code.plus(row.x, move), x.inside))
        source = code.select(inside, code.at(row.source, code.mul(move, walk.channels), F32), row.zeros)
        copy(code, source, code.at(row.patch, code.mul(tap, inputs), F32), inputs)


def read_address(code: Code, record: Value, word: Int) -> Value:
    """The address in a word of a record: words have 64 bits, also where pointers have 32."""
    if current_target().pointer_bytes == 8:
        return code.read(record, word, PTR)
    return code.inttoptr(code.read(record, word, I64), PTR)
