"""The final phases of filter gradients: the sums of the chunks are added in order, and the epilogue is called."""

from __future__ import annotations

from types import SimpleNamespace

from llvmlite import ir

from ..ir_builder import F32, I8, Code, Value, vector
from ..library import library
from ..target import current_target
from .function_builder import Signature, call_epilogue, split

SUM = Signature(("w", "work", "epilogue", "context"), ("tid", "threads", "partial", "rows", "columns", "chunks"))

FINISH = Signature(
    ("w", "work", "epilogue", "context"), ("tid", "threads", "partial", "taps", "inputs", "columns", "chunks")
)
_FEW_INPUTS = 32  # of a block that is finished at a time


@library("conv_sum")
def _make_sum(symbol: str) -> ir.Module:
    """conv_sum: the chunks' sums added up, from the first to the last."""
    code, a = SUM.begin(symbol)
    lanes = current_target().lanes(32)
    first, last = code.share(a.rows, a.tid, a.threads)
    size = code.mul(a.rows, a.columns)
    begin, end = code.mul(first, a.columns), code.mul(last, a.columns)
    partial = code.at(a.work, a.partial, I8)

    def add(at: Value, kind: ir.Type) -> None:
        start = code.read(partial, at, kind)
        rest = code.loop_carrying(
            1,
            a.chunks,
            [start],
            lambda c, v: [code.fadd(v[0], code.read(partial, code.plus(code.mul(c, size), at), kind))],
        )
        code.write(rest[0], a.w, at)

    whole = code.plus(begin, code.and_(code.sub(end, begin), code.i64(-lanes)))
    with code.loop(begin, whole, lanes) as at:
        add(at, vector(F32, lanes))
    with code.loop(whole, end) as at:
        add(at, F32)
    with code.if_then(code.icmp_signed("<", first, last)):
        call_epilogue(code, a, (first, last), (0, a.columns))
    code.done()
    return code.module


@library("conv_finish")
def _make_finish(symbol: str) -> ir.Module:
    """conv_finish: the same, but all taps of a few channels after each other. With no chunks, w is complete but for the epilogue.

    In the filter's default layout the taps of a channel are contiguous and output channels are far apart. An epilogue on whole rows
    would touch each cache line of it once for every tap, after it was evicted.
    """
    code, a = FINISH.begin(symbol)
    wide = current_target().lanes(32)
    blocks = code.ceil_div(a.inputs, _FEW_INPUTS), code.ceil_div(a.columns, wide)
    first, last = code.share(code.mul(*blocks), a.tid, a.threads)
    with code.loop(first, last) as block:
        channel, column = split(code, block, blocks[1])
        channel, column = code.times(channel, _FEW_INPUTS), code.times(column, wide)
        rows = code.minimum(_FEW_INPUTS, code.sub(a.inputs, channel))
        end = code.minimum(code.plus(column, wide), a.columns)
        with code.loop(0, a.taps) as tap:
            row = code.plus(code.mul(tap, a.inputs), channel)
            with code.if_then(code.icmp_signed(">", a.chunks, code.i64(0))), code.loop(row, code.plus(row, rows)) as r:
                _add_chunks(code, a, code.plus(code.mul(r, a.columns), column), code.sub(end, column))
            call_epilogue(code, a, (row, code.plus(row, rows)), (column, end))
    code.done()
    return code.module


def _add_chunks(code: Code, a: SimpleNamespace, start: Value, count: Value) -> None:
    """The total of the chunks for up to a vector of adjacent elements, added from the first chunk to the last."""
    lanes = current_target().lanes(32)
    size = code.mul(code.mul(a.taps, a.inputs), a.columns)
    partial = code.at(a.work, a.partial, I8)

    def total(at: Value, kind: ir.Type) -> Value:
        def add(chunk: Value, so_far: list[Value]) -> list[Value]:
            return [code.fadd(so_far[0], code.read(partial, code.plus(code.mul(chunk, size), at), kind))]

        return code.loop_carrying(1, a.chunks, [code.read(partial, at, kind)], add)[0]

    with code.if_else(code.icmp_signed("==", count, code.i64(lanes))) as (then, otherwise):
        with then:
            code.write(total(start, vector(F32, lanes)), a.w, start)
        with otherwise, code.loop(start, code.plus(start, count)) as at:
            code.write(total(at, F32), a.w, at)
