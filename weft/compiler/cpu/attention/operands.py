"""Operands of attention prepared once for all blocks: panels of keys and values, rows in the type of the arithmetic, sums of products."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..gemm.packing import BYTES, ELEMENTS, pack_panels, panels_together, read_as
from ..ir_builder import I64, PTR, Code, Value, constant, new_module, vector
from ..target import current_target

CHUNK = 512  # ks that are packed at a time
PACK = (
    "source",
    "target",
    "tid",
    "threads",
    "batch",
    "heads",
    "batch_step",
    "head_step",
    "lines",
    "k",
    "across",
    "along",
    "offset",
)
ROWS = (
    "source",
    "target",
    "tid",
    "threads",
    "batch",
    "heads",
    "batch_step",
    "head_step",
    "rows",
    "width",
    "row_step",
    "step",
    "offset",
)
DELTA = (
    "out", "g", "target", "tid", "threads", "batch", "heads", "rows", "width",
    "out_batch", "out_head", "out_row", "out_step", "g_batch", "g_head", "g_row", "g_step", "offset",
)  # fmt: skip


def pack(symbol: str) -> ir.Module:
    """attention.pack.TYPE.SOURCE.WIDTH: the matrices of all heads in panels, one matrix after the other, from an offset of the target."""
    *_, kind, source, width = symbol.split(".")
    module = new_module(symbol)
    panels = pack_panels(module, source, kind, int(width))
    code, of = _begin(module, symbol, PACK, 2)
    group = int(width) * panels_together(int(width))
    groups, pieces = code.ceil_div(of["lines"], group), code.ceil_div(of["k"], CHUNK)
    apart = code.times(of["k"], int(width))
    size = code.mul(code.ceil_div(of["lines"], int(width)), apart)
    matrices = code.mul(of["batch"], of["heads"])
    first, last = code.share(code.mul(matrices, code.mul(groups, pieces)), of["tid"], of["threads"])
    with code.loop(first, last, name="task") as task:
        line, rest = code.times(code.srem(task, groups), group), code.sdiv(task, groups)
        k0, z = code.times(code.srem(rest, pieces), CHUNK), code.sdiv(rest, pieces)
        start = code.plus(_matrix(code, of, z), code.mul(line, of["across"]), code.mul(k0, of["along"]))
        home = code.plus(code.mul(z, size), code.mul(line, of["k"]), code.times(k0, int(width)), of["offset"])
        lines, length = code.minimum(code.sub(of["lines"], line), group), code.minimum(CHUNK, code.sub(of["k"], k0))
        here, there = code.at(of["source"], start, ELEMENTS[source]), code.at(of["target"], home, ELEMENTS[kind])
        code.call(panels, [here, there, lines, length, of["across"], of["along"], apart])
    code.done()
    return module


def rows(symbol: str) -> ir.Module:
    """attention.rows.TYPE.SOURCE: (batch, heads, rows, width) without gaps, from an offset of the target."""
    *_, kind, source = symbol.split(".")
    module = new_module(symbol)
    code, of = _begin(module, symbol, ROWS, 2)
    total = code.mul(code.mul(of["batch"], of["heads"]), of["rows"])
    first, last = code.share(total, of["tid"], of["threads"])
    with code.loop(first, last, name="row") as row:
        start = code.plus(
            _matrix(code, of, code.sdiv(row, of["rows"])), code.mul(code.srem(row, of["rows"]), of["row_step"])
        )
        home = code.plus(code.mul(row, of["width"]), of["offset"])
        with code.loop(0, of["width"], name="i") as i:
            value = read_as(code, of["source"], code.plus(start, code.mul(i, of["step"])), source, kind, 1)
            code.write(value, of["target"], code.plus(home, i))
    code.done()
    return module


def delta(symbol: str) -> ir.Module:
    """attention.delta.TYPE.SOURCE.LAYOUT: for each row the sum of output times its gradient, and with .lse at the end less that of the log-sum-exp.

    The layout is `flat` if the elements of rows are next to each other, else `strided`.
    """
    _, _, kind, source, layout, *less = symbol.split(".")
    module = new_module(symbol)
    names = (*DELTA[:2], *(["lse"] if less else []), *DELTA[2:], *(["lse_at"] if less else []))
    code, of = _begin(module, symbol, names, 4 if less else 3)
    lanes = 2 * current_target().lanes(8 * BYTES[kind]) if layout == "flat" else 1
    whole = code.sub(of["width"], code.srem(of["width"], code.i64(lanes)))
    first, last = code.share(code.mul(code.mul(of["batch"], of["heads"]), of["rows"]), of["tid"], of["threads"])
    with code.loop(first, last, name="row") as row:
        z, i = code.sdiv(row, of["rows"]), code.srem(row, of["rows"])
        b, h = code.sdiv(z, of["heads"]), code.srem(z, of["heads"])
        starts = {
            name: code.plus(
                *(code.mul(at, of[f"{name}_{part}"]) for at, part in ((b, "batch"), (h, "head"), (i, "row")))
            )
            for name in ("out", "g")
        }

        def products(width: int, starts: dict[str, Value] = starts) -> Callable[[Value, list[Value]], list[Value]]:
            def add(j: Value, total: list[Value]) -> list[Value]:
                places = {name: code.plus(starts[name], code.mul(j, of[f"{name}_step"])) for name in starts}
                x, y = (read_as(code, of[name], place, source, kind, width) for name, place in places.items())
                return [code.fma(x, y, total[0])]

            return add

        [many] = code.loop_carrying(0, whole, [constant(vector(ELEMENTS[kind], lanes), 0.0)], products(lanes), lanes)
        [total] = code.loop_carrying(whole, of["width"], [code.reduce_lanes(many, code.fadd)], products(1))
        if less:
            total = code.fsub(total, code.read(of["lse"], code.plus(row, of["lse_at"]), ELEMENTS[kind]))
        code.write(total, of["target"], code.plus(row, of["offset"]))
    code.done()
    return module


def _begin(module: ir.Module, symbol: str, names: tuple[str, ...], pointers: int) -> tuple[Code, dict[str, Value]]:
    code = Code.begin(module, symbol, [PTR] * pointers + [I64] * (len(names) - pointers))
    return code, dict(zip(names, code.arguments, strict=True))


def _matrix(code: Code, of: dict[str, Value], z: Value) -> Value:
    """Where the matrix of an example's head begins."""
    b, h = code.sdiv(z, of["heads"]), code.srem(z, of["heads"])
    return code.plus(code.mul(b, of["batch_step"]), code.mul(h, of["head_step"]))
