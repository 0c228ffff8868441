"""Packs filters in the order in which the register tiles of convolutions read them.

A block of `width` output channels is one panel: for each tap (those of one phase of the sweep side by side, see
shape.py), for each input channel, the numbers of its output channels side by side. Before the panels stands
a row of zeros (or of the border of 8-bit integers), which tiles read in place of pixels that lie in the padding.
"""

from __future__ import annotations

from types import SimpleNamespace

from llvmlite import ir

from ...ir.plan import PlanPhase
from ..gemm.packing import pack_panels
from ..ir_builder import F32, I32, Code, Value
from ..library import library
from .function_builder import Signature, fill, split
from .shape import Sweep

_PIECE = 32  # input channels that a thread packs at a time

_PACK = Signature(
    ("w", "packed"),
    (
        "tid", "threads", "zeros", "border", "offset", "groups", "column_begin", "column_end", "inputs",
        "base", "group_stride", "output_stride", "input_stride",
        *(f"{letter}_{word}" for letter in "zyx" for word in ("kernel", "classes", "stride")),
    ),
)  # fmt: skip


def panels_size(sweep: Sweep, columns: int, width: int) -> int:
    """The number of floats in the panels of this many output channels of each group."""
    return sweep.groups * -(-columns // width) * width * sweep.taps * sweep.inputs


def zeros_size(sweep: Sweep) -> int:
    """The floats of the row of zeros: a whole row of taps, and full vectors."""
    return -(-sweep.inputs * sweep.groups * sweep.axes[2].most_taps // 16) * 16


def pack_phase(sweep: Sweep, columns: tuple[int, int], width: int, offset: int, into: str, zeros: int) -> PlanPhase:
    """Pack the output channels `columns` of each group at `offset` floats, and write that many zeros at the beginning."""
    numbers = {
        "zeros": zeros, "border": (sweep.border & 0xFF) * 0x01010101, "offset": offset, "groups": sweep.groups,
        "column_begin": columns[0], "column_end": columns[1], "inputs": sweep.inputs,
        "base": sweep.filter.base, "group_stride": sweep.filter.group,
        "output_stride": sweep.filter.output, "input_stride": sweep.filter.input,
    }  # fmt: skip
    for letter, axis, stride in zip("zyx", sweep.axes, sweep.filter.taps, strict=True):
        numbers |= {f"{letter}_kernel": axis.kernel, f"{letter}_classes": axis.classes, f"{letter}_stride": stride}
    return _PACK.phase(f"conv_pack.{width}", {"packed": into}, numbers, reads=["w"], writes=[into])


@library("conv_pack")
def _make(symbol: str) -> ir.Module:
    """conv_pack.WIDTH"""
    width = int(symbol.split(".")[1])
    code, a = _PACK.begin(symbol)
    panels = pack_panels(code.module, "f32", "f32", width)
    with code.if_then(code.icmp_signed("==", a.tid, code.i64(0))):
        fill(code, a.packed, a.zeros, code.bitcast(code.trunc(a.border, I32), F32))
    blocks = code.ceil_div(code.sub(a.column_end, a.column_begin), width)
    taps = code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel)
    pieces = code.ceil_div(a.inputs, _PIECE)
    first, last = code.share(code.mul(a.groups, code.mul(taps, pieces)), a.tid, a.threads)
    with code.loop(first, last) as unit:
        group, tap, piece = split(code, unit, taps, pieces)
        row, source = _tap(code, a, tap)
        channel = code.times(piece, _PIECE)
        source = code.plus(source, code.mul(group, a.group_stride), code.mul(channel, a.input_stride))
        source = code.plus(source, code.mul(a.column_begin, a.output_stride))
        row = code.plus(code.mul(code.mul(group, blocks), taps), row)
        target = code.plus(a.offset, code.times(code.plus(code.mul(row, a.inputs), channel), width))
        places = [code.at(a.w, source, F32), code.at(a.packed, target, F32)]
        columns, count = code.sub(a.column_end, a.column_begin), code.minimum(_PIECE, code.sub(a.inputs, channel))
        apart = code.times(code.mul(taps, a.inputs), width)
        code.call(panels, [*places, columns, count, a.output_stride, a.input_stride, apart])
    code.done()
    return code.module


def _tap(code: Code, a: SimpleNamespace, tap: Value) -> tuple[Value, Value]:
    """Where among all taps of a panel this one is kept, and where it is in the filter."""
    z, y, x = split(code, tap, a.y_kernel, a.x_kernel)
    zc, zs, zi = _place(code, z, a.z_kernel, a.z_classes)
    yc, ys, yi = _place(code, y, a.y_kernel, a.y_classes)
    xc, xs, xi = _place(code, x, a.x_kernel, a.x_classes)
    # The phases before this one, axis by axis; then the place inside it.
    before = code.plus(
        code.mul(code.mul(zs, a.y_kernel), a.x_kernel),
        code.mul(code.mul(zc, ys), a.x_kernel),
        code.mul(code.mul(zc, yc), xs),
    )
    inside = code.plus(code.mul(code.plus(code.mul(zi, yc), yi), xc), xi)
    source = code.plus(a.base, code.mul(z, a.z_stride), code.mul(y, a.y_stride), code.mul(x, a.x_stride))
    return code.plus(before, inside), source


def _place(code: Code, tap: Value, kernel: Value, classes: Value) -> tuple[Value, Value, Value]:
    """Of a tap's class: how many taps it has, how many lie in the classes before it, and the tap's place in it."""
    index, which = split(code, tap, classes)
    full, rest = split(code, kernel, classes)
    count = code.plus(full, code.zext(code.icmp_signed("<", which, rest), full.type))
    start = code.plus(code.mul(which, full), code.minimum(which, rest))
    return count, start, code.sub(code.plus(count, -1), index)
