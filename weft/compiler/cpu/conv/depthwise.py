"""Depthwise convolutions, where every channel has its own filter: vectors run along the channels.

Forward convolutions and data gradients of float32 are in depthwise_lines.py, filter gradients in depthwise_filter.py. A convolution of
8-bit integers traverses pixels as the direct one does, see sweep.py: for a tile of pixels and vectors of channels it accumulates the
products of pixels and filter tap by tap.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from llvmlite import ir

from ...ir.plan import Plan, PlanPhase
from ..ir_builder import F32, I1, I8, I16, I32, I64, Code, Value, constant, like, vector
from ..library import library
from ..target import CpuTarget, current_target
from .depthwise_lines import each_width, lines_phase, notes_size, vectors_of
from .filter_packing import pack_phase, panels_size, zeros_size
from .function_builder import Signature, call_epilogue, split
from .shape import SWEEP_WORDS, FilterView, Sweep, whole_lines
from .sweep import HEAD, PixelCursor, phases, prepare, read_address, record_words
from .sweep_plan import SweepOperands

_PIXELS = 4  # of a tile

SWEEP = Signature(
    ("x", "packed", "y", "work", "epilogue", "context"),
    ("tid", "threads", "panels", "scratch", "scratch_size", *SWEEP_WORDS),
)

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
    if sweep.kind == "f32":
        found.append(lines_phase(sweep, threads, target, names, scratch))
        return Plan(name, tuple(found), scratch + threads * notes_size(sweep), sweep.flops)
    size = whole_lines(8 * record_words(_PIXELS, sweep.most_taps))
    numbers = {
        **sweep.numbers, "panels": zeros_size(sweep), "scratch": scratch, "scratch_size": size,
    }  # fmt: skip
    pointers = {"x": names.source, "packed": names.packed, "y": names.result}
    reads, writes = [names.source, names.packed], [names.result, "work"]
    found.append(SWEEP.phase(f"conv_depth.{sweep.kind.split()[0]}", pointers, numbers, reads=reads, writes=writes))
    return Plan(name, tuple(found), scratch + threads * size, sweep.flops)


# --- 8-bit integers -------------------------------------------------------------------------------------------------------


def _add_product(code: Code, kind: str, pixel: Value, weight: Value, total: Value) -> Value:
    """Add the product of a pixel and a weight. A weight has 8 bits too: products of 16-bit integers are fast."""
    wide = code.sext(pixel, weight.type) if kind == "s8" else code.zext(pixel, weight.type)
    weight = code.sext(code.trunc(weight, like(weight.type, I16)), weight.type)
    return code.add(total, code.mul(wide, weight))


@library("conv_depth")
def _make(symbol: str) -> ir.Module:
    """conv_depth.TYPE: a sweep over pixels of int8 or uint8; filters are of 32 bits."""
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
            keep_all = ir.Constant(I1, 1)  # the border need not be 0
            prepare(code, walk, _PIXELS, record, a.x, a.packed, keep_all, I8)
            filters = code.at(a.packed, code.plus(a.panels, code.times(phase.before, current_target().lanes(32))), F32)
            valid = code.minimum(_PIXELS, code.sub(phase.pixels, code.times(tile, _PIXELS)))

            def block(channel: Value, vectors: int, lanes: int, filters: Value = filters, valid: Value = valid) -> None:
                _block(code, a, kind, record, filters, channel, valid, vectors, lanes)

            each_width(code, code.i64(0), a.groups, vectors_of(current_target()), block)
            pixel = code.times(tile, _PIXELS)  # of the one phase of a forward convolution
            call_epilogue(code, a, (pixel, code.plus(pixel, valid)), (0, a.groups))
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
    type, whole = vector(I32, lanes), current_target().lanes(32)
    taps = code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel)
    first, lane = split(code, channel, whole)

    def tap(s: Value, values: list[Value]) -> list[Value]:
        here = code.at(record, code.plus(code.times(s, _PIXELS + 1), HEAD + _PIXELS), I64)
        pointers = [read_address(code, here, 1 + i) for i in range(_PIXELS)]
        row = code.times(code.read(here, 0, I64), whole)
        for v in range(vectors):
            panel = code.times(code.mul(code.plus(first, v), taps), whole)
            weight = code.read(filters, code.plus(panel, row, lane), type)
            for i, pointer in enumerate(pointers):
                pixel = code.read(pointer, code.plus(channel, v * lanes), vector(I8, lanes))
                values[i * vectors + v] = _add_product(code, kind, pixel, weight, values[i * vectors + v])
        return values

    sums = code.loop_carrying(0, code.read(record, 0, I64), [constant(type, 0)] * (vectors * _PIXELS), tap)
    for i in range(_PIXELS):
        with code.if_then(code.icmp_signed("<", code.i64(i), valid)):
            row = code.plus(code.mul(code.read(record, HEAD + i, I64), a.groups), channel)
            for v in range(vectors):
                code.write(sums[i * vectors + v], a.y, code.plus(row, v * lanes))
