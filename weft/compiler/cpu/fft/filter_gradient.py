"""Filter gradients by fast Fourier transforms: the last step, from sums of products of spectra to taps.

The gradient of a tap is the correlation of x and g at one distance. For each tile of g, its pixels (with zeros around) and the window
of x that they meet are transformed; for each point the products of the spectrum of x with the conjugate one of g are summed over all
tiles (products.py), so that only one inverse transform is needed for each pair of channels.
"""

from __future__ import annotations

from llvmlite import ir

from ..conv.function_builder import Signature, split
from ..ir_builder import I8, constant
from ..library import library
from .convolution import FftEmitter

TAPS = Signature(
    ("w", "work"),
    (
        "tid", "threads", "sums",  # bytes in the workspace
        "groups", "inputs", "outputs",  # of one group
        "row", "apart", "group_apart", "y_taps", "x_taps", "y_dilation", "x_dilation",
    ),
)  # fmt: skip


@library("fft_taps")
def _make_taps(symbol: str) -> ir.Module:
    """fft_taps.TYPE.NYxNX: the filter (*taps, inputs, outputs) from its spectra."""
    writer = FftEmitter(symbol, TAPS)
    code, a = writer.code, writer.a
    vectors, filters = code.ceil_div(a.outputs, writer.lanes), code.mul(a.groups, a.outputs)
    scale = constant(writer.kind, 1.0 / writer.window.pixels)
    first, last = code.share(code.mul(code.mul(a.groups, a.inputs), vectors), a.tid, a.threads)
    with code.loop(first, last) as unit:
        group, channel, column = split(code, unit, a.inputs, vectors)
        column = code.times(column, writer.lanes)
        place = code.plus(code.mul(group, a.group_apart), code.mul(channel, a.row), code.times(column, 2))
        points = code.at(code.at(a.work, a.sums, I8), place, writer.element)
        writer.spectra.points_to_buffer(code, points, a.apart, writer.scratch)
        some = code.minimum(writer.lanes, code.sub(a.outputs, column))
        column = code.plus(code.mul(group, a.outputs), column)
        with code.loop(0, a.y_taps) as y:
            writer.spectra.buffer_to_row(code, writer.scratch, code.mul(y, a.y_dilation), writer.line)
            apart = code.times(a.x_dilation, writer.lanes)
            with code.loop(0, a.x_taps) as x:
                tap = code.mul(x, apart)
                code.write(code.fmul(scale, code.read(writer.line, tap, writer.kind)), writer.line, tap)
            row = code.plus(code.mul(code.mul(y, a.x_taps), a.inputs), channel)
            home = code.at(a.w, code.plus(code.mul(row, filters), column), writer.element)
            writer.copy_pixels(a.x_taps, some, (writer.line, apart), (home, code.mul(a.inputs, filters)))
    return writer.done()
