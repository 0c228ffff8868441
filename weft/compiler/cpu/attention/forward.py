"""attention.forward: the output and the log-sum-exp of blocks of queries, each by one thread.

For each block of keys: scores, their weights relative to the highest score so far, and the output so far plus the weighted values. What was
summed before is scaled where the highest score has changed (online softmax, Milakov and Gimelshein 2018).
"""

from __future__ import annotations

from llvmlite import ir

from ....dtypes import as_dtype
from ..gemm.packing import ELEMENTS
from ..ir_builder import I64, Code, Value, constant, new_module
from ..math import functions as maths
from ..math.float_builder import Num
from ..scalars import to_storage
from .blocks import ROOM, Blocks
from .products import block_product, fill
from .scores import INFINITY, RowWriter, Variant, begin

POINTERS = ("q", "packed")  # rows of queries; panels of keys and of values, in one workspace
STRIDES = ("q_at", "q_batch", "q_head", "q_row", "keys_at", "values_at")


def scratch_elements(blocks: Blocks) -> int:
    """Of one thread: scores, outputs, and for each row its highest score and its sum."""
    rows, values = blocks.queries + ROOM, blocks.padded(blocks.values, blocks.outputs)
    return -(-(rows * (blocks.keys + values + 2)) // 16) * 16


def make(symbol: str) -> ir.Module:
    module = new_module(symbol)
    _Forward(module, Variant.parse(symbol), POINTERS, STRIDES).write()
    return module


class BlocksOfQueries:
    """The frame of a kernel: its tasks, the softmax, and what is stored. Subclasses multiply by keys and by values."""

    def __init__(
        self, module: ir.Module, variant: Variant, pointers: tuple[str, ...], strides: tuple[str, ...]
    ) -> None:
        self.module, self.variant = module, variant
        self.blocks = blocks = Blocks(variant.kind, variant.width, variant.values)
        self.code, self.of = begin(module, variant, (*pointers, *variant.results), strides)
        self.element, self.lanes = ELEMENTS[variant.kind], blocks.vector
        self.padded = blocks.padded(variant.values, blocks.outputs)
        self.rows = RowWriter(self.code, self.of, variant, self.lanes)

    def write(self) -> None:
        code, of, blocks = self.code, self.of, self.blocks
        scratch = code.at(
            of["packed"], code.plus(of["work"], code.times(of["tid"], scratch_elements(blocks))), self.element
        )
        height = blocks.queries + ROOM
        self.scores = scratch
        self.outputs = code.at(scratch, height * blocks.keys, self.element)
        self.highest = code.at(self.outputs, height * self.padded, self.element)
        self.sums = code.at(self.highest, height, self.element)
        self.rows.begin_dropout()
        count = code.ceil_div(of["queries"], blocks.queries)
        total = code.mul(code.mul(of["batch"], of["heads"]), count)
        first, last = code.share(total, of["tid"], of["threads"])
        with code.loop(first, last, name="task") as task:
            z = code.sdiv(task, count)
            self.b, self.h = code.sdiv(z, of["heads"]), code.srem(z, of["heads"])
            self.start = code.times(paired(code, code.srem(task, count), count), blocks.queries)
            self.valid = code.minimum(blocks.queries, code.sub(of["queries"], self.start))
            self._block()
        code.done()

    def _block(self) -> None:
        code, of, blocks = self.code, self.of, self.blocks
        self.rows.example(self.b)
        fill(code, self.highest, 0, blocks.queries, constant(self.element, -INFINITY), 1)
        fill(code, self.sums, 0, blocks.queries, constant(self.element, 0.0), 1)
        fill(code, self.outputs, 0, code.times(self.valid, self.padded), constant(self.element, 0.0), blocks.lanes)
        begin, end = self.rows.key_range(self.start, code.plus(self.start, self.valid, -1))
        begin = self.find_operands(begin, code.sdiv(self.h, code.sdiv(of["heads"], of["key_heads"])))
        with code.loop(begin, end, blocks.keys, name="keys") as key:
            count = code.minimum(blocks.keys, code.sub(end, key))
            self.multiply_keys(key, count)
            with code.loop(0, self.valid, name="row") as row:
                self._row(row, key, count)
            self.add_values(key, count)
        self._leave()

    def find_operands(self, begin: Value, key_head: Value) -> Value:
        """Where the keys and values of a head are; the key to begin with, at most the given one."""
        raise NotImplementedError

    def multiply_keys(self, key: Value, count: Value) -> None:
        """The scores of the queries and a block of keys, without the scale."""
        raise NotImplementedError

    def add_values(self, key: Value, count: Value) -> None:
        """The outputs plus the values of a block of keys, weighted."""
        raise NotImplementedError

    def _row(self, row: Value, key: Value, count: Value) -> None:
        """Scores become weights."""
        code, lanes, type = self.code, self.lanes, self.rows.type
        first, end = self.rows.row(self.b, self.h, code.plus(self.start, row), key, count)
        line = code.at(self.scores, code.times(row, self.blocks.keys), self.element)
        fill(code, line, 0, first, constant(self.element, 0.0), lanes)
        fill(code, line, end, count, constant(self.element, 0.0), lanes)

        parts = self.rows.segments(first, end)
        best = constant(type, -INFINITY)
        for start, stop, edge in parts:
            best = self._highest(line, start, stop, edge, best)
        before = code.read(self.highest, row, self.element)
        now = code.reduce_lanes(best, lambda a, b: code.select(code.fcmp_ordered(">", a, b), a, b))
        now = code.select(code.fcmp_ordered(">", now, before), now, before)
        code.write(now, self.highest, row)
        nothing = code.fcmp_ordered("==", now, constant(self.element, -INFINITY))
        finite = code.select(nothing, constant(self.element, 0.0), now)
        total = constant(type, 0.0)
        for start, stop, edge in parts:
            total = self._weights(line, start, stop, edge, code.splat(finite, lanes), total)
        self._add(row, code.reduce_lanes(total, code.fadd), before, finite)

    def _highest(self, line: Value, first: Value, end: Value, edge: bool, best: Value) -> Value:
        """The highest scores of a part of a row. Scores that take more than a product are kept for the next pass."""
        code = self.code

        def advance(at: Value, best: list[Value]) -> list[Value]:
            found = self.rows.scores(code.read(line, at, self.rows.type), at, edge)
            if not self.rows.is_plain:
                code.write(found, line, at)
            return [code.select(code.fcmp_ordered(">", found, best[0]), found, best[0])]

        return code.loop_carrying(first, end, [best], advance, self.lanes)[0]

    def _weights(self, line: Value, first: Value, end: Value, edge: bool, highest: Value, total: Value) -> Value:
        """Scores of a part of a row become weights, after dropout; and the sum of those before it."""
        code = self.code

        def advance(at: Value, total: list[Value]) -> list[Value]:
            found = code.read(line, at, self.rows.type)
            found = self.rows.scores(found, at, edge) if self.rows.is_plain else found
            weights = exp_inline(code, code.fsub(found, highest))
            code.write(self.rows.dropped(weights, at), line, at)
            return [code.fadd(total[0], weights)]

        return code.loop_carrying(first, end, [total], advance, self.lanes)[0]

    def _add(self, row: Value, total: Value, before: Value, now: Value) -> None:
        """Add to the row's sum; if the highest score has changed, what was summed before is scaled."""
        code, lanes = self.code, self.blocks.lanes
        old = code.read(self.sums, row, self.element)
        known = code.fcmp_ordered("!=", before, constant(self.element, -INFINITY))
        changed = code.and_(known, code.fcmp_unordered("!=", before, now))
        begin = code.block
        with code.if_then(changed):
            factor = maths.emit(code, "exp", code.fsub(before, now))
            line = code.at(self.outputs, code.times(row, self.padded), self.element)
            wide = code.splat(factor, lanes)
            with code.loop(0, self.padded, lanes) as i:
                code.write(code.fmul(code.read(line, i, wide.type), wide), line, i)
            scaled = code.fmul(old, factor)
            inside = code.block
        kept = code.phi(self.element)
        kept.add_incoming(old, begin)
        kept.add_incoming(scaled, inside)
        code.write(code.fadd(kept, total), self.sums, row)

    def _leave(self) -> None:
        """Divide the outputs by the sums of weights, and store both results."""
        code, of, dtype = self.code, self.of, as_dtype(self.variant.dtype)
        with code.loop(0, self.valid, name="out") as row:
            total, i = code.read(self.sums, row, self.element), code.plus(self.start, row)
            empty = code.fcmp_ordered("==", total, constant(self.element, 0.0))
            safe = code.select(empty, constant(self.element, 1.0), total)
            if "y1" in of:
                lse = code.fadd(code.read(self.highest, row, self.element), maths.emit(code, "log", safe))
                place = code.plus(code.mul(code.plus(code.mul(self.b, of["heads"]), self.h), of["queries"]), i)
                code.write(code.select(empty, constant(self.element, -INFINITY), lse), of["y1"], place)
            if "y0" in of:
                factor = code.fdiv(constant(self.element, 1.0), safe)
                line = code.at(self.outputs, code.times(row, self.padded), self.element)
                home = code.plus(code.mul(code.plus(code.mul(self.b, of["queries"]), i), of["heads"]), self.h)
                values = self.variant.values
                write_row(code, line, of["y0"], code.times(home, values), values, factor, dtype, self.blocks.lanes)


class _Forward(BlocksOfQueries):
    """Keys and values are packed into panels: see the head of this file."""

    def find_operands(self, begin: Value, key_head: Value) -> Value:
        code, of, blocks = self.code, self.of, self.blocks
        self.to_scores = block_product(self.module, self.variant.kind, blocks.scores, "rows", False)
        self.to_outputs = block_product(self.module, self.variant.kind, blocks.outputs, "rows", True)
        panel = blocks.panel(blocks.scores)
        pair = code.plus(code.mul(self.b, of["key_heads"]), key_head)
        wide = code.times(code.ceil_div(of["keys"], panel), panel * self.variant.width)
        self.k = code.at(of["packed"], code.plus(of["keys_at"], code.mul(pair, wide)), self.element)
        tall = code.times(of["keys"], self.padded)
        self.v = code.at(of["packed"], code.plus(of["values_at"], code.mul(pair, tall)), self.element)
        return code.times(code.sdiv(begin, code.i64(panel)), panel)

    def multiply_keys(self, key: Value, count: Value) -> None:
        code, of, blocks, width = self.code, self.of, self.blocks, self.variant.width
        panel = blocks.panel(blocks.scores)
        q = rows_at(code, of, "q", self.b, self.h, self.start)
        code.call(self.to_scores, [
            code.at(of["q"], q, self.element), of["q_row"], self.valid, code.at(self.k, code.times(key, width), self.element),
            code.i64(panel * width), code.ceil_div(count, panel), code.i64(width), self.scores, code.i64(blocks.keys),
        ])  # fmt: skip

    def add_values(self, key: Value, count: Value) -> None:
        code, of, across = self.code, self.of, self.blocks.panel(self.blocks.outputs)
        code.call(self.to_outputs, [
            self.scores, code.i64(self.blocks.keys), self.valid, code.at(self.v, code.times(key, across), self.element),
            code.times(of["keys"], across), code.i64(self.padded // across), count, self.outputs, code.i64(self.padded),
        ])  # fmt: skip


def rows_at(code: Code, of: dict[str, Value], name: str, b: Value, h: Value, row: Value) -> Value:
    """Where the rows of an operand begin, from this row of a head on."""
    parts = zip((b, h, row), ("batch", "head", "row"), strict=True)
    return code.plus(of[f"{name}_at"], *(code.mul(at, of[f"{name}_{part}"]) for at, part in parts))


def paired(code: Code, i: Value, count: Value) -> Value:
    """First, last, second, last but one, ...: of a triangle, neighbours are about as much work as other neighbours."""
    half = code.lshr(i, constant(I64, 1))
    odd = code.icmp_signed("!=", code.and_(i, constant(I64, 1)), code.i64(0))
    return code.select(odd, code.sub(code.plus(count, -1), half), half)


def exp_inline(code: Code, value: Value) -> Value:
    """exp of nonpositive numbers, inlined so that its constants stay in registers."""
    return maths.exp_without_subnormals(Num(code, value)).value


def write_row(
    code: Code, line: Value, target: Value, home: Value, count: int, factor: Value, dtype: object, lanes: int
) -> None:
    """Store a row of this many numbers, each times a factor, converted to the dtype."""
    whole = count - count % lanes
    for first, end, width in ((0, whole, lanes), (whole, count, 1)):
        many = code.splat(factor, width)
        with code.loop(first, end, width, name="store") as i:
            value = code.fmul(code.read(line, i, many.type), many)
            code.write(to_storage(code, value, dtype), target, code.plus(home, i))  # type: ignore[arg-type]
