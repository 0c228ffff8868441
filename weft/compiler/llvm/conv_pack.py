"""Filters repacked in the order in which the register tiles of convolutions read them.

A block of `width` output channels is one panel: for each tap (those of one phase of the sweep side by side, see
conv_shape.py), for each input channel, the numbers of its channels side by side, padded with zeros. Before the panels stands
a row of zeros, which tiles read in place of pixels that lie in the padding.
"""

from __future__ import annotations

from types import SimpleNamespace

from llvmlite import ir

from .build import F32, Code, Value, vector
from .conv_code import LANES_OF_16_BYTES, Signature, fill, split
from .conv_shape import Sweep
from .library import Phase, library

_PACK = Signature(
    ("w", "packed"),
    (
        "tid", "threads", "zeros", "offset", "groups", "column_begin", "column_end", "width", "inputs",
        "base", "group_stride", "output_stride", "input_stride",
        *(f"{letter}_{word}" for letter in "zyx" for word in ("kernel", "classes", "stride")),
    ),
)  # fmt: skip


def panels_size(sweep: Sweep, columns: int, width: int) -> int:
    """The floats of the panels of so many output channels of each group."""
    return sweep.groups * -(-columns // width) * width * sweep.taps * sweep.inputs


def zeros_size(sweep: Sweep) -> int:
    """The floats of the row of zeros: a whole row of taps, and full vectors."""
    return -(-sweep.inputs * sweep.groups * sweep.axes[2].most_taps // 16) * 16


def pack_phase(
    sweep: Sweep, columns: tuple[int, int], width: int, offset: int, into: str, zeros: bool = True
) -> Phase:
    """Pack the output channels `columns` of each group at `offset` floats, and write the row of zeros."""
    numbers = {
        "zeros": zeros_size(sweep) if zeros else 0, "offset": offset, "groups": sweep.groups,
        "column_begin": columns[0], "column_end": columns[1], "width": width, "inputs": sweep.inputs,
        "base": sweep.filter.base, "group_stride": sweep.filter.group,
        "output_stride": sweep.filter.output, "input_stride": sweep.filter.input,
    }  # fmt: skip
    for letter, axis, stride in zip("zyx", sweep.axes, sweep.filter.taps, strict=True):
        numbers |= {f"{letter}_kernel": axis.kernel, f"{letter}_classes": axis.classes, f"{letter}_stride": stride}
    return _PACK.phase("conv_pack", {"packed": into}, numbers, reads=["w"], writes=[into])


@library("conv_pack")
def _make(symbol: str) -> ir.Module:
    code, a = _PACK.begin(symbol)
    with code.if_then(code.icmp_signed("==", a.tid, code.i64(0))):
        fill(code, a.packed, a.zeros)
    columns = code.sub(a.column_end, a.column_begin)
    blocks = code.sdiv(code.plus(columns, a.width, -1), a.width)
    first, last = code.share(code.mul(code.mul(a.groups, blocks), a.inputs), a.tid, a.threads)
    taps = code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel)
    with code.loop(first, last) as unit:
        panel, channel = split(code, unit, a.inputs)
        group, block = split(code, panel, blocks)
        column = code.plus(a.column_begin, code.mul(block, a.width))
        source = code.plus(a.base, code.mul(group, a.group_stride), code.mul(channel, a.input_stride))
        target = code.plus(code.mul(code.mul(panel, taps), a.inputs), channel)
        _each_tap(code, a, source, target, column)
    code.done()
    return code.module


def _each_tap(code: Code, a: SimpleNamespace, source: Value, target: Value, column: Value) -> None:
    """One input channel of a panel: `source` and `target` are at its tap 0; the target counts rows of the panel."""
    with code.loop(0, a.z_kernel) as z, code.loop(0, a.y_kernel) as y, code.loop(0, a.x_kernel) as x:
        zc, zs, zi = _place(code, z, a.z_kernel, a.z_classes)
        yc, ys, yi = _place(code, y, a.y_kernel, a.y_classes)
        xc, xs, xi = _place(code, x, a.x_kernel, a.x_classes)
        # The phases before this one, axis by axis; then the place inside it.
        before = code.plus(
            code.mul(code.mul(zs, a.y_kernel), a.x_kernel), code.mul(code.mul(zc, ys), a.x_kernel), code.mul(code.mul(zc, yc), xs)
        )
        inside = code.plus(code.mul(code.plus(code.mul(zi, yc), yi), xc), xi)
        row = code.plus(target, code.mul(code.plus(before, inside), a.inputs))
        tap = code.plus(source, code.mul(z, a.z_stride), code.mul(y, a.y_stride), code.mul(x, a.x_stride))
        _row(code, a, tap, code.plus(a.offset, code.mul(row, a.width)), column)


def _place(code: Code, tap: Value, kernel: Value, classes: Value) -> tuple[Value, Value, Value]:
    """Of a tap's class: how many taps it has, how many lie in the classes before it, and the tap's place in it."""
    index, which = split(code, tap, classes)
    full, rest = split(code, kernel, classes)
    count = code.plus(full, code.zext(code.icmp_signed("<", which, rest), full.type))
    start = code.plus(code.mul(which, full), code.minimum(which, rest))
    return count, start, code.sub(code.plus(count, -1), index)


def _row(code: Code, a: SimpleNamespace, source: Value, target: Value, column: Value) -> None:
    """The numbers of one tap and input channel for all output channels of a panel."""
    lanes = LANES_OF_16_BYTES
    with code.loop(0, a.width, lanes) as at:
        here = code.plus(column, at)
        start = code.plus(source, code.mul(here, a.output_stride))
        whole = code.icmp_signed("<=", code.plus(here, lanes), a.column_end)
        with code.if_else(whole) as (then, otherwise):
            with then:
                side_by_side = code.icmp_signed("==", a.output_stride, code.i64(1))
                with code.if_else(side_by_side) as (vectors, apart):
                    with vectors:
                        code.write(code.read(a.w, start, vector(F32, lanes)), a.packed, code.plus(target, at))
                    with apart:
                        strided = [code.read(a.w, code.plus(start, code.times(a.output_stride, i)), F32) for i in range(lanes)]
                        code.write(code.gather_lanes(strided), a.packed, code.plus(target, at))
            with otherwise, code.loop(0, lanes) as i:
                # Beyond the last channel: read the last one again, write 0.
                there = code.icmp_signed("<", code.plus(here, i), a.column_end)
                safe = code.plus(source, code.mul(code.minimum(code.plus(here, i), code.plus(a.column_end, -1)), a.output_stride))
                value = code.select(there, code.read(a.w, safe, F32), ir.Constant(F32, 0.0))
                code.write(value, a.packed, code.plus(target, at, i))
