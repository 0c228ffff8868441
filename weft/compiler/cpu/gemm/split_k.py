"""Split-K: the sum of partial products, where few results with a long k were split along k.

The pieces depend on the shape alone and are added in order, so the bits do not depend on the number of threads.
"""

from __future__ import annotations

from llvmlite import ir

from ..ir_builder import I64, PTR, Code, Value, constant, new_module, vector
from ..library import library
from ..target import current_target
from .arithmetic import is_integer
from .packing import BYTES, ELEMENTS
from .product import call_epilogue

# The arguments, by name, in order: `parts` consecutive matrices of m x n are summed to c. A block of rows is a task.
ADDUP = (
    "c",
    "work",
    "epilogue",
    "context",
    "tid",
    "threads",
    "parts",
    "offset",
    "m",
    "n",
    "c_row",
    "rows",
    "accumulate",
)


@library("addup")
def make(symbol: str) -> ir.Module:
    """addup.TYPE: c = part 0 + part 1 + ..., by all threads together."""
    kind = symbol.split(".")[1]
    module = new_module(symbol)
    code = Code.begin(module, symbol, [PTR] * 4 + [I64] * (len(ADDUP) - 4))
    of = dict(zip(ADDUP, code.arguments, strict=True))
    tasks = code.sdiv(code.plus(of["m"], of["rows"], -1), of["rows"])
    first, last = code.share(tasks, of["tid"], of["threads"])
    with code.loop(first, last, name="task") as task:
        top = code.mul(task, of["rows"])
        bottom = code.minimum(code.plus(top, of["rows"]), of["m"])
        with code.loop(top, bottom, name="row") as row:
            _row(code, of, kind, row)
        with code.if_then(code.icmp_unsigned("!=", of["epilogue"], ir.Constant(PTR, None))):
            call_epilogue(code, of["epilogue"], of["context"], code.i64(0), top, bottom, code.i64(0), of["n"])
    code.done()
    return module


def _row(code: Code, of: dict[str, Value], kind: str, row: Value) -> None:
    lanes = current_target().lanes(8 * BYTES[kind])
    whole = code.sub(of["n"], code.srem(of["n"], code.i64(lanes)))
    with code.loop(0, whole, lanes) as column:
        _add(code, of, kind, row, column, lanes)
    with code.loop(whole, of["n"]) as column:
        _add(code, of, kind, row, column, 1)


def _add(code: Code, of: dict[str, Value], kind: str, row: Value, column: Value, lanes: int) -> None:
    some = vector(ELEMENTS[kind], lanes)
    here = code.plus(code.mul(row, of["c_row"]), column)
    place = code.plus(of["offset"], code.mul(row, of["n"]), column)
    begin = code.block
    with code.if_then(code.icmp_signed("!=", of["accumulate"], code.i64(0))):
        old = code.read(of["c"], here, some)
        loaded = code.block
    start = code.phi(some)
    start.add_incoming(constant(some, 0.0), begin)
    start.add_incoming(old, loaded)
    size = code.mul(of["m"], of["n"])

    def next_part(part: Value, total: list[Value]) -> list[Value]:
        add = code.add if is_integer(kind) else code.fadd
        return [add(total[0], code.read(of["work"], code.plus(place, code.mul(part, size)), some))]

    (total,) = code.loop_carrying(0, of["parts"], [start], next_part)
    code.write(total, of["c"], here)
