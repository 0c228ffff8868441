"""Plans of attention and of its gradients: operands are packed first, for all blocks that read them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field
from math import prod

from llvmlite import ir

from ....dtypes import float64
from ....graph.node import Node
from ....records import dataclass
from ...ir.kernel import View
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..gemm.packing import BYTES
from ..library import library
from . import backward, few_queries, forward, operands
from .blocks import ROOM, Blocks
from .scores import SHORT, Variant

_MAKERS = {
    "pack": operands.pack, "rows": operands.rows, "delta": operands.delta, "forward": forward.make, "few": few_queries.make,
    "both": backward.make, "queries": backward.make, "keys": backward.make,
}  # fmt: skip


@library("attention")
def make(symbol: str) -> ir.Module:
    return _MAKERS[symbol.split(".")[1]](symbol)


def plan(node: Node, threads: int, wanted: frozenset[int], views: Sequence[View]) -> Plan:
    """The plan of attention for at most this many threads; `wanted`: the results that are read."""
    steps = _Steps(node, threads, views)
    blocks, (q, k, v) = steps.blocks, node.inputs[:3]
    results = tuple(f"y{i}" for i in sorted(wanted))
    if q.shape[1] <= thresholds.attention_few_queries and few_queries.can_read(node, views):
        own = {
            f"{name}_{part}": view.strides[axis]
            for name, view in zip("qkv", views, strict=False)
            for part, axis in (("batch", 0), ("head", 2), ("row", 1))
        }
        pointers = {"q": "x0", "k": "x1", "v": "x2", "packed": "work"}
        steps.main("few", pointers, {"q_at": 0} | own, results, forward.scratch_elements(blocks))
        return steps.plan("attention of few queries")
    rows = steps.rows("x0", q, views[0])
    own = {
        "q_at": rows.begin, "q_batch": rows.batch, "q_head": rows.head, "q_row": rows.row,
        "keys_at": steps.pack("x1", k, views[1], blocks.panel(blocks.scores), transposed=True),
        "values_at": steps.pack("x2", v, views[2], blocks.panel(blocks.outputs)),
    }  # fmt: skip
    steps.main("forward", {"q": rows.pointer, "packed": "work"}, own, results, forward.scratch_elements(blocks))
    return steps.plan("attention")


def plan_gradients(node: Node, threads: int, wanted: frozenset[int], views: Sequence[View]) -> Plan:
    """The plan of the gradients: queries and keys together if there are enough heads for all threads, else one after the other. Both plans
    add in the same order, so they have the same bits.
    """
    steps = _Steps(node, threads, views)
    blocks, (q, k, v, _, lse, g) = steps.blocks, node.inputs[:6]
    scores = blocks.panel(blocks.scores)
    rows, g_rows = steps.rows("x0", q, views[0]), steps.rows("x5", g, views[5])
    lse_pointer, lse_at = steps.wide("x4", lse)
    own = {
        "q_at": rows.begin, "q_batch": rows.batch, "q_head": rows.head, "q_row": rows.row,
        "g_at": g_rows.begin, "g_batch": g_rows.batch, "g_head": g_rows.head, "g_row": g_rows.row,
        "keys_at": steps.pack("x1", k, views[1], scores, transposed=True),
        "values_at": steps.pack("x2", v, views[2], scores, transposed=True),
        "lse_at": lse_at, "delta_at": steps.delta(),
    }  # fmt: skip
    of_queries, of_keys = 0 in wanted, bool(wanted & {1, 2})
    if of_queries:
        own["key_rows_at"] = steps.pack("x1", k, views[1], blocks.panel(blocks.of_queries))
    if of_keys:
        own["q_panels_at"] = steps.pack("x0", q, views[0], blocks.panel(blocks.of_keys))
        own["g_panels_at"] = steps.pack("x5", g, views[5], blocks.panel(blocks.of_values))
    pointers = {"q": rows.pointer, "g": g_rows.pointer, "lse": lse_pointer, "packed": "work"}
    few_heads = threads > 1 and k.shape[0] * k.shape[2] < 2 * threads
    together = of_queries and of_keys and not few_heads
    parts = ("both",) if together else (*(["keys"] if of_keys else []), *(["queries"] if of_queries else []))
    for part in parts:
        results = tuple(f"y{i}" for i in sorted(wanted) if part == "both" or (i > 0) == (part == "keys"))
        size = backward.scratch_elements(blocks, part, (q.shape[1] + ROOM) * q.shape[2] // k.shape[2])
        numbers = {name: own.get(name, 0) for name in backward.STRIDES}
        steps.main(part, pointers, numbers, results, size)
    return steps.plan("attention gradients" + ("" if together else f" ({', then '.join(parts)})"))


@dataclass(frozen=True)
class _OperandRows:
    """Rows of an operand: where, and the strides from example to example, head to head, row to row."""

    pointer: str
    begin: int
    batch: int
    head: int
    row: int


@dataclass
class _Steps:
    """Collects the phases of a plan and the layout of its workspace, in elements."""

    node: Node
    threads: int
    views: Sequence[View]
    phases: list[PlanPhase] = field(default_factory=list)
    size: int = 0
    room: int = 0  # for the scratch of threads, at the end

    @property
    def kind(self) -> str:
        return "f64" if self.node.inputs[0].dtype is float64 else "f32"

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.kind, self.node.inputs[0].shape[3], self.node.inputs[2].shape[3])

    def plan(self, name: str) -> Plan:
        flops = self.node.op.flops
        assert flops is not None
        return Plan(name, tuple(self.phases), (self.size + self.room) * BYTES[self.kind], flops(self.node))

    def _take(self, elements: int) -> int:
        begin, self.size = self.size, self.size + -(-elements // 16) * 16
        return begin

    def pack(self, name: str, x: Node, view: View, width: int, *, transposed: bool = False) -> int:
        """Panels of columns, or (transposed) of rows; where they begin."""
        batch, rows, heads, columns = x.shape
        lines, k = (rows, columns) if transposed else (columns, rows)
        steps = (view.strides[1], view.strides[3]) if transposed else (view.strides[3], view.strides[1])
        begin = self._take(batch * heads * -(-lines // width) * width * k)
        symbol = f"attention.pack.{self.kind}.{SHORT[view.base.dtype.name]}.{width}"
        arguments = (
            name,
            "work",
            "tid",
            "threads",
            batch,
            heads,
            view.strides[0],
            view.strides[2],
            lines,
            k,
            *steps,
            begin,
        )
        self.phases.append(PlanPhase(symbol, arguments, frozenset({name}), frozenset({"work"})))
        return begin

    def rows(self, name: str, x: Node, view: View) -> _OperandRows:
        """Rows in the type of the arithmetic: those of the operand itself, or copies."""
        batch, rows, heads, width = x.shape
        b, r, h, step = view.strides
        if SHORT[view.base.dtype.name] == self.kind and (step == 1 or width == 1):
            return _OperandRows(name, 0, b, h, r)
        begin = self._take(batch * heads * rows * width)
        symbol = f"attention.rows.{self.kind}.{SHORT[view.base.dtype.name]}"
        arguments = (name, "work", "tid", "threads", batch, heads, b, h, rows, width, r, step, begin)
        self.phases.append(PlanPhase(symbol, arguments, frozenset({name}), frozenset({"work"})))
        return _OperandRows("work", begin, heads * rows * width, rows * width, width)

    def wide(self, name: str, x: Node) -> tuple[str, int]:
        """A tensor without gaps in the type of the arithmetic: where, and from which element on."""
        if SHORT[x.dtype.name] == self.kind:
            return name, 0
        begin = self._take(prod(x.shape))
        symbol = f"attention.rows.{self.kind}.{SHORT[x.dtype.name]}"
        arguments = (name, "work", "tid", "threads", 1, 1, 0, 0, prod(x.shape), 1, 1, 1, begin)
        self.phases.append(PlanPhase(symbol, arguments, frozenset({name}), frozenset({"work"})))
        return "work", begin

    def delta(self) -> int:
        out, given = self.node.inputs[3], self.node.param("given")
        batch, rows, heads, width = out.shape
        (b0, r0, h0, s0), (b1, r1, h1, s1) = self.views[3].strides, self.views[5].strides
        number = 6 + given.index("lse_gradient") if "lse_gradient" in given else 0
        less = self.wide(f"x{number}", self.node.inputs[number]) if number else ()
        begin = self._take(batch * rows * heads)
        layout = "flat" if s0 == s1 == 1 else "strided"
        symbol = f"attention.delta.{self.kind}.{SHORT[out.dtype.name]}.{layout}" + (".lse" if less else "")
        arguments = (
            "x3", "x5", *less[:1], "work", "tid", "threads", batch, heads, rows, width, b0, h0, r0, s0, b1, h1, r1, s1, begin, *less[1:]
        )  # fmt: skip
        self.phases.append(PlanPhase(symbol, arguments, frozenset({"x3", "x5", *less[:1]}), frozenset({"work"})))
        return begin

    def main(
        self, part: str, pointers: dict[str, str], own: dict[str, int], results: tuple[str, ...], scratch: int
    ) -> None:
        """The kernel itself, which reads the prepared operands."""
        node, given = self.node, self.node.param("given")
        (batch, queries, heads, width), (_, keys, key_heads, values) = node.inputs[0].shape, node.inputs[2].shape
        first = len(node.inputs) - len(given)
        extra = {name: (f"x{first + i}", node.inputs[first + i]) for i, name in enumerate(given)}
        left, right, align = node.get_params("left", "right", "align")
        features = [
            *(["left"] if left >= 0 else []), *(["right"] if right >= 0 else []),
            *(["aligned"] if "lengths" in extra and align == "lower_right" else []),
            *(name for name in ("lengths", "mask", "bias", "slopes") if name in extra), *(["dropout"] if "key" in extra else []),
        ]  # fmt: skip
        types = tuple(extra[n][1].dtype.name if n in extra else "" for n in ("bias", "slopes", "lengths"))
        named = (SHORT.get(types[0], ""), SHORT.get(types[1], ""), types[2])
        variant = Variant(part, self.kind, node.inputs[0].dtype.name, width, values, tuple(features), named, results)
        numbers: dict[str, int | str] = dict(own) | {
            "tid": "tid", "threads": "threads", "batch": batch, "heads": heads, "key_heads": key_heads, "queries": queries, "keys": keys,
            "width": width, "values": values, "left": left, "right": right, "shift": keys - queries if align == "lower_right" else 0,
            "scale": _bits(node.param("scale")), "work": self.size,
        }  # fmt: skip
        for name in ("mask", "bias"):
            if name in extra:
                numbers |= dict(
                    zip(
                        (f"{name}_{p}" for p in ("batch", "head", "row", "step")),
                        _broadcast(extra[name][1]),
                        strict=True,
                    )
                )
        rate = node.param("dropout")
        if rate:
            numbers |= {"kept": round((1.0 - rate) * 2**32), "kept_scale": _bits(1.0 / (1.0 - rate))}
        known = pointers | {name: at for name, (at, _) in extra.items()} | {y: y for y in results}
        first_names, number_names = variant.arguments((*pointers, *results), tuple(own))
        arguments = (*(known[n] for n in first_names), *(numbers[n] for n in number_names))
        reads = frozenset(known[n] for n in first_names) - set(results)
        self.phases.append(PlanPhase(variant.symbol, arguments, reads, frozenset({*results, "work"})))
        self.room = max(self.room, scratch * self.threads)


def _bits(value: float) -> int:
    """A float64 as an integer of the same bits."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _broadcast(node: Node) -> list[int]:
    """The strides of a contiguous tensor, 0 where it is broadcast."""
    steps, step = [], 1
    for n in reversed(node.shape):
        steps.append(0 if n == 1 else step)
        step *= n
    return steps[::-1]
