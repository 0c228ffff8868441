"""top_k: the k greatest elements of rows and their places, in one pass over each row.

A thread keeps the best k elements so far in a sorted list on its stack. Elements become unsigned keys that sort alike, as in a sort;
most are smaller than the last of the list, so a block of them is skipped after one comparison of its greatest key. An equal element that
comes later goes behind: the result is that of a stable sort.
"""

from __future__ import annotations

from math import prod

from llvmlite import ir

from ....dtypes import DType, as_dtype
from ....graph.node import Node
from ...ir.plan import Plan, PlanPhase
from ..ir_builder import I64, PTR, Code, Value, new_module, vector
from ..library import library
from ..scalars import storage_type
from .sort import key_of

BLOCK = 16  # elements that are skipped together
MOVED = 8  # elements of the list that are moved together
NUMBERS = ("tid", "threads", "rows", "n", "step", "k")


@library("top_k")
def make(symbol: str) -> ir.Module:
    """top_k.DTYPE.RESULTS.K: the results are `values`, `places` or `both`, the list has room for K elements."""
    _, dtype, results, room = symbol.split(".")
    module = new_module(symbol)
    pointers = ["x0", *(["y0"] if results != "places" else []), *(["y1"] if results != "values" else [])]
    code = Code.begin(module, symbol, [PTR] * len(pointers) + [I64] * len(NUMBERS))
    _WholeRows(code, dict(zip((*pointers, *NUMBERS), code.arguments, strict=True)), as_dtype(dtype), int(room)).write()
    code.done()
    return module


class _WholeRows:
    """Writes the selection from whole rows, each by one thread."""

    def __init__(self, code: Code, of: dict[str, Value], dtype: DType, room: int) -> None:
        self.code, self.of, self.dtype = code, of, dtype
        self.type = ir.IntType(dtype.bits)
        self.keys, self.places = code.stack_array(self.type, room), code.stack_array(I64, room)

    def write(self) -> None:
        code, of = self.code, self.of
        first, last = code.share(of["rows"], of["tid"], of["threads"])
        with code.loop(first, last, name="row") as row:
            outer, inner = code.sdiv(row, of["step"]), code.srem(row, of["step"])
            self.base = self._begin(outer, inner, of["n"])
            with code.loop(0, of["k"], name="first") as i:
                self._insert(self._key(i), i, i)
            rest = code.sub(of["n"], of["k"])
            whole = code.sub(of["n"], code.srem(rest, code.i64(BLOCK)))
            with code.loop(of["k"], whole, BLOCK, name="block") as block:
                keys = [self._key(code.plus(block, i)) for i in range(BLOCK)]
                with code.if_then(self._is_better(_greatest(code, keys)), likely=False):
                    for i, key in enumerate(keys):
                        self._consider(key, code.plus(block, i))
            with code.loop(whole, of["n"], name="rest") as i:
                self._consider(self._key(i), i)
            self._leave(self._begin(outer, inner, of["k"]))

    def _begin(self, outer: Value, inner: Value, length: Value) -> Value:
        """Where a row of this length begins."""
        code = self.code
        return code.plus(code.mul(code.mul(outer, self.of["step"]), length), inner)

    def _at(self, base: Value, i: Value) -> Value:
        return self.code.plus(base, self.code.mul(i, self.of["step"]))

    def _key(self, i: Value) -> Value:
        value = self.code.read(self.of["x0"], self._at(self.base, i), storage_type(self.dtype))
        return key_of(self.code, value, self.dtype, descending=False)

    def _is_better(self, key: Value) -> Value:
        """Whether a key is greater than the last of a full list."""
        last = self.code.read(self.keys, self.code.plus(self.of["k"], -1), self.type)
        return self.code.icmp_unsigned(">", key, last)

    def _consider(self, key: Value, place: Value) -> None:
        with self.code.if_then(self._is_better(key), likely=False):
            self._insert(key, place, self.code.plus(self.of["k"], -1))

    def _insert(self, key: Value, place: Value, end: Value) -> None:
        """Put an element in front of the smaller ones among the first `end` of the list, which move on, some at a time."""
        j = self._moved(key, self._moved(key, end, MOVED), 1)
        self.code.write(key, self.keys, j)
        self.code.write(place, self.places, j)

    def _moved(self, key: Value, end: Value, count: int) -> Value:
        """Move on the last `count` elements before `end` as long as all are smaller than the key; where they begin now."""
        code = self.code
        before = code.block
        head, test, body, after = (
            code.append_basic_block(f"move.{part}") for part in ("head", "test", "body", "after")
        )
        code.branch(head)
        code.position_at_end(head)
        j = code.phi(I64)
        j.add_incoming(end, before)
        first = code.plus(j, -count)
        code.cbranch(code.icmp_signed(">=", first, code.i64(0)), test, after)
        code.position_at_end(test)
        greatest = code.read(self.keys, first, self.type)  # the list descends
        code.cbranch(code.icmp_unsigned("<", greatest, key), body, after)
        code.position_at_end(body)
        for some, type in ((self.keys, self.type), (self.places, I64)):
            code.write(code.read(some, first, vector(type, count)), some, code.plus(first, 1))
        j.add_incoming(first, body)
        code.branch(head)
        code.position_at_end(after)
        return j

    def _leave(self, base: Value) -> None:
        code, of = self.code, self.of
        with code.loop(0, of["k"], name="out") as i:
            place = code.read(self.places, i, I64)
            if "y0" in of:
                value = code.read(of["x0"], self._at(self.base, place), storage_type(self.dtype))
                code.write(value, of["y0"], self._at(base, i))
            if "y1" in of:
                code.write(place, of["y1"], self._at(base, i))


def _greatest(code: Code, keys: list[Value]) -> Value:
    while len(keys) > 1:
        pairs = zip(keys[::2], keys[1::2], strict=True)
        keys = [code.select(code.icmp_unsigned(">", a, b), a, b) for a, b in pairs]
    return keys[0]


def plan(node: Node, threads: int, wanted: frozenset[int]) -> Plan:
    """The plan of a selection; `wanted`: which of the values (0) and places (1) are read."""
    axis, k = node.get_params("axis", "k")
    [x] = node.inputs
    n, step = x.shape[axis], prod(x.shape[axis + 1 :])
    if not prod(x.shape):
        return Plan("nothing", (), 0, 0)
    results = "both" if len(wanted) > 1 else "values" if 0 in wanted else "places"
    names = [f"y{i}" for i in sorted(wanted)]
    room = 1 << (k - 1).bit_length()
    arguments = ("x0", *names, "tid", "threads", prod(x.shape) // n, n, step, k)
    phase = PlanPhase(f"top_k.{x.dtype.name}.{results}.{room}", arguments, frozenset({"x0"}), frozenset(names))
    return Plan(f"top {k} of {n}", (phase,), 0, prod(x.shape))
