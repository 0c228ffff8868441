"""cumsum and cumprod of a tensor as (outer, n, inner), along n.

    lines    inner is 1: several lines are interleaved, since each step of a line depends on the one before
    columns  vectors run along the inner elements, in blocks whose accumulators stay in the cache

Cumulative sums along few long lines use a two-pass scan: first the total of every chunk, then every chunk starting from the sum of the
totals before it. Products are not split: the product of a chunk may overflow where the whole is zero. Floats are accumulated in float64
and rounded once an element. The chunks depend on the shape alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from llvmlite import ir

from ....dtypes import DType, as_dtype, bool_
from ....graph.node import Node
from ....records import dataclass
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..ir_builder import F32, F64, I64, PTR, Code, Value, constant, element_of, like, new_module, vector
from ..library import library
from ..scalars import from_storage, register_type, storage_type, to_storage
from ..target import current_target

# The arguments by name, in order. Lines have n elements and are cut in `chunks`, of lengths that differ by one at most.
# The workspace holds the totals of the chunks, one after the other, each with its inner elements contiguous.
CUMULATE = ("x", "y", "work", "tid", "threads", "outer", "n", "inner", "chunks", "block")
_TOGETHER = 4  # lines that are interleaved
_STEP = 4  # floats of a line that are read and converted at a time
_SUMS = 4  # vectors of sums that make a total
_CHUNKS = 64  # the most chunks of a line


@library("cumulate")
def make(symbol: str) -> ir.Module:
    """cumulate.HOW.PART.OP.DTYPE: HOW is lines or columns; PART is whole, or for two passes totals and then chunks."""
    _, how, part, op, dtype = symbol.split(".")
    module = new_module(symbol)
    code = Code.begin(module, symbol, [PTR] * 3 + [I64] * (len(CUMULATE) - 3))
    of = dict(zip(CUMULATE, code.arguments, strict=True))
    way = _Accumulation(op, as_dtype(dtype))
    (_CumulativeLines if how == "lines" else _CumulativeColumns)(code, of, way, part).write()
    code.done()
    return module


@dataclass(frozen=True)
class _Accumulation:
    """How elements are accumulated: the op, and the type of the accumulator."""

    op: str
    dtype: DType

    @property
    def type(self) -> ir.Type:
        """The type of the accumulator in registers; in memory a bool is a byte."""
        return F64 if self.dtype.is_float else register_type(self.dtype)

    @property
    def bytes(self) -> int:
        """The bytes of an accumulator in the workspace."""
        return 8 if self.dtype.is_float else self.dtype.itemsize

    @property
    def nothing(self) -> float | int:
        """The identity: combining it changes nothing, not even the sign of -0.0."""
        if self.op == "cumprod":
            return 1.0 if self.dtype.is_float else 1
        return -0.0 if self.dtype.is_float else 0

    def join(self, code: Code, total: Value, x: Value) -> Value:
        if self.dtype is bool_:
            return code.or_(total, x) if self.op == "cumsum" else code.and_(total, x)
        if self.dtype.is_float:
            return code.fadd(total, x) if self.op == "cumsum" else code.fmul(total, x)
        return code.add(total, x) if self.op == "cumsum" else code.mul(total, x)

    def read(self, code: Code, pointer: Value, at: Value, lanes: int) -> Value:
        x = code.read(pointer, at, vector(storage_type(self.dtype), lanes))
        x = from_storage(code, x, self.dtype)
        wide = like(x.type, self.type)
        return x if x.type == wide else code.fpext(x, wide)

    def write(self, code: Code, total: Value, pointer: Value, at: Value) -> None:
        if self.dtype.is_half:
            total = code.fptrunc(total, like(total.type, F32))
        elif self.dtype.is_float and self.dtype.bits < 64:
            total = code.fptrunc(total, like(total.type, storage_type(self.dtype)))
        code.write(to_storage(code, total, self.dtype), pointer, at)

    def read_total(self, code: Code, pointer: Value, at: Value, lanes: int) -> Value:
        return (
            code.read(pointer, at, vector(F64, lanes)) if self.dtype.is_float else self.read(code, pointer, at, lanes)
        )

    def write_total(self, code: Code, total: Value, pointer: Value, at: Value) -> None:
        code.write(total if element_of(total.type) == F64 else to_storage(code, total, self.dtype), pointer, at)


class _CumulativeLines:
    """Emits the code for contiguous lines. A chunk of a line is a task."""

    def __init__(self, code: Code, of: dict[str, Value], way: _Accumulation, part: str) -> None:
        self.code, self.of, self.way, self.part = code, of, way, part

    def write(self) -> None:
        code, of = self.code, self.of
        first, last = code.share(code.mul(of["outer"], of["chunks"]), of["tid"], of["threads"])
        if self.part == "totals":
            with code.loop(first, last, name="task") as task:
                self.way.write_total(code, self._total(*self._bounds(task)), of["work"], task)
            return
        whole = code.sub(last, code.srem(code.sub(last, first), code.i64(_TOGETHER)))
        for begin, end, count in ((first, whole, _TOGETHER), (whole, last, 1)):
            with code.loop(begin, end, count, name="task") as task:
                self._tasks([code.plus(task, i) for i in range(count)])

    def _tasks(self, tasks: list[Value]) -> None:
        """Several lines or chunks: interleaved up to the shortest length, then the remainder of each."""
        code, of = self.code, self.of
        if self.part == "whole":
            nothing = constant(self.way.type, self.way.nothing)
            self._follow([code.mul(task, of["n"]) for task in tasks], code.i64(0), of["n"], [nothing] * len(tasks))
            return
        bounds = [self._bounds(task) for task in tasks]
        common = bounds[0][1]
        for _, length in bounds[1:]:
            common = code.minimum(common, length)
        starts = [self._start(task) for task in tasks]
        reached = self._follow([begin for begin, _ in bounds], code.i64(0), common, starts)
        for (begin, length), total in zip(bounds, reached, strict=True):
            self._steps([begin], common, length, [total], 1)

    def _total(self, begin: Value, length: Value) -> Value:
        """The total of a chunk: several vector accumulators, combined pairwise, then the remainder."""
        code, way, lanes = self.code, self.way, current_target().lanes(8 * self.way.bytes)
        wide = lanes * _SUMS
        whole = code.sub(length, code.srem(length, code.i64(wide)))

        def add(i: Value, totals: list[Value]) -> list[Value]:
            read = [way.read(code, self.of["x"], code.plus(begin, i, part * lanes), lanes) for part in range(_SUMS)]
            return [way.join(code, total, x) for total, x in zip(totals, read, strict=True)]

        def add_one(i: Value, total: list[Value]) -> list[Value]:
            return [way.join(code, total[0], way.read(code, self.of["x"], code.plus(begin, i), 1))]

        sums = code.loop_carrying(0, whole, [constant(vector(way.type, lanes), way.nothing)] * _SUMS, add, wide)
        parts = [code.lane(self._joined(sums), lane) for lane in range(lanes)]
        return code.loop_carrying(whole, length, [self._joined(parts)], add_one)[0]

    def _joined(self, parts: list[Value]) -> Value:
        while len(parts) > 1:
            parts = [self.way.join(self.code, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _bounds(self, task: Value) -> tuple[Value, Value]:
        """The beginning and the length of a chunk."""
        code, of = self.code, self.of
        line, chunk = code.sdiv(task, of["chunks"]), code.srem(task, of["chunks"])
        first, last = code.share(of["n"], chunk, of["chunks"])
        return code.plus(code.mul(line, of["n"]), first), code.sub(last, first)

    def _start(self, task: Value) -> Value:
        """The total of the preceding chunks, added in order."""
        code, way = self.code, self.way
        first = code.sub(task, code.srem(task, self.of["chunks"]))

        def step(chunk: Value, total: list[Value]) -> list[Value]:
            return [way.join(code, total[0], way.read_total(code, self.of["work"], chunk, 1))]

        return code.loop_carrying(first, task, [constant(way.type, way.nothing)], step)[0]

    def _follow(self, begins: list[Value], first: Value, last: Value, totals: list[Value]) -> list[Value]:
        """Accumulate element by element; floats are loaded, converted and stored as vectors."""
        if not self.way.dtype.is_float:
            return self._steps(begins, first, last, totals, 1)
        whole = self.code.sub(last, self.code.srem(self.code.sub(last, first), self.code.i64(_STEP)))
        totals = self._steps(begins, first, whole, totals, _STEP)
        return self._steps(begins, whole, last, totals, 1)

    def _steps(self, begins: list[Value], first: Value, last: Value, totals: list[Value], lanes: int) -> list[Value]:
        return self.code.loop_carrying(first, last, totals, lambda i, t: self._step(begins, i, t, lanes), lanes)

    def _step(self, begins: list[Value], i: Value, totals: list[Value], lanes: int) -> list[Value]:
        code, way = self.code, self.way
        places = [code.plus(begin, i) for begin in begins]
        read = [way.read(code, self.of["x"], place, lanes) for place in places]
        reached: list[list[Value]] = []
        for total, x in zip(totals, read, strict=True):
            parts = [total]
            for lane in range(lanes):
                parts.append(way.join(code, parts[-1], code.lane(x, lane)))
            reached.append(parts[1:])
        for parts, place in zip(reached, places, strict=True):
            way.write(code, code.gather_lanes(parts), self.of["y"], place)
        return [parts[-1] for parts in reached]


class _CumulativeColumns:
    """Emits the code for contiguous inner elements. A block of columns of a chunk is a task."""

    def __init__(self, code: Code, of: dict[str, Value], way: _Accumulation, part: str) -> None:
        self.code, self.of, self.way, self.part = code, of, way, part
        self.lanes = current_target().lanes(8 * way.bytes) * 2

    def write(self) -> None:
        code, of = self.code, self.of
        blocks = code.sdiv(code.plus(of["inner"], of["block"], -1), of["block"])
        pieces = code.mul(code.mul(of["outer"], of["chunks"]), blocks)
        first, last = code.share(pieces, of["tid"], of["threads"])
        with code.loop(first, last, name="task") as task:
            left = code.mul(code.srem(task, blocks), of["block"])
            width = code.minimum(of["block"], code.sub(of["inner"], left))
            self._piece(code.sdiv(task, blocks), left, width)

    def _piece(self, task: Value, left: Value, width: Value) -> None:
        """The accumulators of a block are an array, to which line after line is added."""
        code, of, way = self.code, self.of, self.way
        line, chunk = code.sdiv(task, of["chunks"]), code.srem(task, of["chunks"])
        first, last = code.share(of["n"], chunk, of["chunks"])
        begin = code.plus(code.mul(code.mul(line, of["n"]), of["inner"]), left)
        totals = code.stack_array(ir.IntType(8), thresholds.cumulate_columns * way.bytes)
        self._begin(totals, code.sub(task, chunk), task, left, width)
        with code.loop(first, last, name="row") as row:
            base = code.plus(begin, code.mul(row, of["inner"]))
            for at, lanes in self._across(width):
                place = code.plus(base, at)
                x = way.read(code, of["x"], place, lanes)
                total = way.join(code, way.read_total(code, totals, at, lanes), x)
                way.write_total(code, total, totals, at)
                if self.part != "totals":
                    way.write(code, total, of["y"], place)
        if self.part == "totals":
            for at, lanes in self._across(width):
                total = way.read_total(code, totals, at, lanes)
                way.write_total(code, total, of["work"], self._total_at(task, left, at))

    def _begin(self, totals: Value, first: Value, task: Value, left: Value, width: Value) -> None:
        """The totals of the preceding chunks, added in order."""
        code, way = self.code, self.way
        for at, lanes in self._across(width):
            way.write_total(code, constant(vector(way.type, lanes), way.nothing), totals, at)
        if self.part != "chunks":
            return
        with code.loop(first, task, name="chunk") as chunk:
            for at, lanes in self._across(width):
                more = way.read_total(code, self.of["work"], self._total_at(chunk, left, at), lanes)
                way.write_total(code, way.join(code, way.read_total(code, totals, at, lanes), more), totals, at)

    def _total_at(self, chunk: Value, left: Value, at: Value) -> Value:
        return self.code.plus(self.code.mul(chunk, self.of["inner"]), left, at)

    def _across(self, width: Value) -> Iterator[tuple[Value, int]]:
        """Loops over the columns of a block: in vectors, then one by one."""
        code = self.code
        whole = code.sub(width, code.srem(width, code.i64(self.lanes)))
        for first, last, lanes in ((code.i64(0), whole, self.lanes), (whole, width, 1)):
            with code.loop(first, last, lanes, name="column") as at:
                yield at, lanes


# --- plans -------------------------------------------------------------------------------------------------------------------


def plan(node: Node, threads: int) -> Plan:
    """The plan of a cumsum or cumprod. For floats it does not depend on the number of threads."""
    axis = node.param("axis")
    x = node.inputs[0]
    outer, n, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    if not outer * n * inner:
        return Plan("nothing", (), 0, 0)
    way, how = _Accumulation(node.op.name, x.dtype), "lines" if inner == 1 else "columns"
    block = min(
        thresholds.cumulate_columns,
        inner,
        thresholds.cumulate_narrow * ceil(inner * outer / (thresholds.cumulate_tasks * thresholds.cumulate_narrow)),
    )
    alone = threads == 1 and not x.dtype.is_float  # integer results do not depend on the chunks
    chunks = 1 if alone else _chunks(way, outer * ceil(inner / block), n, block)
    arguments = ("x0", "y", "work", "tid", "threads", outer, n, inner, chunks, block)
    parts = ("whole",) if chunks == 1 else ("totals", "chunks")
    phases = tuple(_phase(f"cumulate.{how}.{part}.{way.op}.{x.dtype.name}", part, arguments) for part in parts)
    workspace = outer * chunks * inner * way.bytes if chunks > 1 else 0
    return Plan(f"{node.op.name} of {how}", phases, workspace, outer * n * inner)


def _phase(symbol: str, part: str, arguments: tuple[str | int, ...]) -> PlanPhase:
    reads = {"x0", "work"} if part == "chunks" else {"x0"}
    return PlanPhase(symbol, arguments, frozenset(reads), frozenset({"work" if part == "totals" else "y"}))


def _chunks(way: _Accumulation, tasks: int, n: int, block: int) -> int:
    """The number of chunks of a line, by the shape alone."""
    if tasks >= thresholds.cumulate_tasks or way.op == "cumprod":
        return 1
    return max(1, min(ceil(_CHUNKS / tasks), n * block // thresholds.cumulate_chunk))
