"""The CPU kernels of ext_rotate and ext_moments: library functions whose rows threads share."""

from weft import extend
from weft.compiler.cpu.ir_builder import F32, I64, PTR, Code, new_module
from weft.compiler.cpu.library import library
from weft.compiler.ir.plan import Plan, PlanPhase

from .ops import MOMENTS, ROTATE


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


@library("ext_moments")
def moments(symbol):
    """ext_moments.RESULTS: "mean", "variance" or "both", in the order of the pointers."""
    results = {"mean": ["mean"], "variance": ["variance"], "both": ["mean", "variance"]}[symbol.split(".")[1]]
    module = new_module(symbol)
    code = Code.begin(module, symbol, [PTR, *[PTR] * len(results), I64, I64, I64, I64])
    x, *written, tid, threads, rows, columns = code.arguments
    targets = dict(zip(results, written, strict=True))
    first, last = code.share(rows, tid, threads)
    count = code.sitofp(columns, F32)
    with code.loop(first, last, name="row") as row:
        begin = code.times(row, columns)

        def total(term, begin=begin):
            zero = F32(0.0)
            [found] = code.loop_carrying(
                0, columns, [zero], lambda i, s: [code.fadd(s[0], term(code.read(x, code.plus(begin, i), F32)))]
            )
            return found

        mean = code.fdiv(total(lambda value: value), count)
        if "mean" in targets:
            code.write(mean, targets["mean"], row)
        if "variance" in targets:

            def squared(value, mean=mean):
                apart = code.fsub(value, mean)
                return code.fmul(apart, apart)

            squares = total(squared)
            code.write(code.fdiv(squares, count), targets["variance"], row)
    code.done()
    return module


@extend.lower("cpu", MOMENTS.name)
def moments_plan(node, threads, wanted):
    """`wanted`: the numbers of the results that are read. Only these have memory."""
    rows, columns = node.inputs[0].shape
    if not rows:
        return Plan("nothing", (), 0, 0)
    names = [f"y{i}" for i in sorted(wanted)]
    which = "both" if len(wanted) == 2 else "mean" if 0 in wanted else "variance"
    arguments = ("x0", *names, "tid", "threads", rows, columns)
    return Plan("moments", (PlanPhase(f"ext_moments.{which}", arguments, frozenset({"x0"}), frozenset(names)),), 0, 0)
