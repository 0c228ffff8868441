"""Sweeps with few output channels: vectors run along the pixels of a row.

Other sweeps vectorize over output channels, and locating the taps of a pixel is amortized over hundreds of products. Images of one
channel, and the gradients of layers with few input channels, have too few of both. Here a thread computes some rows of the result at a
time. It copies the source pixels they need into zero-padded planes, one a channel, so that the pixels of a row are contiguous. Then a
register tile of output channels x vectors of pixels moves along each row and reads the planes at every tap with unaligned loads.

The filter is packed as for other sweeps. Every element of the result is one chain of fused multiply-adds.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

from llvmlite import ir

from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..gemm.register_tile import RegisterTile, columns, flattened, multiply, zeros
from ..ir_builder import F32, I8, Code, Value, vector
from ..library import library
from ..target import CpuTarget, current_target
from .function_builder import Signature, call_epilogue, fill, numbers, split
from .shape import Sweep, whole_lines
from .sweep_plan import SweepOperands, blocks, pack_phases, packing, sweep_cycles

_PIXELS, _CHANNELS = (4, 3, 2, 1), (4, 6, 8, 12)  # vectors of pixels, and output channels, of a tile
# Cycles of a pixel in the other sweeps that their estimate omits, more with padding: times the 64-bit lanes of a vector, which are located together.
_SEARCH, _EDGES = 140.0, 180.0
_STORE = 1.5  # cycles to write an element of a tile, whose pixels lie apart, or one of a plane
_CLEARLY = 0.8  # of the estimated time of others: estimates are rough
_STRIPS = 4  # of rows, for each thread

ROW = Signature(
    ("x", "packed", "y", "work", "epilogue", "context"),
    (
        "tid", "threads", "planes", "planes_size",  # where they are in `work`, and how large a thread's are, in bytes
        "panel", "width",  # where the panels of these output channels begin in `packed`, in floats; how wide they are
        "column_begin", "column_end", "outputs",  # the output channels of this call, and all
        "last",  # 1: no call for other output channels follows
        "batch", "inputs", "strip",  # rows that are done at a time
        "y_size", "x_size",  # of the part of a plane that they read
        *(f"{letter}_{word}" for letter in "zyx" for word in ("inside", "before", "out", "kernel", "step", "move")),
    ),
)  # fmt: skip


# --- plans ----------------------------------------------------------------------------------------------------------------------


def by_rows(sweep: Sweep, target: CpuTarget) -> bool:
    """Whether this algorithm is estimated to be faster for a sweep."""
    if not can_by_rows(sweep):
        return False
    search = (_SEARCH + _EDGES * any(_before(sweep))) / target.lanes(64)
    others = sweep_cycles(sweep, target) + search * sweep.pixels
    return _cycles(sweep, _tile(sweep, target), target) < _CLEARLY * others


def can_by_rows(sweep: Sweep) -> bool:
    """Whether it applies: neighbouring pixels of the result are neighbours in the source."""
    return sweep.single and sweep.groups == 1 and sweep.axes[2].step == 1 and all(b >= 0 for b in _before(sweep))


def _before(sweep: Sweep) -> list[int]:
    """Pixels of zeros before the source, along each axis."""
    return [(a.kernel - 1) * a.dilation - a.reach for a in sweep.axes]


def _tile(sweep: Sweep, target: CpuTarget) -> RegisterTile:
    """The fastest tile; its rows are output channels, at most as many as a panel has."""
    most, lanes = {8: 6, 16: 12, 32: 24}[target.registers], target.lanes(32)
    width = min(block.vectors for block in blocks(sweep, target)) * lanes
    shapes = [RegisterTile(c, p) for p in _PIXELS for c in _CHANNELS if p * c <= most and c <= width]
    return min(shapes, key=lambda tile: _cycles(sweep, tile, target))


def _cycles(sweep: Sweep, tile: RegisterTile, target: CpuTarget) -> float:
    """The estimated cycles of one thread."""
    across, (z, y, x) = tile.columns(target.lanes(32)), (axis.outside for axis in sweep.axes)
    weights = tile.rows / 4 if target.arch == "aarch64" else tile.rows  # loads: of a vector of them, or one by one
    tap = max(tile.rows * tile.vectors, tile.vectors + weights) / 2 + 1
    tiles = sweep.batch * z * y * -(-x // across) * -(-sweep.outputs // tile.rows)
    one = sweep.taps * sweep.inputs * tap + across * min(tile.rows, sweep.outputs) * _STORE
    return tiles * one + sweep.batch * sweep.inputs * prod(axis.inside for axis in sweep.axes) * _STORE


def row_plan(name: str, sweep: Sweep, threads: int, target: CpuTarget, names: SweepOperands, prepacked: bool) -> Plan:
    packed, tile = packing(sweep, target), _tile(sweep, target)
    phases = [] if prepacked else pack_phases(sweep, target, names.packed)
    planes = 0 if prepacked else whole_lines(packed.floats * 4)
    common = _geometry(sweep, threads, tile, target)
    size = whole_lines(4 * sweep.inputs * sweep.axes[0].kernel * common["y_size"] * common["x_size"])
    common |= {"planes": planes, "planes_size": size}
    for block, panel in packed.blocks:
        facts = {"panel": panel, "width": block.vectors * target.lanes(32), "last": int(block.end == sweep.outputs)}
        facts |= {"column_begin": block.begin, "column_end": block.end}
        phases.append(_row_phase(tile, common | facts, names))
    return Plan(name, tuple(phases), planes + threads * size, sweep.flops)


def _geometry(sweep: Sweep, threads: int, tile: RegisterTile, target: CpuTarget) -> dict[str, int]:
    """The integer arguments of the sweep. Each thread has a few strips of rows, and the source of one stays in the L2 cache."""
    (z, y, x), across = sweep.axes, tile.columns(target.lanes(32))
    # The last tile may go beyond the end of its row: what it reads there is zeros.
    width = -(-x.outside // across) * across + (x.kernel - 1) * x.dilation
    row = 4 * sweep.inputs * z.kernel * width * y.step
    strips = max(-(-_STRIPS * threads // (sweep.batch * z.outside)), -(-row * y.outside // (target.l2 // 2)))
    strip = -(-y.outside // min(y.outside, strips))
    found = {"batch": sweep.batch, "inputs": sweep.inputs, "outputs": sweep.outputs, "strip": strip, "x_size": width}
    found["y_size"] = (strip - 1) * y.step + (y.kernel - 1) * y.dilation + 1
    for letter, axis, before in zip("zyx", sweep.axes, _before(sweep), strict=True):
        facts = {"inside": axis.inside, "before": before, "out": axis.outside, "kernel": axis.kernel}
        facts |= {"step": axis.step, "move": axis.dilation}
        found |= {f"{letter}_{word}": number for word, number in facts.items()}
    return found


def _row_phase(tile: RegisterTile, values: dict[str, int], names: SweepOperands) -> PlanPhase:
    pointers = {"x": names.source, "packed": names.packed, "y": names.result}
    taps = values["x_kernel"] if values["x_kernel"] <= thresholds.row_taps else 0
    symbol = f"conv_row.{tile.rows}x{tile.vectors}.{taps}"
    share = (values["column_end"] - values["column_begin"]) / values["outputs"]
    return ROW.phase(symbol, pointers, values, [names.source, names.packed], [names.result, "work"], share)


# --- code -----------------------------------------------------------------------------------------------------------------------


@library("conv_row")
def _make_row(symbol: str) -> ir.Module:
    """conv_row.CHANNELSxVECTORS.TAPS: for TAPS taps along a row; 0 for any number."""
    _, shape, taps = symbol.split(".")
    channels, vectors = map(int, shape.split("x"))
    code, a = ROW.begin(symbol)
    _RowConvolution(code, a, current_target(), RegisterTile(channels, vectors), int(taps)).write()
    code.done()
    return code.module


class _RowConvolution:
    """Emits the function for one shape of tile."""

    def __init__(self, code: Code, a: SimpleNamespace, target: CpuTarget, tile: RegisterTile, taps: int) -> None:
        self.code, self.a, self.target, self.tile, self.taps = code, a, target, tile, taps
        self.lanes = target.lanes(32)
        self.across = tile.columns(self.lanes)  # pixels
        self.aside = numbers(code, tile.rows * self.across, F32)

    def write(self) -> None:
        """Emit the loop over a thread's strips of rows."""
        code, a = self.code, self.a
        planes = code.at(a.work, code.plus(a.planes, code.mul(a.tid, a.planes_size)), I8)
        self.slice = code.mul(a.y_size, a.x_size)
        strips = code.sdiv(code.plus(a.y_out, a.strip, -1), a.strip)
        first, last = code.share(code.mul(code.mul(a.batch, a.z_out), strips), a.tid, a.threads)
        with code.loop(first, last) as unit:
            n, z, number = split(code, unit, a.z_out, strips)
            top = code.mul(number, a.strip)
            self._fill(planes, n, code.mul(z, a.z_step), code.mul(top, a.y_step))
            begin = code.mul(code.plus(code.mul(n, a.z_out), z), a.y_out)
            with code.loop(top, code.minimum(code.plus(top, a.strip), a.y_out)) as y:
                source = code.at(planes, code.mul(code.mul(code.sub(y, top), a.y_step), a.x_size), F32)
                self._row(source, code.mul(code.plus(begin, y), a.x_out))

    def _fill(self, planes: Value, n: Value, z: Value, y: Value) -> None:
        """Copy the source of a strip, from line y of slice z of the padded source on."""
        code, a = self.code, self.a
        with code.loop(0, a.inputs) as c, code.loop(0, a.z_kernel) as tap, code.loop(0, a.y_size) as line:
            place = code.plus(code.mul(code.plus(code.mul(c, a.z_kernel), tap), a.y_size), line)
            target = code.at(planes, code.mul(place, a.x_size), F32)
            fill(code, target, a.x_size)
            deep = code.sub(code.plus(z, code.mul(tap, a.z_move)), a.z_before)
            down = code.sub(code.plus(y, line), a.y_before)
            inside = code.and_(code.icmp_unsigned("<", deep, a.z_inside), code.icmp_unsigned("<", down, a.y_inside))
            with code.if_then(inside):
                row = code.plus(code.mul(code.plus(code.mul(n, a.z_inside), deep), a.y_inside), down)
                source = code.at(a.x, code.plus(code.mul(code.mul(row, a.x_inside), a.inputs), c), F32)
                home = code.at(target, a.x_before, F32)
                with code.loop(0, code.minimum(a.x_inside, code.sub(a.x_size, a.x_before))) as x:
                    code.write(code.read(source, code.mul(x, a.inputs), F32), home, x)

    def _row(self, source: Value, pixel: Value) -> None:
        """One row of the result, whose first pixel has this number."""
        code, a = self.code, self.a
        with code.loop(0, a.x_out, self.across) as x:
            self._panels(code.at(source, x, F32), code.plus(pixel, x), code.sub(a.x_out, x))
        with code.if_then(code.icmp_signed("!=", a.last, code.i64(0))):
            call_epilogue(code, a, (pixel, code.plus(pixel, a.x_out)), (0, a.outputs))

    def _panels(self, source: Value, pixel: Value, pixels: Value) -> None:
        """All output channels of some pixels. The last tile of a panel overlaps the one before, so that it ends with the panel."""
        code, a, rows = self.code, self.a, self.tile.rows
        size = code.mul(code.mul(code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel), a.inputs), a.width)
        count = code.sub(a.column_end, a.column_begin)
        with code.loop(0, code.sdiv(code.plus(count, a.width, -1), a.width)) as panel:
            left = code.sub(count, code.mul(panel, a.width))
            with code.loop(0, code.minimum(left, a.width), rows) as c:
                c = code.minimum(c, code.plus(a.width, -rows))
                self._tile(source, code.at(a.packed, code.plus(a.panel, code.mul(panel, size), c), F32))
                column = code.plus(a.column_begin, code.mul(panel, a.width), c)
                home = code.plus(code.mul(pixel, a.outputs), column)
                self._store(code.at(a.y, home, F32), pixels, code.sub(left, c))

    def _tile(self, source: Value, weights: Value) -> None:
        """Compute the sums of some output channels at some pixels into a buffer in which the pixels of a channel are contiguous."""
        code, a, tile = self.code, self.a, self.tile

        def plane(z: Value, values: list[Value]) -> list[Value]:
            def line(y: Value, values: list[Value]) -> list[Value]:
                tap = code.mul(code.plus(code.mul(z, a.y_kernel), y), a.x_kernel)
                here = code.at(weights, code.mul(code.mul(tap, a.inputs), a.width), F32)
                down = code.plus(code.mul(z, self.slice), code.mul(code.mul(y, a.y_move), a.x_size))

                def channel(c: Value, values: list[Value]) -> list[Value]:
                    place = code.plus(code.mul(code.mul(c, a.z_kernel), self.slice), down)
                    return self._line(code.at(source, place, F32), code.at(here, code.mul(c, a.width), F32), values)

                return code.loop_carrying(0, a.inputs, values, channel)

            return code.loop_carrying(0, a.y_kernel, values, line)

        none = flattened(zeros(tile, F32, self.lanes))
        for i, value in enumerate(code.loop_carrying(0, a.z_kernel, none, plane)):
            code.write(value, self.aside, i * self.lanes)

    def _line(self, pixels: Value, weights: Value, values: list[Value]) -> list[Value]:
        """Accumulate the taps of one kernel row of one input channel."""
        code, a, tile, kind = self.code, self.a, self.tile, vector(F32, self.lanes)

        def right(k: Value, step: int) -> list[Value]:
            at = code.mul(code.plus(k, step), a.x_move)
            return [code.read(pixels, code.plus(at, v * self.lanes), kind) for v in range(tile.vectors)]

        left = columns(code, self.target, tile, F32, weights, code.mul(a.inputs, a.width))
        sums = [values[i * tile.vectors : (i + 1) * tile.vectors] for i in range(tile.rows)]
        if not self.taps:
            return [v for row in multiply(code, tile, a.x_kernel, left, right, sums) for v in row]
        for tap in range(self.taps):  # unrolled: the overhead of a loop over so few would dominate
            splat, vectors = left.read(code.i64(tap), 1), right(code.i64(tap), 0)
            for row in range(tile.rows):
                number = splat(0, row)
                sums[row] = [code.fma(number, x, old) for x, old in zip(vectors, sums[row], strict=True)]
        return [v for row in sums for v in row]

    def _store(self, home: Value, pixels: Value, channels: Value) -> None:
        """Store the buffer into the result, in which the channels of a pixel are contiguous. Elements beyond the row or the channels are dropped."""
        code, a, tile = self.code, self.a, self.tile
        pixels, whole = code.minimum(pixels, self.across), code.icmp_signed(">=", channels, code.i64(tile.rows))
        with code.if_else(whole, likely=True) as (then, otherwise):
            with then, code.loop(0, pixels) as p:
                for c in range(tile.rows):
                    value = code.read(self.aside, code.plus(p, c * self.across), F32)
                    code.write(value, home, code.plus(code.mul(p, a.outputs), c))
            with otherwise, code.loop(0, pixels) as p, code.loop(0, channels) as c:
                value = code.read(self.aside, code.plus(p, code.times(c, self.across)), F32)
                code.write(value, home, code.plus(code.mul(p, a.outputs), c))
