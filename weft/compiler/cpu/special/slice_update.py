"""update_slice: a copy of a tensor with one slice replaced. In place there is nothing to copy, and only the slice is touched.

Every thread computes where the slice begins from the indices, and writes its share of the slice's first axis. A wrong index is
reported, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod

from llvmlite import ir

from ....dtypes import as_dtype
from ....graph.node import Node
from ...ir.plan import Plan, PlanPhase
from ..ir_builder import I64, PTR, Code, Value, new_module, vector
from ..library import library
from ..scalars import storage_type
from ..target import current_target
from .scatter import BY_SIZE, copy_phase, in_vectors

FIXED = ("values", "target", "status", "tid", "threads", "begin")


@library("update_slice")
def make(symbol: str) -> ir.Module:
    """update_slice.ELEMENT.AXES.GAPS[.INDEX_DTYPE ...]

    Further arguments: a size and a stride an axis of the slice; a pointer, the number of its error, a size and a stride an index.
    """
    _, element, axes, gaps, *indices = symbol.split(".")
    module, count = new_module(symbol), int(axes)
    types = [PTR] * 3 + [I64] * (3 + 2 * count) + [PTR, I64, I64, I64] * len(indices)
    code = Code.begin(module, symbol, types)
    of = dict(zip(FIXED, code.arguments, strict=False))
    box = code.arguments[len(FIXED) : len(FIXED) + 2 * count]
    given = code.arguments[len(FIXED) + 2 * count :]
    offset: Value = of["begin"]
    for i, name in enumerate(indices):
        offset = code.plus(offset, _offset(code, of["status"], name, given[4 * i : 4 * i + 4]))
    _write(code, of, storage_type(as_dtype(element)), offset, box[:count], box[count:], gaps == "gaps")
    code.done()
    return module


def _offset(code: Code, status: Value, name: str, index: Sequence[Value]) -> Value:
    """Where an index leads. If it is out of range, that is reported and the function ends."""
    pointer, site, size, stride = index
    dtype = as_dtype(name)
    value = code.read(pointer, 0, storage_type(dtype))
    if dtype.bits < 64:
        value = code.sext(value, I64) if dtype.kind == "int" else code.zext(value, I64)
    place = value
    if dtype.kind == "int":
        place = code.select(code.icmp_signed("<", value, code.i64(0)), code.add(value, size), value)
    with code.if_then(code.icmp_unsigned(">=", place, size), likely=False):
        code.write(site, status, 0)
        code.write(value, status, 1)
        code.ret_void()
    return code.mul(place, stride)


def _write(
    code: Code, of: dict[str, Value], type: ir.Type, offset: Value, sizes: Sequence[Value], strides: Sequence[Value],
    gaps: bool,
) -> None:  # fmt: skip
    """The thread's share: loops over the axes of the slice but the last, then a line."""
    first, last = code.share(sizes[0], of["tid"], of["threads"])
    line: Value = code.i64(0)
    with ExitStack() as loops:
        for number, (size, stride) in enumerate(zip(sizes[:-1], strides[:-1], strict=True)):
            begin, end = (code.i64(0), size) if number else (first, last)
            i = loops.enter_context(code.loop(begin, end, name="axis"))
            offset = code.plus(offset, code.mul(i, stride))
            line = code.plus(code.mul(line, size), i)
        source = code.mul(line, sizes[-1])
        begin, end = (first, last) if len(sizes) == 1 else (code.i64(0), sizes[-1])
        parts = [(begin, end, 1)] if gaps else in_vectors(code, begin, end, current_target().lanes(32))
        for low, high, lanes in parts:
            with code.loop(low, high, lanes, name="column") as c:
                value = code.read(of["values"], code.plus(source, c), vector(type, lanes))
                code.write(value, of["target"], code.plus(offset, code.mul(c, strides[-1]) if gaps else c))


def plan(node: Node, threads: int) -> Plan:
    """The plan of an update by up to so many threads."""
    axes, starts, steps = node.get_params("axes", "starts", "steps")
    x, value, *indices = node.inputs
    element = BY_SIZE[x.dtype.itemsize]
    copy = copy_phase(x.dtype, x.dtype, "x0", "y", prod(x.shape))
    if not prod(value.shape):
        return Plan("update_slice", (copy,) if prod(x.shape) else (), 0, 0)
    pitch = [prod(x.shape[a + 1 :]) for a in range(len(x.shape))]
    sizes, strides = _box(value.shape, [(pitch[a] * steps[a]) for a in range(len(x.shape)) if a not in axes])
    gaps = "gaps" if strides[-1] != 1 else "whole"
    symbol = ".".join(["update_slice", element.name, str(len(sizes)), gaps, *(i.dtype.name for i in indices)])
    begin = sum(starts[a] * pitch[a] for a in range(len(x.shape)) if a not in axes)
    given = [(f"x{2 + i}", f"site{i}", x.shape[a], pitch[a]) for i, a in enumerate(axes)]
    arguments = ("x1", "y", "status", "tid", "threads", begin, *sizes, *strides, *(v for one in given for v in one))
    reads = frozenset({"x1", *(one[0] for one in given)})
    written = prod(value.shape) * x.dtype.itemsize
    return Plan("update_slice", (copy, PlanPhase(symbol, arguments, reads, frozenset({"y"}), written)), 0, 0)


def _box(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """The slice with neighbouring axes as one, if they have no gap between them: sizes and strides."""
    sizes: list[int] = []
    steps: list[int] = []
    for n, stride in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if sizes and steps[-1] == stride * n:
            sizes[-1], steps[-1] = sizes[-1] * n, stride
        else:
            sizes.append(n)
            steps.append(stride)
    return (sizes, steps) if sizes else ([1], [1])
