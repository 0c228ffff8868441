"""From a Python function to nodes: it is called once with placeholder tensors.

Tensors that the function captures become inputs of its graph, and so does the position of every random stream that it draws from;
the advanced position is an output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..graph.graph import Graph, close, substitute
from ..graph.node import CLOCK, DATA, VARIABLE, Node, Type, dependencies, placeholder, toposort
from ..random import GENERATORS, Generator
from ..records import dataclass
from ..tensor import TRACING, as_tensor, wrap
from ..tree import Structure, flatten, unflatten


@dataclass
class Trace:
    """A function as nodes, not yet closed: what it was given, what it gave, and the random streams it drew from."""

    inputs: list[Node]
    outputs: list[Node]
    structure: Structure
    streams: dict[Generator, tuple[Node, Node]]  # the position it found and the position it left
    start: int  # the CLOCK before it was called

    def types(self) -> list[Type]:
        return [o.type for o in self.outputs]

    def captures(self) -> list[Node]:
        """What it uses from outside: nodes that were there before, and data. Constants may stay inside.

        What the function itself computes from those stays in its body, so that a branch not taken computes nothing.
        """
        roots = [*self.outputs, *(left for _, left in self.streams.values())]
        order = toposort(roots, lambda n: () if self._is_outside(n) else dependencies(n))
        return [
            n for n in order if n.op is DATA or self._is_leaf(n) or (self._is_outside(n) and (n.inputs or n.abstract))
        ]

    def _is_leaf(self, node: Node) -> bool:
        """Whether a node is a parameter that has its value from outside. A parameter to which the function itself assigned a value is not."""
        return node.op is VARIABLE and (self._is_outside(node) or not dependencies(node))

    def _is_outside(self, node: Node) -> bool:
        """Whether a node was there before the function was called.

        One that is made of numbers alone and that no tensor names is not counted: an older graph happens to hold the same one, and
        what is captured must not depend on what was traced before.
        """
        if node.serial > self.start:
            return False
        return node.device is not None or node.abstract or node.tracked or node.holders > 0

    def graph(self, captured: Sequence[Node], streams: Sequence[Generator], moves_streams: bool = True) -> Graph:
        """The closed graph: (positions of streams, inputs, captured) -> (new positions, outputs)."""
        unused = {s: placeholder(object(), s.offset._node.type) for s in streams if s not in self.streams}
        found = [unused[s] if s in unused else self.streams[s][0] for s in streams]
        left = [unused[s] if s in unused else self.streams[s][1] for s in streams]
        return close([*found, *self.inputs, *captured], [*(left if moves_streams else []), *self.outputs])


def trace(f: Callable[..., Any], types: Sequence[Type], structure: Structure, *, watched: bool = False) -> Trace:
    """Call a function with tensors that stand for values of the given types. Only with `watched` may it change tensors from outside."""
    start = CLOCK.nodes
    CLOCK.nodes += 1  # tensors made from now on are younger
    inputs = [placeholder(object(), t) for t in types]
    marks = {stream: wrap(placeholder(object(), stream.offset._node.type)) for stream in list(GENERATORS)}
    before = TRACING.offsets, TRACING.since, TRACING.inner
    TRACING.offsets, TRACING.since, TRACING.inner = dict(marks), min(start, TRACING.since), -1 if watched else start
    try:
        outputs, out = flatten(f(*unflatten(structure, [wrap(i) for i in inputs])))
        left = TRACING.offsets
        streams = {s: (mark.node, left[s].node) for s, mark in marks.items() if left[s] is not mark}
    finally:
        TRACING.offsets, TRACING.since, TRACING.inner = before
    return Trace(inputs, [as_tensor(o).node for o in outputs], out, streams, start)


def make_graph(f: Callable[..., Any], *examples: Any) -> Graph:
    """A function as a graph, traced with values (or types) like the examples. To print, draw, save.

    >>> import weft
    >>> print(make_graph(lambda a, b: a * b, weft.zeros(3), weft.zeros(3)).text())
    from weft.primitives import *
    <BLANKLINE>
    def graph(x0: "float32[3]", x1: "float32[3]"):
        v0 = mul(x0, x1)  # float32[3]
        return (v0,)
    <BLANKLINE>
    """
    stand_ins = [wrap(placeholder(object(), e)) if isinstance(e, Type) else e for e in examples]
    leaves, structure = flatten(stand_ins)
    types = [as_tensor(leaf)._node.type for leaf in leaves]
    traced = trace(f, types, structure)
    current = {found: stream.offset.node for stream, (found, _) in traced.streams.items()}
    return close(traced.inputs, substitute(traced.outputs, current))
