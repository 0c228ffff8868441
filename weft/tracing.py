"""From a Python function to nodes: call it once with tensors that stand for its arguments, and see what comes out.

What the function uses from outside becomes an input of its graph, and so does the position of every random stream it draws
from, which comes back advanced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import UserError
from .graph.graph import Graph, close, substitute
from .graph.node import CLOCK, DATA, VARIABLE, Node, Type, dependencies, placeholder, toposort
from .random import GENERATORS, TRACED, Generator
from .tensor import WATCHED, Holder, Tensor, as_tensor, wrap
from .tree import Structure, flatten, unflatten


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
        order = toposort(roots, lambda n: () if n.op is VARIABLE or self._is_outside(n) else dependencies(n))
        return [n for n in order if n.op in (DATA, VARIABLE) or (self._is_outside(n) and (n.inputs or n.abstract))]

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
    """Call a function with tensors that stand for values of the given types. Only who watches it lets it change tensors from outside."""
    start = CLOCK.nodes
    CLOCK.nodes += 1  # tensors made from now on are younger
    inputs = [placeholder(object(), t) for t in types]
    marks = {stream: wrap(placeholder(object(), stream.offset._node.type)) for stream in list(GENERATORS)}
    outside, TRACED.offsets = TRACED.offsets, dict(marks)
    before = WATCHED.since, WATCHED.inner
    WATCHED.since, WATCHED.inner = min(start, WATCHED.since), -1 if watched else start
    try:
        outputs, out = flatten(f(*unflatten(structure, [wrap(i) for i in inputs])))
        left = TRACED.offsets
        streams = {s: (mark.node, left[s].node) for s, mark in marks.items() if left[s] is not mark}
    finally:
        TRACED.offsets, (WATCHED.since, WATCHED.inner) = outside, before
    return Trace(inputs, [as_tensor(o).node for o in outputs], out, streams, start)


class Changed:
    """Lets a function change tensors from outside while it is traced, and takes it back: they are results like others.

    Whoever watches already goes on to see which tensors are read.
    """

    def __init__(self) -> None:
        self.outer = WATCHED.watch
        self.start = self.body = CLOCK.nodes
        CLOCK.nodes += 1  # tensors made from now on are younger
        self.before: dict[Tensor, Node] = {}

    def saw(self, tensor: Tensor, node: Node) -> Node:
        if tensor in self.before:
            return node
        WATCHED.watch = self.outer
        try:
            return tensor.node
        finally:
            WATCHED.watch = self

    def changed(self, tensor: Tensor) -> None:
        if tensor._owns_parameter:
            raise UserError(
                "checkpoint", "a parameter cannot be changed in here. Return its new value, and assign it outside."
            )
        self.before.setdefault(tensor, self.saw(tensor, tensor._node))

    def looked(self, tensor: Tensor) -> None:
        if self.outer is not None:
            self.outer.looked(tensor)

    def depends(self, holder: Holder) -> None:
        if self.outer is not None:
            self.outer.depends(holder)

    def __enter__(self) -> Changed:
        WATCHED.watch = self
        return self

    def __exit__(self, *_: object) -> None:
        WATCHED.watch = self.outer
        for tensor, node in self.before.items():
            tensor._name(node)


@contextmanager
def outside() -> Iterator[None]:
    """Inside, tensors are made as if no function were being traced: for state that a function makes at its first call."""
    before = WATCHED.watch, WATCHED.since, WATCHED.inner, TRACED.offsets
    WATCHED.watch, WATCHED.since, WATCHED.inner, TRACED.offsets = None, math.inf, -1, None
    try:
        yield
    finally:
        WATCHED.watch, WATCHED.since, WATCHED.inner, TRACED.offsets = before


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
