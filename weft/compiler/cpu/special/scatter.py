"""scatter: a copy of a tensor with values written or added at indices, in the order of the indices.

First the indices of each axis are checked and converted to offsets into the tensor, accumulated in the workspace. Then every thread
scans all offsets and processes its own: a range of offsets or, where rows are long, a range of their columns. So no two threads write
the same element, and every element receives its values in order.

The row of an index is a box over the axes without an index, with adjacent axes merged; it is contiguous unless the last axis of the
tensor has an index. 16-bit floats are accumulated in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import prod

from llvmlite import ir

from ....dtypes import DType, as_dtype, bool_, float32
from ....graph.node import Node
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..ir_builder import I8, I32, I64, PTR, Code, Value, constant, new_module, vector
from ..library import library
from ..scalars import from_storage, storage_type, to_storage
from ..target import current_target

# The arguments by name, in order. Offsets are counted in elements, `offsets` in bytes from the workspace on.
PLACES = ("index", "work", "status", "tid", "threads", "site", "count", "size", "stride", "offsets")
COPY = ("source", "target", "tid", "threads", "count")
ROWS = (
    "values",
    "target",
    "work",
    "tid",
    "threads",
    "count",
    "span",
    "offsets",
    "columns",
)  # and a size and a stride an axis
_TILE = 16  # strided columns that are processed at a time


@library("scatter")
def make(symbol: str) -> ir.Module:
    """scatter.places.INDEX_DTYPE.ORDER.SIZE, scatter.copy.SOURCE.TARGET, scatter.HOW.VALUES.TARGET.AXES.GAPS"""
    _, part, *rest = symbol.split(".")
    module = new_module(symbol)
    if part == "places":
        _make_places(module, symbol, as_dtype(rest[0]), rest[1] == "first", rest[2] == "huge")
    elif part == "copy":
        _make_copy(module, symbol, as_dtype(rest[0]), as_dtype(rest[1]))
    else:
        _ScatterRows(module, symbol).write()
    return module


# --- offsets ------------------------------------------------------------------------------------------------------------


def _make_places(module: ir.Module, symbol: str, dtype: DType, is_first: bool, huge: bool) -> None:
    """Convert the indices of one axis to offsets, or add them to those of the preceding axes."""
    code = Code.begin(module, symbol, [PTR] * 3 + [I64] * (len(PLACES) - 3))
    of = dict(zip(PLACES, code.arguments, strict=True))
    offsets = code.at(of["work"], of["offsets"], I8)
    first, last = code.share(of["count"], of["tid"], of["threads"])
    with code.loop(first, last) as k:
        value = code.read(of["index"], k, storage_type(dtype))
        if dtype.bits < 64:
            value = code.sext(value, I64) if dtype.kind == "int" else code.zext(value, I64)
        place = value
        if dtype.kind == "int":
            place = code.select(code.icmp_signed("<", value, code.i64(0)), code.add(value, of["size"]), value)
        bad = code.icmp_unsigned(">=", place, of["size"])
        with code.if_then(bad, likely=False):
            code.write(of["site"], of["status"], 0)
            code.write(value, of["status"], 1)
        offset = _product(code, code.select(bad, code.i64(0), place), of["stride"], huge)
        code.write(offset if is_first else code.plus(code.read(offsets, k, I64), offset), offsets, k)
    code.done()


def _product(code: Code, a: Value, b: Value, huge: bool) -> Value:
    """The product of two integers; cheaper if they fit in 32 bits."""
    if not huge:
        a, b = (code.zext(code.trunc(x, I32), I64) for x in (a, b))
    return code.mul(a, b)


# --- copies ---------------------------------------------------------------------------------------------------------------


def _make_copy(module: ir.Module, symbol: str, source: DType, target: DType) -> None:
    """Copy all elements, converted to another dtype if necessary; nothing to do if source and target are the same memory."""
    code = Code.begin(module, symbol, [PTR] * 2 + [I64] * (len(COPY) - 2))
    of = dict(zip(COPY, code.arguments, strict=True))
    first, last = code.share(of["count"], of["tid"], of["threads"])
    if source is target:
        with code.if_then(code.icmp_unsigned("!=", of["source"], of["target"])):
            begin, end = (code.at(of[name], first, storage_type(source)) for name in ("target", "source"))
            bytes = code.mul(code.sub(last, first), code.i64(source.itemsize))
            kind = ir.FunctionType(ir.VoidType(), [PTR, PTR, I64, ir.IntType(1)])
            code.call(
                ir.Function(module, kind, "llvm.memcpy.p0.p0.i64"), [begin, end, bytes, constant(ir.IntType(1), 0)]
            )
    else:
        for begin, end, lanes in in_vectors(code, first, last, current_target().lanes(32)):
            with code.loop(begin, end, lanes) as i:
                x = code.read(of["source"], i, vector(storage_type(source), lanes))
                code.write(to_storage(code, from_storage(code, x, source), target), of["target"], i)
    code.done()


def in_vectors(code: Code, first: Value, last: Value, lanes: int) -> list[tuple[Value, Value, int]]:
    """Split a range into whole vectors and a remainder."""
    whole = code.sub(last, code.srem(code.sub(last, first), code.i64(lanes)))
    return [(first, whole, lanes), (whole, last, 1)]


# --- rows ---------------------------------------------------------------------------------------------------------------------


class _ScatterRows:
    """Emits the function that stores or adds rows."""

    def __init__(self, module: ir.Module, symbol: str) -> None:
        _, self.how, values, target, axes, gaps = symbol.split(".")
        self.values, self.target, self.axes, self.gaps = as_dtype(values), as_dtype(target), int(axes), gaps == "gaps"
        code = self.code = Code.begin(module, symbol, [PTR] * 3 + [I64] * (len(ROWS) - 3 + 2 * self.axes))
        self.of = dict(zip(ROWS, code.arguments, strict=False))
        box = code.arguments[len(ROWS) :]
        self.sizes, self.strides = box[: self.axes], box[self.axes :]

    def write(self) -> None:
        code, of = self.code, self.of
        self.offsets = code.at(of["work"], of["offsets"], I8)
        low, high = self._own_offsets()
        with code.if_else(code.icmp_signed("==", code.sub(high, low), of["span"])) as (all_rows, some_rows):
            with all_rows:
                self._rows(of["count"], lambda k: k)
            with some_rows:
                self._own_rows(low, high)
        code.done()

    def _own_rows(self, low: Value, high: Value) -> None:
        """Process the offsets in blocks: those of this thread are compacted into a list without branches, then processed."""
        code, of = self.code, self.of
        mine = code.stack_array(I64, thresholds.scatter_block)
        with code.loop(0, of["count"], thresholds.scatter_block, name="block") as block:
            end = code.minimum(of["count"], code.plus(block, thresholds.scatter_block))

            def look(k: Value, found: list[Value]) -> list[Value]:
                offset = code.read(self.offsets, k, I64)
                own = code.icmp_unsigned("<", code.sub(offset, low), code.sub(high, low))
                code.write(k, mine, found[0])
                return [code.add(found[0], code.zext(own, I64))]

            (found,) = code.loop_carrying(block, end, [code.i64(0)], look)
            self._rows(found, lambda i: code.read(mine, i, I64))

    def _rows(self, count: Value, number: Callable[[Value], Value]) -> None:
        """Process rows by number. Strided rows a few columns at a time, because they share cache lines with other rows."""
        code = self.code
        step = _TILE if self.gaps else code.maximum(1, code.sub(self.right, self.left))
        with code.loop(self.left, self.right, step, name="tile") as left:
            right = code.minimum(self.right, code.plus(left, step))
            with code.loop(0, count, name="own") as i:
                k = number(i)
                self._row(k, code.read(self.offsets, k, I64), left, right)

    def _own_offsets(self) -> tuple[Value, Value]:
        """The thread's range of offsets, or all of them if threads divide the columns."""
        code, of = self.code, self.of
        by_columns = code.icmp_signed("!=", of["columns"], code.i64(0))
        low, high = code.share(of["span"], of["tid"], of["threads"])
        width = self.sizes[-1] if self.axes else code.i64(1)
        left, right = code.share(width, of["tid"], of["threads"])
        self.left, self.right = code.select(by_columns, left, code.i64(0)), code.select(by_columns, right, width)
        return code.select(by_columns, code.i64(0), low), code.select(by_columns, of["span"], high)

    def _row(self, k: Value, offset: Value, left: Value, right: Value) -> None:
        """Some columns of one box: loops over its axes but the last, then a line."""
        code, line = self.code, k
        with ExitStack() as loops:
            for size, stride in zip(self.sizes[:-1], self.strides[:-1], strict=True):
                i = loops.enter_context(code.loop(0, size, name="axis"))
                offset = code.plus(offset, code.mul(i, stride))
                line = code.plus(code.mul(line, size), i)
            if self.axes:
                self._line(code.mul(line, self.sizes[-1]), offset, left, right)
            else:
                self._elements(line, offset, 1)

    def _line(self, source: Value, target: Value, left: Value, right: Value) -> None:
        code = self.code
        stride, lanes = (self.strides[-1], 1) if self.gaps else (code.i64(1), current_target().lanes(self.target.bits))
        for begin, end, width in [(left, right, 1)] if lanes == 1 else in_vectors(code, left, right, lanes):
            with code.loop(begin, end, width, name="column") as c:
                self._elements(code.plus(source, c), code.plus(target, code.mul(c, stride)), width)

    def _elements(self, source: Value, target: Value, lanes: int) -> None:
        code, of = self.code, self.of
        value = code.read(of["values"], source, vector(storage_type(self.values), lanes))
        if self.how == "add":
            old = code.read(of["target"], target, vector(storage_type(self.target), lanes))
            value = self._sum(old, value if self.values is self.target else from_storage(code, value, self.values))
        code.write(value, of["target"], target)

    def _sum(self, a: Value, b: Value) -> Value:
        if self.target.is_float:
            return self.code.fadd(a, b)
        return self.code.or_(a, b) if self.target is bool_ else self.code.add(a, b)


# --- plans ----------------------------------------------------------------------------------------------------------------------


def plan(node: Node, threads: int) -> Plan:
    """The plan of a scatter by at most `threads` threads."""
    axes, how = node.param("axes"), node.param("how")
    x, values, *indices = node.inputs
    size, count = prod(x.shape), prod(indices[0].shape)
    strides = [prod(x.shape[a + 1 :]) for a in range(len(x.shape))]
    sums = how == "add" and x.dtype.is_half  # accumulated in the workspace, in float32
    offsets = 4 * size if sums else 0
    offsets += -offsets % 64
    phases = [
        copy_phase(x.dtype, float32, "x0", "work", size) if sums else copy_phase(x.dtype, x.dtype, "x0", "y", size)
    ]
    if count:
        phases += [
            _places_phase(i, index.dtype, count, x.shape[a], strides[a], offsets)
            for i, (a, index) in enumerate(zip(axes, indices, strict=True))
        ]
    if count and prod(values.shape) and size:
        span = sum((x.shape[a] - 1) * strides[a] for a in axes) + 1
        phases.append(_rows_phase(node, count, span, offsets, strides, threads))
    if sums:
        phases.append(copy_phase(float32, x.dtype, "work", "y", size))
    if not size:
        phases = [p for p in phases if not p.symbol.startswith("scatter.copy")]
    return Plan(f"scatter ({how})", tuple(phases), offsets + 8 * count, prod(values.shape) if how == "add" else 0)


def copy_phase(source: DType, target: DType, read: str, written: str, count: int) -> PlanPhase:
    if source is target:  # only its size matters
        source = target = BY_SIZE[source.itemsize]
    arguments = (read, written, "tid", "threads", count)
    symbol, copies = f"scatter.copy.{source.name}.{target.name}", (read, written) == ("x0", "y")
    return PlanPhase(symbol, arguments, frozenset({read}), frozenset({written}), copies=copies)


BY_SIZE = {bytes: as_dtype(f"uint{8 * bytes}") for bytes in (1, 2, 4, 8)}


def _places_phase(i: int, dtype: DType, count: int, size: int, stride: int, offsets: int) -> PlanPhase:
    name = f"x{2 + i}"
    arguments = (name, "work", "status", "tid", "threads", f"site{i}", count, size, stride, offsets)
    order, reads = ("first", {name}) if i == 0 else ("further", {name, "work"})
    extent = "huge" if max(size, stride) >= 1 << 32 else "usual"
    return PlanPhase(f"scatter.places.{dtype.name}.{order}.{extent}", arguments, frozenset(reads), frozenset({"work"}))


def _rows_phase(node: Node, count: int, span: int, offsets: int, strides: Sequence[int], threads: int) -> PlanPhase:
    axes, how = node.param("axes"), node.param("how")
    dtype = node.inputs[0].dtype
    values = target = dtype if how == "add" else BY_SIZE[dtype.itemsize]
    goal = "y"
    if how == "add" and dtype.is_half:
        target, goal = float32, "work"
    sizes, steps = _box(node.inputs[0].shape, strides, axes)
    gaps = "gaps" if steps and steps[-1] != 1 else "whole"
    symbol = f"scatter.{how}.{values.name}.{target.name}.{len(sizes)}.{gaps}"
    columns = _by_columns(count, sizes, target.itemsize, gaps == "gaps", threads)
    arguments: tuple[str | int, ...] = (
        "x1",
        goal,
        "work",
        "tid",
        "threads",
        count,
        span,
        offsets,
        int(columns),
        *sizes,
        *steps,
    )
    written = prod(node.inputs[1].shape) * target.itemsize
    return PlanPhase(symbol, arguments, frozenset({"x1", "work", goal}), frozenset({goal}), written)


def _by_columns(count: int, sizes: Sequence[int], itemsize: int, gaps: bool, threads: int) -> bool:
    """Whether threads divide the columns of all rows: where rows are long, or too few."""
    if not sizes:
        return False
    enough = (
        2 * _TILE
        if gaps
        else (64 if count < thresholds.scatter_few * threads else thresholds.scatter_columns) // itemsize
    )
    return sizes[-1] >= enough * threads


def _box(shape: Sequence[int], strides: Sequence[int], axes: Sequence[int]) -> tuple[list[int], list[int]]:
    """The sizes and strides of the axes without an index, adjacent ones merged."""
    sizes: list[int] = []
    steps: list[int] = []
    for a in range(len(shape)):
        if a in axes or shape[a] == 1:
            continue
        if sizes and steps[-1] == strides[a] * shape[a]:
            sizes[-1], steps[-1] = sizes[-1] * shape[a], strides[a]
        else:
            sizes.append(shape[a])
            steps.append(strides[a])
    return sizes, steps
