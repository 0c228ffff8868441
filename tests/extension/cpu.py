"""The CPU kernel of ext_rotate: a library function whose rows threads share."""

from weft import extend
from weft.compiler.cpu.ir_builder import F32, I64, PTR, Code, new_module
from weft.compiler.cpu.library import library
from weft.compiler.ir.plan import Plan, PlanPhase

from .ops import ROTATE


@library("ext_rotate")
def rotate(symbol):
    module = new_module(symbol)
    code = Code.begin(module, symbol, [PTR, PTR, I64, I64, I64, I64])
    x, y, tid, threads, rows, columns = code.arguments
    first, last = code.share(rows, tid, threads)
    with code.loop(first, last, name="row") as row, code.loop(0, columns, name="column") as column:
        source = code.srem(code.add(column, code.plus(columns, -1)), columns)
        begin = code.times(row, columns)
        code.write(code.read(x, code.plus(begin, source), F32), y, code.plus(begin, column))
    code.done()
    return module


@extend.lower("cpu", ROTATE.name)
def plan(node, threads):
    rows, columns = node.shape
    if not rows * columns:
        return Plan("nothing", (), 0, 0)
    arguments = ("x0", "y", "tid", "threads", rows, columns)
    return Plan("rotation", (PlanPhase("ext_rotate.f32", arguments, frozenset({"x0"}), frozenset({"y"})),), 0, 0)
