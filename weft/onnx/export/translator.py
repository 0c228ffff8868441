"""The walk over a graph: which nodes are written together as one ONNX op, and the values that the written nodes have.

Patterns are found from the results backwards, so the nodes inside a pattern are written only if something else needs them. Then the
nodes that are needed are written in order. Broadcasting is lazy: a value may have fewer elements than its weft node (an expanded
bias, a constant), because elementwise ops of ONNX broadcast; `full` writes an Expand where the whole shape is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...compiler.passes.decompose import decompose
from ...errors import UserError
from ...graph import Graph
from ...graph.node import Node
from ...records import dataclass
from .writer import Dim, Dims, GraphWriter, ModelWriter, merge_sizes


@dataclass(frozen=True)
class OnnxValue:
    """A value of the ONNX graph, whose shape broadcasts to that of its weft node."""

    name: str
    shape: Dims


@dataclass(frozen=True)
class Match:
    """Nodes that become one op: what they read, and how that op is written."""

    operands: Sequence[Node]
    write: Callable[[], Any]  # gives what a rule gives


Rule = Callable[["Translator", Node], Any]  # gives a Value, or a list of Values of a node with several results
Pattern = Callable[["Translator", Node], Match | None]
RULES: dict[str, Rule] = {}
PATTERNS: dict[str, list[Pattern]] = {}


def translates(*ops: str) -> Callable[[Rule], Rule]:
    """Decorator: the function that writes nodes of these ops."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def matches(op: str) -> Callable[[Pattern], Pattern]:
    """Decorator: a function that finds a pattern that ends in this op."""

    def register(pattern: Pattern) -> Pattern:
        PATTERNS.setdefault(op, []).append(pattern)
        return pattern

    return register


class UnsupportedOp(Exception):
    """A node that has no form in ONNX; all of them are reported together."""


class Translator:
    """Translates one closed graph; `graphs` are its versions at all traced points. Ops that consist of others are written as these, if they have no rule."""

    def __init__(self, model: ModelWriter, graphs: Sequence[Graph], inputs: Sequence[OnnxValue]) -> None:
        graphs = [decompose(graph, lambda node: node.op.name in RULES or node.op.name in PATTERNS) for graph in graphs]
        self.model, self.graph = model, graphs[0]
        self.out = GraphWriter(model)
        self.versions = {
            nodes[0]: nodes for nodes in zip(*(g.nodes for g in graphs), strict=True)
        }  # tracing at several sizes has checked that they are the same ops
        self.values: dict[Node, Any] = dict(zip(self.graph.inputs, inputs, strict=True))
        self.users = Counter(i for node in self.graph.nodes for i in set(node.inputs))
        self.users.update(self.graph.outputs)

    def run(self) -> list[OnnxValue]:
        """Write all nodes that the results need; the results with their whole shapes."""
        for node, match in self._needed():
            try:
                self.values[node] = match.write() if match else RULES.get(node.op.name, _nothing)(self, node)
            except UnsupportedOp as error:
                self.refuse(node, str(error))
        return [OnnxValue(self.full(node), self.dims(node)) for node in self.graph.outputs]

    def _needed(self) -> list[tuple[Node, Match | None]]:
        needed, found = set(self.graph.outputs), []
        for node in reversed(self.graph.nodes):
            if node in needed and node not in self.values:
                match = self._match(node)
                found.append((node, match))
                needed.update(match.operands if match else node.inputs)
        found.reverse()
        return found

    def _match(self, node: Node) -> Match | None:
        found = (pattern(self, node) for pattern in PATTERNS.get(node.op.name, ()))
        return next((match for match in found if match is not None), None)

    def refuse(self, node: Node, why: str) -> None:
        """Note a node that cannot be expressed, and go on with a value that is never written."""
        key = f"{node.op.name} ({why})" if why else node.op.name
        self.model.unsupported[key] = self.model.unsupported.get(key, 0) + 1
        types = [OnnxValue("", self.dims(node))] * max(len(node.outputs), 1)
        self.values[node] = types if node.outputs else types[0]

    # --- sizes and values ------------------------------------------------------------------------------------------------

    def dims(self, node: Node) -> Dims:
        return tuple(merge_sizes(sizes) for sizes in zip(*(v.shape for v in self.versions[node]), strict=True))

    def output_dims(self, node: Node, index: int) -> Dims:
        """The shape of one of several results."""
        shapes = (v.outputs[index].shape for v in self.versions[node])
        return tuple(merge_sizes(sizes) for sizes in zip(*shapes, strict=True))

    def sizes(self, node: Node, param: str) -> Dims:
        """A parameter that is a tuple of sizes."""
        return tuple(merge_sizes(n) for n in zip(*(v.param(param) for v in self.versions[node]), strict=True))

    def size(self, node: Node, param: str) -> Dim:
        return merge_sizes([v.param(param) for v in self.versions[node]])

    def bodies(self, node: Node, param: str) -> list[Graph]:
        return [v.param(param) for v in self.versions[node]]

    def value(self, node: Node) -> OnnxValue:
        """The value, which may have fewer elements than the node."""
        found = self.values[node]
        assert isinstance(found, OnnxValue)
        return found

    def full(self, node: Node) -> str:
        """The name of the value in its whole shape."""
        value, shape = self.value(node), self.dims(node)
        if value.shape == shape:
            return value.name
        wide = self.out.add("Expand", value.name, self.model.vector(shape))
        self.values[node] = OnnxValue(wide, shape)
        return str(wide)

    def write(self, node: Node, op: str, *inputs: str, **attributes: Any) -> OnnxValue:
        """Write an op whose result has the shape of the node."""
        return OnnxValue(self.out.add(op, *inputs, **attributes), self.dims(node))

    def const(self, value: Any, dtype: Any) -> str:
        """A constant without dimensions."""
        return self.model.constant(np.asarray(value).astype(dtype), dtype)


def _nothing(translator: Translator, node: Node) -> Any:
    raise UnsupportedOp("")


def broadcast(*shapes: Dims) -> Dims:
    """The shape of an elementwise op in ONNX."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


def unsupported_error(found: dict[str, int]) -> UserError:
    listed = ", ".join(f"{name} x {count}" if count > 1 else name for name, count in sorted(found.items()))
    return UserError(
        "onnx.save",
        f"ops with a form in ONNX are required, got {listed}. Save the network as a weft program (weft.save).",
    )
