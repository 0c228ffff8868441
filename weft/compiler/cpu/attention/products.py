"""The products of attention's blocks: small matrices in the cache, one operand packed in panels."""

from __future__ import annotations

from llvmlite import ir

from ..gemm.packing import BYTES, ELEMENTS
from ..gemm.register_tile import RegisterTile, columns, load, multiply, rows, store, zeros
from ..ir_builder import I64, PTR, Code, Int, Value, vector
from ..target import current_target


def block_product(module: ir.Module, kind: str, tile: RegisterTile, reading: str, adds: bool) -> ir.Function:
    """A private function (a, a_step, valid rows, b, b_apart, panels, k, c, c_step): c = a b, or c += a b.

    Panels of b are `b_apart` elements from each other. `reading`: "rows" of a with contiguous ks, `a_step` from row to row, of which there are as
    many as are valid; or "columns": contiguous rows, `a_step` from k to k, with room for whole tiles. c has room for whole tiles.
    """
    name = f"product.{kind}.{tile.rows}x{tile.vectors}.{reading}{'.adds' if adds else ''}"
    if name in module.globals:
        return module.globals[name]
    target, element = current_target(), ELEMENTS[kind]
    lanes = target.lanes(8 * BYTES[kind])
    width = tile.columns(lanes)
    code = Code.begin(module, name, [PTR, I64, I64, PTR, I64, I64, I64, PTR, I64], private=True)
    code.function.attributes.add("noinline")
    a, a_step, valid, b, b_apart, panels, k, c, c_step = code.arguments
    last = code.plus(valid, -1)
    with code.loop(0, panels, name="panel") as panel, code.loop(0, valid, tile.rows, name="row") as row:
        start = code.at(b, code.mul(panel, b_apart), element)

        def right(at: Value, step: int, start: Value = start) -> list[Value]:
            here = code.times(code.plus(at, step), width)
            return [code.read(start, code.plus(here, v * lanes), vector(element, lanes)) for v in range(tile.vectors)]

        if reading == "rows":
            each = [code.mul(code.minimum(code.plus(row, r), last), a_step) for r in range(tile.rows)]
            left = rows(code, target, element, [code.at(a, offset, element) for offset in each])
        else:
            left = columns(code, target, tile, element, code.at(a, row, element), a_step)
        here = code.at(c, code.plus(code.mul(row, c_step), code.times(panel, width)), element)
        initial = load(code, tile, element, lanes, here, c_step) if adds else zeros(tile, element, lanes)
        store(code, tile, multiply(code, tile, k, left, right, initial), lanes, here, c_step)
    return code.done()


def fill(code: Code, pointer: Value, begin: Int, end: Int, value: Value, lanes: int) -> None:
    """Fill a range with one value, in vectors; the memory has space for a whole last vector."""
    many = code.splat(value, lanes)
    with code.loop(begin, end, lanes, name="fill") as i:
        code.write(many, pointer, i)
