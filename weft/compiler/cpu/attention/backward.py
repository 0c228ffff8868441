"""The gradients of attention: weights are computed again from the scores and the log-sum-exp of each row.

    weights = exp(scores - lse)          of_scores = weights * (g values^T - delta)          delta = sum of g * output
    of_values = weights^T g              of_queries = of_scores keys * scale                 of_keys = of_scores^T queries * scale

attention.both has a thread for all heads that share keys: it goes through blocks of keys, and in each through blocks of queries, and computes all
products of a pair of blocks at once. attention.keys and attention.queries have a task for every block of keys or of queries, for few heads: scores are
computed in both. Sums run in the same order either way.
"""

from __future__ import annotations

from llvmlite import ir

from ....dtypes import as_dtype
from ..gemm.packing import ELEMENTS
from ..ir_builder import Value, constant, new_module
from .blocks import ROOM, Blocks
from .forward import exp_inline, paired, rows_at, write_row
from .products import block_product, fill
from .scores import RowWriter, Variant, begin

POINTERS = ("q", "g", "lse", "packed")
STRIDES = (
    "q_at", "q_batch", "q_head", "q_row", "g_at", "g_batch", "g_head", "g_row", "keys_at", "values_at", "lse_at", "delta_at", "key_rows_at",
    "q_panels_at", "g_panels_at",
)  # fmt: skip


def scratch_elements(blocks: Blocks, part: str, queries: int) -> int:
    """Of one thread: scores and their gradients, and the gradients of a block of keys and values, and of a block of queries or of so many."""
    height, width, values = _sizes(blocks)
    count = 2 * height * blocks.keys
    if part != "queries":
        count += (blocks.keys + ROOM) * (width[1] + values)
    if part != "keys":
        count += (height if part == "queries" else queries) * width[0]
    return -(-count // 16) * 16


def _sizes(blocks: Blocks) -> tuple[int, tuple[int, int], int]:
    """Rows of a block of queries, padded features of queries and of keys, and of values."""
    width = blocks.padded(blocks.width, blocks.of_queries), blocks.padded(blocks.width, blocks.of_keys)
    return blocks.queries + ROOM, width, blocks.padded(blocks.values, blocks.of_values)


def make(symbol: str) -> ir.Module:
    module = new_module(symbol)
    _Backward(module, Variant.parse(symbol)).write()
    return module


class _Backward:
    def __init__(self, module: ir.Module, variant: Variant) -> None:
        self.variant, self.part = variant, variant.part
        self.blocks = blocks = Blocks(variant.kind, variant.width, variant.values)
        self.code, self.of = begin(module, variant, (*POINTERS, *variant.results), STRIDES)
        self.element, self.lanes = ELEMENTS[variant.kind], blocks.vector
        self.height, (self.q_width, self.k_width), self.v_width = _sizes(blocks)
        self.rows = RowWriter(self.code, self.of, variant, self.lanes)
        kind = variant.kind
        self.to_scores = block_product(module, kind, blocks.scores, "rows", False)
        self.to_queries = block_product(module, kind, blocks.of_queries, "rows", True)
        self.to_keys = block_product(module, kind, blocks.of_keys, "columns", True)
        self.to_values = block_product(module, kind, blocks.of_values, "columns", True)

    def write(self) -> None:
        code, of, blocks = self.code, self.of, self.blocks
        groups = code.sdiv(of["heads"], of["key_heads"])
        size = scratch_elements(blocks, self.part, 0)
        each: Value = code.i64(size)
        if self.part == "both":
            each = code.plus(each, code.times(code.mul(code.plus(of["queries"], ROOM), groups), self.q_width))
            each = code.and_(code.plus(each, 15), code.i64(-16))
        scratch = code.at(of["packed"], code.plus(of["work"], code.mul(of["tid"], each)), self.element)
        self.scores = scratch
        self.of_scores = code.at(scratch, self.height * blocks.keys, self.element)
        here = code.at(self.of_scores, self.height * blocks.keys, self.element)
        if self.part != "queries":
            self.of_keys, tall = here, blocks.keys + ROOM
            self.of_values = code.at(self.of_keys, tall * self.k_width, self.element)
            here = code.at(self.of_values, tall * self.v_width, self.element)
        self.of_queries = here
        self.rows.begin_dropout()
        {"both": self._both, "keys": self._all_keys, "queries": self._all_queries}[self.part](groups)
        code.done()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _both(self, groups: Value) -> None:
        code, of = self.code, self.of
        first, last = code.share(code.mul(of["batch"], of["key_heads"]), of["tid"], of["threads"])
        with code.loop(first, last, name="task") as pair:
            b, kh = code.sdiv(pair, of["key_heads"]), code.srem(pair, of["key_heads"])
            self.rows.example(b)
            each = code.plus(of["queries"], ROOM)  # so that a last tile does not overwrite the next head
            rows = code.mul(groups, each)
            fill(
                code, self.of_queries, 0, code.times(rows, self.q_width), constant(self.element, 0.0), self.blocks.lanes
            )
            with code.loop(0, of["keys"], self.blocks.keys, name="keys") as key:
                self._key_block(b, kh, key, groups)
            with code.loop(0, groups, name="head") as group, code.loop(0, of["queries"], name="out") as i:
                h = code.plus(code.mul(kh, groups), group)
                self._leave_query(b, h, i, code.plus(code.mul(group, each), i))

    def _all_keys(self, groups: Value) -> None:
        code, of = self.code, self.of
        count = code.ceil_div(of["keys"], self.blocks.keys)
        total = code.mul(code.mul(of["batch"], of["key_heads"]), count)
        first, last = code.share(total, of["tid"], of["threads"])
        with code.loop(first, last, name="task") as task:
            pair, key = (
                code.sdiv(task, count),
                code.times(paired(code, code.srem(task, count), count), self.blocks.keys),
            )
            b, kh = code.sdiv(pair, of["key_heads"]), code.srem(pair, of["key_heads"])
            self.rows.example(b)
            self._key_block(b, kh, key, groups)

    def _all_queries(self, groups: Value) -> None:
        code, of, blocks = self.code, self.of, self.blocks
        count = code.ceil_div(of["queries"], blocks.queries)
        total = code.mul(code.mul(of["batch"], of["heads"]), count)
        first, last = code.share(total, of["tid"], of["threads"])
        with code.loop(first, last, name="task") as task:
            z, query = code.sdiv(task, count), code.times(paired(code, code.srem(task, count), count), blocks.queries)
            b, h = code.sdiv(z, of["heads"]), code.srem(z, of["heads"])
            self.rows.example(b)
            valid = code.minimum(blocks.queries, code.sub(of["queries"], query))
            fill(code, self.of_queries, 0, code.times(valid, self.q_width), constant(self.element, 0.0), blocks.lanes)
            begin, end = self.rows.key_range(query, code.plus(query, valid, -1))
            begin = code.times(code.sdiv(begin, code.i64(blocks.keys)), blocks.keys)
            with code.loop(begin, end, blocks.keys, name="keys") as key:
                count = self._seen(query, valid, key)
                self._pair(b, h, code.sdiv(h, groups), query, valid, key, count)
                self._add_queries(self.of_queries, b, code.sdiv(h, groups), valid, key, count)
            with code.loop(0, valid, name="out") as row:
                self._leave_query(b, h, code.plus(query, row), row)

    def _key_count(self, key: Value) -> Value:
        return self.code.minimum(self.blocks.keys, self.code.sub(self.of["keys"], key))

    def _seen(self, query: Value, valid: Value, key: Value) -> Value:
        """The number of keys of a block that any query of a block attends to."""
        code = self.code
        _, end = self.rows.key_range(query, code.plus(query, valid, -1))
        return code.maximum(0, code.minimum(self.blocks.keys, code.sub(end, key)))

    def _key_block(self, b: Value, kh: Value, key: Value, groups: Value) -> None:
        """The gradients of a block of keys and values, from all queries; with attention.both also its part of those of the queries."""
        code, of, blocks = self.code, self.of, self.blocks
        count = self._key_count(key)
        zero = constant(self.element, 0.0)
        fill(code, self.of_keys, 0, code.times(count, self.k_width), zero, blocks.lanes)
        fill(code, self.of_values, 0, code.times(count, self.v_width), zero, blocks.lanes)
        first, end = self.rows.query_range(key, code.plus(key, count, -1))
        first = code.times(code.sdiv(first, code.i64(blocks.queries)), blocks.queries)
        with code.loop(0, groups, name="head") as group, code.loop(first, end, blocks.queries, name="queries") as query:
            h = code.plus(code.mul(kh, groups), group)
            valid = code.minimum(blocks.queries, code.sub(of["queries"], query))
            seen = self._seen(query, valid, key)
            self._pair(b, h, kh, query, valid, key, seen)
            self._add_keys(b, h, query, valid, seen)
            if self.part == "both":
                rows = code.plus(code.mul(group, code.plus(of["queries"], ROOM)), query)
                here = code.at(self.of_queries, code.times(rows, self.q_width), self.element)
                self._add_queries(here, b, kh, valid, key, seen)
        self._leave_keys(b, kh, key, count)

    # --- a pair of blocks ---------------------------------------------------------------------------------------------

    def _pair(self, b: Value, h: Value, kh: Value, query: Value, valid: Value, key: Value, count: Value) -> None:
        """The weights (after dropout) and the gradients of the scores of a block of queries and a block of keys."""
        code, of, blocks = self.code, self.of, self.blocks
        panel = blocks.panel(blocks.scores)
        pair = code.plus(code.mul(b, of["key_heads"]), kh)
        for left, right, features, result in (
            ("q", "keys", self.variant.width, self.scores), ("g", "values", self.variant.values, self.of_scores)
        ):  # fmt: skip
            wide = code.times(code.ceil_div(of["keys"], panel), panel * features)
            place = code.plus(of[f"{right}_at"], code.mul(pair, wide), code.times(key, features))
            rows = code.at(of[left], rows_at(code, of, left, b, h, query), self.element)
            code.call(self.to_scores, [
                rows, of[f"{left}_row"], valid, code.at(of["packed"], place, self.element), code.i64(panel * features),
                code.ceil_div(count, panel), code.i64(features), result, code.i64(blocks.keys),
            ])  # fmt: skip
        with code.loop(0, valid, name="row") as row:
            self._row(b, h, code.plus(query, row), row, key, count)

    def _row(self, b: Value, h: Value, i: Value, row: Value, key: Value, count: Value) -> None:
        code, of, lanes, type = self.code, self.of, self.lanes, self.rows.type
        first, end = self.rows.row(b, h, i, key, count)
        line, other = (
            code.at(x, code.times(row, self.blocks.keys), self.element) for x in (self.scores, self.of_scores)
        )
        # Gradients of keys are added in whole tiles, so that some of keys that no query attends to are added as well.
        tall = max(self.blocks.of_keys.rows, self.blocks.of_values.rows)
        last = code.minimum(self.blocks.keys, code.plus(count, tall - 1))
        for x in (line, other):
            fill(code, x, 0, first, constant(self.element, 0.0), lanes)
            fill(code, x, end, last, constant(self.element, 0.0), lanes)
        number = code.plus(code.mul(code.plus(code.mul(b, of["heads"]), h), of["queries"]), i)
        lse = code.read(of["lse"], code.plus(of["lse_at"], number), self.element)
        nothing = code.fcmp_ordered("==", lse, constant(self.element, -float("inf")))
        lse = code.splat(code.select(nothing, constant(self.element, 0.0), lse), lanes)
        delta = code.splat(code.read(of["packed"], code.plus(of["delta_at"], number), self.element), lanes)
        for start, stop, edge in self.rows.segments(first, end):
            with code.loop(start, stop, lanes, name="j") as at:
                scores = self.rows.scores(code.read(line, at, type), at, edge)
                weights = exp_inline(code, code.fsub(scores, lse))
                of_weights, kept = code.read(other, at, type), weights
                if self.rows.has("dropout"):
                    keep, zero = self.rows.kept(at), constant(type, 0.0)
                    kept, of_weights = (
                        code.select(keep, code.fmul(x, self.rows.kept_scale), zero) for x in (weights, of_weights)
                    )
                code.write(kept, line, at)
                code.write(code.fmul(weights, code.fsub(of_weights, delta)), other, at)

    def _add_queries(self, target: Value, b: Value, kh: Value, valid: Value, key: Value, count: Value) -> None:
        code, of, blocks = self.code, self.of, self.blocks
        across = blocks.panel(blocks.of_queries)
        pair = code.plus(code.mul(b, of["key_heads"]), kh)
        place = code.plus(
            of["key_rows_at"], code.mul(pair, code.times(of["keys"], self.q_width)), code.times(key, across)
        )
        code.call(self.to_queries, [
            self.of_scores, code.i64(blocks.keys), valid, code.at(of["packed"], place, self.element), code.times(of["keys"], across),
            code.i64(self.q_width // across), count, target, code.i64(self.q_width),
        ])  # fmt: skip

    def _add_keys(self, b: Value, h: Value, query: Value, valid: Value, count: Value) -> None:
        code, of, blocks = self.code, self.of, self.blocks
        head = code.plus(code.mul(b, of["heads"]), h)
        for function, tile, width, left, right, result in (
            (self.to_keys, blocks.of_keys, self.k_width, self.of_scores, "q", self.of_keys),
            (self.to_values, blocks.of_values, self.v_width, self.scores, "g", self.of_values),
        ):
            if ("y1" if right == "q" else "y2") not in self.of:
                continue
            across = blocks.panel(tile)
            place = code.plus(
                of[f"{right}_panels_at"], code.mul(head, code.times(of["queries"], width)), code.times(query, across)
            )
            code.call(function, [
                left, code.i64(blocks.keys), count, code.at(of["packed"], place, self.element), code.times(of["queries"], across),
                code.i64(width // across), valid, result, code.i64(width),
            ])  # fmt: skip

    # --- results --------------------------------------------------------------------------------------------------------

    def _leave_query(self, b: Value, h: Value, i: Value, row: Value) -> None:
        code, of = self.code, self.of
        line = code.at(self.of_queries, code.times(row, self.q_width), self.element)
        home = code.plus(code.mul(code.plus(code.mul(b, of["queries"]), i), of["heads"]), h)
        self._write(line, "y0", home, self.variant.width, self.rows.scale)

    def _leave_keys(self, b: Value, kh: Value, key: Value, count: Value) -> None:
        code, of = self.code, self.of
        with code.loop(0, count, name="out") as row:
            home = code.plus(code.mul(code.plus(code.mul(b, of["keys"]), key, row), of["key_heads"]), kh)
            for result, rows, width, features, factor in (
                ("y1", self.of_keys, self.k_width, self.variant.width, self.rows.scale),
                ("y2", self.of_values, self.v_width, self.variant.values, constant(self.element, 1.0)),
            ):
                if result in of:
                    self._write(code.at(rows, code.times(row, width), self.element), result, home, features, factor)

    def _write(self, line: Value, result: str, home: Value, features: int, factor: Value) -> None:
        dtype = as_dtype(self.variant.dtype)
        write_row(
            self.code,
            line,
            self.of[result],
            self.code.times(home, features),
            features,
            factor,
            dtype,
            self.blocks.lanes,
        )
