"""attention.few: attention of few queries, as when a text is generated token by token. Keys and values are read once, in place. Packing
them into panels, as for attention.forward, would take longer than the computation itself: too few queries share them.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....graph.node import Node
from ...ir.kernel import View
from ..gemm.packing import read_as
from ..gemm.register_tile import pieces
from ..ir_builder import Value, constant, new_module, vector
from .forward import BlocksOfQueries, rows_at
from .scores import SHORT, Variant

POINTERS = ("q", "k", "v", "packed")  # as they are; the workspace
STRIDES = ("q_at", *(f"{name}_{part}" for name in "qkv" for part in ("batch", "head", "row")))
TOGETHER = 4  # keys whose scores are summed side by side
MOST_SUMS = 8  # vectors of outputs, of which there are two sets


def can_read(node: Node, views: Sequence[View]) -> bool:
    """Whether the features of queries, keys and values are next to each other, and of the dtype that the node has."""
    operands = zip(node.inputs[:3], views, strict=False)
    return all(
        (view.strides[3] == 1 or x.shape[3] == 1) and view.base.dtype is node.inputs[0].dtype for x, view in operands
    )


def make(symbol: str) -> ir.Module:
    module = new_module(symbol)
    _FewQueries(module, Variant.parse(symbol), POINTERS, STRIDES).write()
    return module


class _FewQueries(BlocksOfQueries):
    """See the head of this file."""

    def find_operands(self, begin: Value, key_head: Value) -> Value:
        code, of = self.code, self.of
        self.source = SHORT[self.variant.dtype]
        self.places = {
            name: code.plus(code.mul(self.b, of[f"{name}_batch"]), code.mul(key_head, of[f"{name}_head"]))
            for name in "kv"
        }
        return begin

    def _read(self, name: str, start: Value, first: int, lanes: int) -> Value:
        return read_as(self.code, self.of[name], self.code.plus(start, first), self.source, self.variant.kind, lanes)

    def multiply_keys(self, key: Value, count: Value) -> None:
        code, of, last = self.code, self.of, self.code.plus(count, -1)
        parts = pieces(self.variant.width, self.blocks.lanes)
        with code.loop(0, self.valid, name="query") as row:
            start = rows_at(code, of, "q", self.b, self.h, code.plus(self.start, row))
            query = [self._read("q", start, first, lanes) for first, lanes in parts]
            line = code.at(self.scores, code.times(row, self.blocks.keys), self.element)
            with code.loop(0, count, TOGETHER, name="key") as j:
                for i in range(TOGETHER):
                    number = code.plus(key, code.minimum(code.plus(j, i), last))
                    at = code.plus(self.places["k"], code.mul(number, of["k_row"]))
                    code.write(self._dot(query, at, parts), line, code.plus(j, i))

    def _dot(self, query: Sequence[Value], at: Value, parts: Sequence[tuple[int, int]]) -> Value:
        """The dot product of a query and a key: several accumulators of vectors of one size, then the remaining elements."""
        code = self.code
        sums: dict[int, Value] = {}
        for x, (first, lanes) in zip(query, parts, strict=True):
            key = self._read("k", at, first, lanes)
            sums[lanes] = code.fma(x, key, sums[lanes]) if lanes in sums else code.fmul(x, key)
        totals = [code.reduce_lanes(value, code.fadd) for value in sums.values()]
        total = totals[0]
        for other in totals[1:]:
            total = code.fadd(total, other)
        return total

    def add_values(self, key: Value, count: Value) -> None:
        code = self.code
        parts = pieces(self.variant.values, self.blocks.lanes)
        with code.loop(0, self.valid, name="query") as row:
            line = code.at(self.scores, code.times(row, self.blocks.keys), self.element)
            target = code.at(self.outputs, code.times(row, self.padded), self.element)
            for first in range(0, len(parts), MOST_SUMS):
                self._weighted(line, target, key, count, parts[first : first + MOST_SUMS])

    def _weighted(self, line: Value, target: Value, key: Value, count: Value, parts: Sequence[tuple[int, int]]) -> None:
        """Add the weighted values of some features, of even and of odd keys apart."""
        code = self.code
        types = [vector(self.element, lanes) for _, lanes in parts]
        sums = [code.read(target, first, type) for (first, _), type in zip(parts, types, strict=True)]
        others = [constant(type, 0.0) for type in types]
        whole = code.sub(count, code.srem(count, code.i64(2)))

        def pair(j: Value, sums: list[Value]) -> list[Value]:
            even, odd = sums[: len(parts)], sums[len(parts) :]
            return [
                *self._plus_values(line, key, j, even, parts),
                *self._plus_values(line, key, code.plus(j, 1), odd, parts),
            ]

        found = code.loop_carrying(0, whole, [*sums, *others], pair, 2)
        sums = [code.fadd(a, b) for a, b in zip(found[: len(parts)], found[len(parts) :], strict=True)]
        sums = code.loop_carrying(whole, count, sums, lambda j, sums: self._plus_values(line, key, j, sums, parts))
        for value, (first, _) in zip(sums, parts, strict=True):
            code.write(value, target, first)

    def _plus_values(
        self, line: Value, key: Value, j: Value, sums: Sequence[Value], parts: Sequence[tuple[int, int]]
    ) -> list[Value]:
        code = self.code
        weight = code.read(line, j, self.element)
        at = code.plus(self.places["v"], code.mul(code.plus(key, j), self.of["v_row"]))
        return [
            code.fma(code.splat(weight, lanes), self._read("v", at, first, lanes), total)
            for total, (first, lanes) in zip(sums, parts, strict=True)
        ]
