"""`Graph(inputs, outputs)`: a closed graph, a function represented by nodes.

Its inputs are placeholders numbered from 0, so two graphs that compute the same thing are equal. Bodies of `cond`,
`while_loop` and `scan` are such graphs, and so is everything that is printed, drawn, saved or compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from ..lazy import Registry
from ..records import dataclass
from .node import TAG, VARIABLE, Node, dependencies, make, placeholder, toposort

VIEWS: Registry[Callable[[Graph], str]] = Registry()  # text.py and picture.py import this file and register themselves


@dataclass(frozen=True)
class Graph:
    """A function from `inputs` (placeholders) to `outputs`."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in topological order; the graph's inputs come first, whether used or not."""
        return tuple(toposort([*self.inputs, *self.outputs]))

    def text(self) -> str:
        """The graph as runnable Python."""
        return VIEWS["text"](self)

    def dot(self) -> str:
        """The graph as a Graphviz drawing."""
        return VIEWS["dot"](self)

    def svg(self) -> str:
        """The graph as a picture, left to right, with shapes."""
        return VIEWS["svg"](self)

    def __repr__(self) -> str:
        arrow = ", ".join(str(o.type) for o in self.outputs)
        return f"<graph of {len(self.nodes)} nodes: ({', '.join(str(i.type) for i in self.inputs)}) -> {arrow}>"


def close(inputs: Iterable[Node], outputs: Iterable[Node]) -> Graph:
    """The graph from `inputs` (any nodes) to `outputs`, with numbered placeholders for the inputs.

    Parameters whose value is pending are replaced by the pending computation, and tags are removed. Nodes that an equal graph has made
    before get the source lines and layers of this one, so that what is printed and saved does not depend on what was traced before.
    """
    inputs, outputs = tuple(inputs), tuple(outputs)
    numbered = tuple(placeholder(index, node.type) for index, node in enumerate(inputs))
    done = _substituted(outputs, dict(zip(inputs, numbered, strict=True)))
    told: set[Node] = set(numbered)
    for node, made in done.items():
        if made not in told and node.op is not TAG:
            told.add(made)
            made.source = node.source
    return Graph(numbered, tuple(done[root] for root in outputs))


def substitute(roots: Iterable[Node], replacement: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The roots with some nodes replaced, and their users rebuilt."""
    roots = tuple(roots)
    done = _substituted(roots, replacement)
    return tuple(done[root] for root in roots)


def _substituted(roots: Sequence[Node], replacement: Mapping[Node, Node]) -> dict[Node, Node]:
    """What becomes of each node below the roots."""
    done = dict(replacement)
    for node in toposort(roots, lambda n: () if n in replacement else dependencies(n)):
        if node in done:
            continue
        if node.op is VARIABLE and (pending := node.param("cell").pending) is not None:
            done[node] = done[pending]
        elif node.op is TAG:
            done[node] = done[node.inputs[0]]
        else:
            done[node] = rebuild(node, tuple(done[i] for i in node.inputs))
    return done


def rebuild(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same op on other inputs."""
    return node if inputs == node.inputs else make(node.op, inputs, node.params, node.source)
