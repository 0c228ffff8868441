"""argsort: a stable sort of rows.

Elements are converted to unsigned keys of the same order (nan the greatest, -0.0 as 0.0), so one algorithm sorts all dtypes:

    short rows  rank sort: an element's position is the number of elements before it; all pairs are compared, without branches
    rows        LSD radix sort of a row by one thread, a byte at a time; bytes that are equal in all keys are skipped
    long rows   parallel radix sort: threads build the histograms of their chunks, then move their elements

The sort is stable, so the result is unique, however the work is partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

from llvmlite import ir

from ....dtypes import DType, as_dtype
from ....graph.node import Node
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..ir_builder import I32, I64, PTR, Code, Value, constant, lanes_of, new_module, vector
from ..library import library
from ..scalars import storage_type
from ..target import current_target

_DIGITS = 256  # values of a byte of a key

# The arguments by name, in order. A row is `step` elements apart in x and y, and without gaps in the workspace, where
# places are counted in records. A chunk is a part of a row.
ROWS = ("x0", "y", "work", "tid", "threads", "rows", "n", "step")
KEYS = ("x0", "work", "tid", "threads", "rows", "n", "step", "chunks", "table")
COUNT = ("work", "tid", "threads", "rows", "n", "chunks", "shift", "source", "table")
PLACE = ("work", "tid", "threads", "rows", "n", "chunks", "shift", "source", "target", "table")
PLACES = ("y", "work", "tid", "threads", "rows", "n", "step", "chunks", "source")


@library("argsort")
def make(symbol: str) -> ir.Module:
    """argsort.rows.DTYPE.WAY.RECORD, argsort.keys.DTYPE.WAY.RECORD, argsort.count.RECORD, .place.RECORD, .places.RECORD"""
    _, part, *rest = symbol.split(".")
    names, pointers = {
        "rows": (ROWS, 3),
        "keys": (KEYS, 2),
        "count": (COUNT, 1),
        "place": (PLACE, 1),
        "places": (PLACES, 2),
    }[part]
    module = new_module(symbol)
    code = Code.begin(module, symbol, [PTR] * pointers + [I64] * (len(names) - pointers))
    of = dict(zip(names, code.arguments, strict=True))
    record = _Wide() if rest[-1] == "wide" else _Narrow()
    if part == "rows":
        _RowSort(code, of, _StridedRows(code, of, rest), record).write()
    else:
        _ChunkSort(code, of, record).write(part, _StridedRows(code, of, rest))
    code.done()
    return module


# --- keys and records -----------------------------------------------------------------------------------------------------


def key_of(code: Code, value: Value, dtype: DType, descending: bool) -> Value:
    """The sort key of an element: an unsigned integer of the same size and order."""
    bits = ir.IntType(dtype.bits)
    key = value if isinstance(value.type, ir.IntType) else code.bitcast(value, bits)
    sign = constant(bits, 1 << (dtype.bits - 1))
    if dtype.is_float:
        key = _float_key(code, key, dtype)
    elif dtype.kind == "int":
        key = code.xor(key, sign)
    return code.not_(key) if descending else key


def _float_key(code: Code, bits: Value, dtype: DType) -> Value:
    """The sort key of a float, whose bits are sign and magnitude."""
    type, sign = bits.type, 1 << (dtype.bits - 1)
    mantissa = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype.name]
    infinity = (sign - 1) >> mantissa << mantissa
    size = code.and_(bits, constant(type, sign - 1))
    negative = code.ashr(bits, constant(type, dtype.bits - 1))
    key = code.xor(bits, code.or_(negative, constant(type, sign)))
    key = code.select(code.icmp_unsigned("==", size, constant(type, 0)), constant(type, sign), key)
    return code.select(code.icmp_unsigned(">", size, constant(type, infinity)), constant(type, 2 * sign - 1), key)


class _Narrow:
    """A key of up to 32 bits and an index, packed into one i64."""

    type, key, bytes, name = I64, I32, 8, "narrow"

    def pack(self, code: Code, key: Value, place: Value) -> Value:
        return code.or_(code.shl(code.zext(key, I64), code.i64(32)), place)

    def place(self, code: Code, record: Value) -> Value:
        return code.and_(record, code.i64(0xFFFFFFFF))

    def digit(self, code: Code, record: Value, shift: Value) -> Value:
        return code.and_(code.lshr(record, code.plus(shift, 32)), code.i64(_DIGITS - 1))


class _Wide:
    """A key and an index, as a vector of two i64."""

    type, key, bytes, name = vector(I64, 2), I64, 16, "wide"

    def pack(self, code: Code, key: Value, place: Value) -> Value:
        return code.gather_lanes([key if key.type == I64 else code.zext(key, I64), place])

    def place(self, code: Code, record: Value) -> Value:
        return code.lane(record, 1)

    def digit(self, code: Code, record: Value, shift: Value) -> Value:
        return code.and_(code.lshr(code.lane(record, 0), shift), code.i64(_DIGITS - 1))


_Record = _Narrow | _Wide


def _read(code: Code, record: _Record, base: Value, index: Value) -> Value:
    """Load a record; the index counts records, also where one is a vector."""
    return code.load(code.at(base, index, record.type), typ=record.type, align=8)


def _put(code: Code, record: _Record, value: Value, base: Value, index: Value) -> None:
    code.store(value, code.at(base, index, record.type), align=8)


class _StridedRows:
    """The rows of x and y, which may be strided: `rest` begins with the dtype and the direction where elements are read."""

    def __init__(self, code: Code, of: dict[str, Value], rest: list[str]) -> None:
        self.code, self.of = code, of
        self.dtype = as_dtype(rest[0]) if len(rest) > 1 else None
        self.descending = rest[1:2] == ["descending"]

    def base(self, row: Value) -> Value:
        """Where a row begins."""
        code, step = self.code, self.of["step"]
        outer = code.sdiv(row, step)
        return code.plus(code.mul(code.mul(outer, step), self.of["n"]), code.srem(row, step))

    def key(self, base: Value, i: Value, type: ir.Type) -> Value:
        code, dtype = self.code, self.dtype
        assert dtype is not None
        at = code.plus(base, code.mul(i, self.of["step"]))
        key = key_of(code, code.read(self.of["x0"], at, storage_type(dtype)), dtype, self.descending)
        return key if key.type == type else code.zext(key, type)

    def put_place(self, base: Value, i: Value, place: Value) -> None:
        self.code.write(place, self.of["y"], self.code.plus(base, self.code.mul(i, self.of["step"])))


# --- rows ------------------------------------------------------------------------------------------------------------------


class _RowSort:
    """Emits the sort of whole rows, each by one thread."""

    def __init__(self, code: Code, of: dict[str, Value], elements: _StridedRows, record: _Record) -> None:
        self.code, self.of, self.elements, self.record = code, of, elements, record
        assert elements.dtype is not None
        self.digits = elements.dtype.itemsize
        self.n = of["n"]

    def write(self) -> None:
        code, of = self.code, self.of
        first, last = code.share(of["rows"], of["tid"], of["threads"])
        with code.if_else(code.icmp_signed("<=", self.n, code.i64(thresholds.sort_by_pairs))) as (short, longer):
            with short, code.loop(first, last, name="row") as row:
                self._short_row(row)
            with longer, code.loop(first, last, name="row") as row:
                self._row(row)

    def _short_row(self, row: Value) -> None:
        """Rank sort: a vector of elements is compared with all others at a time."""
        code, type = self.code, self.record.key
        lanes = current_target().lanes(type.width)
        keys = code.stack_array(type, thresholds.sort_by_pairs + lanes)
        base = self.elements.base(row)
        with code.loop(0, self.n) as i:
            code.write(self.elements.key(base, i, type), keys, i)
        code.write(constant(vector(type, lanes), -1), keys, self.n)  # the greatest key
        with code.loop(0, self.n, lanes, name="block") as block:
            self._put_block(base, block, self._places(keys, block, lanes))

    def _places(self, keys: Value, block: Value, lanes: int) -> Value:
        """The rank of each element of a block: the number of smaller elements, and of equal ones before it."""
        code, type = self.code, vector(self.record.key, lanes)
        mine = code.read(keys, block, type)

        def going_before(sign: str, others: Value, lane: int) -> Value:
            return code.sext(code.icmp_unsigned(sign, code.splat(code.lane(others, lane), lanes), mine), type)

        def add(sign: str) -> Callable[[Value, list[Value]], list[Value]]:
            def step(j: Value, count: list[Value]) -> list[Value]:
                others = code.read(keys, j, type)
                return [code.sub(count[0], _sum(code, [going_before(sign, others, i) for i in range(lanes)]))]

            return step

        count = code.loop_carrying(0, block, [constant(type, 0)], add("<="), lanes)
        (total,) = code.loop_carrying(code.plus(block, lanes), self.n, count, add("<"), lanes)
        for lane in range(lanes):  # within the block
            behind = ir.Constant(type, [-int(i > lane) for i in range(lanes)]) if lanes > 1 else constant(type, 0)
            equal = code.and_(behind, going_before("==", mine, lane))
            total = code.sub(total, code.or_(equal, going_before("<", mine, lane)))
        return total

    def _put_block(self, base: Value, block: Value, places: Value) -> None:
        code = self.code
        for lane in range(lanes_of(places.type)):
            element, place = code.plus(block, lane), code.lane(places, lane)
            with code.if_then(code.icmp_signed("<", element, self.n)):
                self.elements.put_place(base, place if place.type == I64 else code.zext(place, I64), element)

    def _row(self, row: Value) -> None:
        code, record, n = self.code, self.record, self.n
        base = self.elements.base(row)
        table = code.stack_array(I64, _DIGITS * self.digits)
        one = code.at(self.of["work"], code.mul(self.of["tid"], code.times(n, 2)), record.type)
        two = code.at(one, n, record.type)
        with code.loop(0, _DIGITS * self.digits) as i:
            code.write(code.i64(0), table, i)
        with code.loop(0, n) as i:
            packed = record.pack(code, self.elements.key(base, i, record.key), i)
            _put(code, record, packed, one, i)
            for digit in range(self.digits):
                _count(code, record, packed, code.at(table, digit * _DIGITS, I64), code.i64(8 * digit))

        def sort(digit: Value, pair: list[Value]) -> list[Value]:
            source, target = pair
            shift, mine = code.mul(digit, code.i64(8)), code.at(table, code.mul(digit, code.i64(_DIGITS)), I64)
            some = record.digit(code, _read(code, record, source, code.i64(0)), shift)
            differ = code.icmp_unsigned("!=", code.read(mine, some, I64), n)
            with code.if_then(differ):
                _add_up(code, mine)
                _move(code, record, mine, shift, source, target, code.i64(0), n)
            return [code.select(differ, target, source), code.select(differ, source, target)]

        source, _ = code.loop_carrying(0, self.digits, [one, two], sort)
        with code.loop(0, n) as i:
            self.elements.put_place(base, i, record.place(code, _read(code, record, source, i)))


def _sum(code: Code, parts: list[Value]) -> Value:
    while len(parts) > 1:
        parts = [code.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _count(code: Code, record: _Record, packed: Value, table: Value, shift: Value) -> None:
    digit = record.digit(code, packed, shift)
    code.write(code.plus(code.read(table, digit, I64), 1), table, digit)


def _add_up(code: Code, table: Value) -> None:
    """Exclusive prefix sum: counts become the positions of the first element of each digit."""

    def step(i: Value, total: list[Value]) -> list[Value]:
        count = code.read(table, i, I64)
        code.write(total[0], table, i)
        return [code.plus(total[0], count)]

    code.loop_carrying(0, _DIGITS, [code.i64(0)], step)


def _move(
    code: Code, record: _Record, table: Value, shift: Value, source: Value, target: Value, first: Value, last: Value
) -> None:
    """Move each record to the next position of its digit."""
    with code.loop(first, last) as i:
        packed = _read(code, record, source, i)
        digit = record.digit(code, packed, shift)
        place = code.read(table, digit, I64)
        _put(code, record, packed, target, place)
        code.write(code.plus(place, 1), table, digit)


# --- chunks of long rows -----------------------------------------------------------------------------------------------------


class _ChunkSort:
    """Emits one pass of the parallel sort of long rows: every chunk is a task."""

    def __init__(self, code: Code, of: dict[str, Value], record: _Record) -> None:
        self.code, self.of, self.record = code, of, record

    def write(self, part: str, elements: _StridedRows) -> None:
        code, of = self.code, self.of
        first, last = code.share(code.mul(of["rows"], of["chunks"]), of["tid"], of["threads"])
        with code.loop(first, last, name="task") as task:
            row, chunk = code.sdiv(task, of["chunks"]), code.srem(task, of["chunks"])
            begin, end = code.share(of["n"], chunk, of["chunks"])
            if part == "keys":
                self._keys(elements, task, row, begin, end)
            elif part == "count":
                self._count(task, row, begin, end)
            elif part == "place":
                self._place(row, chunk, begin, end)
            else:
                self._places(elements, row, begin, end)

    def _records(self, name: str | None, row: Value) -> Value:
        """The records of a row in one of the two buffers."""
        offset = self.code.plus(self.of[name] if name else 0, self.code.mul(row, self.of["n"]))
        return self.code.at(self.of["work"], offset, self.record.type)

    def _keys(self, elements: _StridedRows, task: Value, row: Value, begin: Value, end: Value) -> None:
        """Convert elements to records, and build the histogram of their first bytes."""
        code, record, base = self.code, self.record, elements.base(row)
        records, counts = self._records(None, row), self._counts(task)
        with code.loop(begin, end) as i:
            packed = record.pack(code, elements.key(base, i, record.key), i)
            _put(code, record, packed, records, i)
            _count(code, record, packed, counts, code.i64(0))

    def _count(self, task: Value, row: Value, begin: Value, end: Value) -> None:
        code, records, counts = self.code, self._records("source", row), self._counts(task)
        with code.loop(begin, end) as i:
            _count(code, self.record, _read(code, self.record, records, i), counts, self.of["shift"])

    def _counts(self, task: Value) -> Value:
        """The zeroed histogram of a chunk."""
        code, table = self.code, self._table(task)
        with code.loop(0, _DIGITS) as i:
            code.write(code.i64(0), table, i)
        return table

    def _table(self, task: Value) -> Value:
        """The histogram of a chunk; histograms follow the records."""
        tables = self.code.at(self.of["work"], self.of["table"], self.record.type)
        return self.code.at(tables, self.code.mul(task, self.code.i64(_DIGITS)), I64)

    def _place(self, row: Value, chunk: Value, begin: Value, end: Value) -> None:
        code, of = self.code, self.of
        table = code.stack_array(I64, _DIGITS)
        counts = self._table(code.mul(row, of["chunks"]))

        def next_digit(digit: Value, total: list[Value]) -> list[Value]:
            def next_chunk(other: Value, sums: list[Value]) -> list[Value]:
                count = code.read(counts, code.plus(code.mul(other, code.i64(_DIGITS)), digit), I64)
                earlier = code.select(code.icmp_signed("<", other, chunk), count, code.i64(0))
                return [code.plus(sums[0], count), code.plus(sums[1], earlier)]

            every, earlier = code.loop_carrying(0, of["chunks"], [total[0], total[0]], next_chunk)
            code.write(earlier, table, digit)
            return [every]

        code.loop_carrying(0, _DIGITS, [code.i64(0)], next_digit)
        source, target = self._records("source", row), self._records("target", row)
        _move(code, self.record, table, of["shift"], source, target, begin, end)

    def _places(self, elements: _StridedRows, row: Value, begin: Value, end: Value) -> None:
        code, record, base = self.code, self.record, elements.base(row)
        records = self._records("source", row)
        with code.loop(begin, end) as i:
            elements.put_place(base, i, record.place(code, _read(code, record, records, i)))


# --- plans -------------------------------------------------------------------------------------------------------------------


def plan(node: Node, threads: int) -> Plan:
    """The plan of an argsort by at most `threads` threads."""
    axis, descending = node.param("axis"), node.param("descending")
    x = node.inputs[0]
    n, step = x.shape[axis], prod(x.shape[axis + 1 :])
    rows = prod(x.shape[:axis]) * step
    if not rows * n:
        return Plan("nothing", (), 0, 0)
    record: _Record = _Wide() if x.dtype.bits > 32 or n >= 1 << 32 else _Narrow()
    way = "descending" if descending else "ascending"
    rounds = ceil(rows / threads) * threads / rows  # load imbalance if threads divided the rows
    if threads > 1 and n >= thresholds.sort_by_threads and rounds > 1.3:
        return _long_plan(x, way, record, rows, n, step, threads)
    values = {"rows": rows, "n": n, "step": step}
    symbol = f"argsort.rows.{x.dtype.name}.{way}.{record.name}"
    phase = _phase(symbol, ROWS, {"x0"}, {"y", "work"}, values)
    return Plan("sorting of rows", (phase,), 0 if n <= thresholds.sort_by_pairs else threads * 2 * n * record.bytes, 0)


def _long_plan(x: Node, way: str, record: _Record, rows: int, n: int, step: int, threads: int) -> Plan:
    """Double buffered: every byte of the keys moves the records from one buffer to the other."""
    size, digits, kind, work = rows * n, x.dtype.itemsize, record.name, {"work"}
    values = {"rows": rows, "n": n, "step": step, "chunks": threads, "table": 2 * size}
    phases = [_phase(f"argsort.keys.{x.dtype.name}.{way}.{kind}", KEYS, {"x0"}, work, values)]
    for digit in range(digits):
        values |= {"shift": 8 * digit, "source": digit % 2 * size, "target": (digit + 1) % 2 * size}
        if digit:
            phases.append(_phase(f"argsort.count.{kind}", COUNT, work, work, values))
        phases.append(_phase(f"argsort.place.{kind}", PLACE, work, work, values))
    phases.append(_phase(f"argsort.places.{kind}", PLACES, work, {"y"}, values | {"source": digits % 2 * size}))
    bytes = 2 * size * record.bytes + rows * threads * _DIGITS * 8
    return Plan("sorting of long rows", tuple(phases), bytes, 0)


def _phase(symbol: str, names: Sequence[str], reads: set[str], writes: set[str], values: dict[str, int]) -> PlanPhase:
    """A call with its arguments in the order of their names; pointers are passed by name."""
    return PlanPhase(symbol, tuple(values.get(name, name) for name in names), frozenset(reads), frozenset(writes))
