"""Sums over processes as an exchange and additions in weft's order, for engines whose sums have other bits.

A library may add the values of processes in an order that depends on their number and on how they are connected. weft's order is one tree
over the processes, ((0 + 1) + (2 + 3)), everywhere. So each process gets its part of all tensors from all others, adds these in the order
of the tree, and gathers the sums of the other parts. That moves as much data as a ring of sums does, two parts in n of all bytes to each of n
processes. Small tensors are gathered whole, and every process adds all parts: one exchange instead of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from ...dtypes import DType, float32
from ...graph.graph import Graph, rebuild
from ...graph.node import ITEM, OPS, Node, make
from ...graph.rewrite import transform
from ..thresholds import thresholds
from .graph_builders import cast, move

Adds = Callable[
    [Node], bool
]  # whether the engine's sum (or maximum, minimum) of a collective has the bits that weft defines


def collective_sums(graph: Graph, adds: Adds) -> Graph:
    """The graph with the sums that the engine does not compute as weft defines them replaced by exchanges and additions."""
    if not any(_combines(node) and not adds(node) for node in graph.nodes):
        return graph
    known: dict[Node, list[Node]] = {}

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op is ITEM and _combines(inputs[0]) and not adds(inputs[0]):
            if inputs[0] not in known:
                known[inputs[0]] = _Exchange(inputs[0]).reduced(inputs[0].inputs)
            index: int = node.param("index")
            return known[inputs[0]][index]
        new = rebuild(node, inputs)
        if new.outputs or not _combines(new) or adds(new):
            return new
        exchange = _Exchange(new)
        return exchange.reduced([new.inputs[0]])[0] if new.type == new.inputs[0].type else exchange.part(new.inputs[0])

    return transform(graph, visit)


def _combines(node: Node) -> bool:
    """Whether it is a collective that combines the values of processes: a sum, maximum or minimum, or sums of several tensors."""
    return node.op.kind == "collective" and (bool(node.outputs) or "combine" in node.op.params)


class _Exchange:
    """Processes along an axis, and how they combine values without the engine's sum."""

    def __init__(self, node: Node) -> None:
        self.along: tuple[Any, ...] = node.get_params("axis", "mesh")
        self.size = dict(self.along[1])[self.along[0]]
        combine = "sum" if node.outputs else node.param("combine")
        self.op = OPS[{"sum": "add", "max": "maximum", "min": "minimum"}[combine]]

    def reduced(self, tensors: Sequence[Node]) -> list[Node]:
        """Tensors combined over all processes, those of one dtype together."""
        found: dict[int, Node] = {}
        for dtype in dict.fromkeys(x.dtype for x in tensors):
            numbers = [i for i, x in enumerate(tensors) if x.dtype is dtype]
            found |= zip(numbers, self._reduced_of_one_dtype([tensors[i] for i in numbers]), strict=True)
        return [found[i] for i in range(len(tensors))]

    def _reduced_of_one_dtype(self, tensors: Sequence[Node]) -> list[Node]:
        ends = list(accumulate(prod(x.shape) for x in tensors))
        flat = _joined([move("reshape", x, (prod(x.shape),)) for x in tensors])
        whole = self._all_of(flat)
        begins = [0, *ends[:-1]]
        return [move("reshape", _cut(whole, a, b), x.shape) for x, a, b in zip(tensors, begins, ends, strict=True)]

    def _all_of(self, flat: Node) -> Node:
        count = prod(flat.shape)
        if count * flat.dtype.itemsize <= thresholds.gpu_gathered_sum:
            return self._combined(self._gathered(flat))
        length = -(-count // self.size)
        more = length * self.size - count
        padded = make(OPS["pad"], (flat,), (((0, more, 0),), 0.0 if flat.dtype.is_float else 0)) if more else flat
        whole = self._gathered(self.part(move("reshape", padded, (self.size, length))))
        return _cut(move("reshape", whole, (length * self.size,)), 0, count)

    def part(self, rows: Node) -> Node:
        """The row of this process, combined over all processes."""
        return self._combined(make(OPS["all_to_all"], (rows,), self.along))

    def _gathered(self, x: Node) -> Node:
        return make(OPS["all_gather"], (x,), (*self.along, "summed"))

    def _combined(self, rows: Node) -> Node:
        """The rows combined in pairs of neighbours, then pairs of pairs; 16-bit floats in float32."""
        wide: DType = float32 if rows.dtype.is_float and rows.dtype.itemsize < float32.itemsize else rows.dtype
        parts = [cast(_row(rows, i), wide) for i in range(self.size)]
        while len(parts) > 1:
            pairs = [make(self.op, (a, b), ()) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[len(parts) - len(parts) % 2 :]
        return cast(parts[0], rows.dtype)


def _joined(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else make(OPS["concat"], tuple(parts), (0,))


def _cut(flat: Node, begin: int, end: int) -> Node:
    return flat if (begin, end) == (0, flat.shape[0]) else make(OPS["slice"], (flat,), ((begin,), (end,), (1,)))


def _row(rows: Node, i: int) -> Node:
    starts, stops = (i, *(0,) * (len(rows.shape) - 1)), (i + 1, *rows.shape[1:])
    return move("reshape", make(OPS["slice"], (rows,), (starts, stops, (1,) * len(rows.shape))), rows.shape[1:])
