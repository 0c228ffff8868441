"""Small questions about nodes, which patterns are made of."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.node import Node
from .movement import inserted_ones
from .translator import Translator

_BROADCASTING = ("expand", "stop_gradient")


def unbroadcast(node: Node) -> Node:
    """The node before broadcasting and stop_gradient."""
    while node.op.name in _BROADCASTING:
        node = node.inputs[0]
    return node


def core(node: Node) -> Node:
    """The node before broadcasting and before axes of size 1 were added."""
    node = unbroadcast(node)
    while node.op.name == "reshape" and inserted_ones(node.inputs[0].shape, node.shape) is not None:
        node = unbroadcast(node.inputs[0])
    return node


def scalar(t: Translator, node: Node) -> float | None:
    """The number that all elements of the node are, at every size."""
    node = core(node)
    if node.op.name != "const" or any(v.params[:1] != node.params[:1] for v in t.versions[node]):
        return None
    return float(node.param("value"))


def is_scalar(t: Translator, node: Node, value: float) -> bool:
    return scalar(t, node) == value


def pairs(node: Node, name: str) -> Iterator[tuple[Node, Node]]:
    """The operands of an op that commutes, in both orders; none if it is another op."""
    if node.op.name == name:
        x, y = node.inputs
        yield x, y
        yield y, x


def scaled(t: Translator, node: Node, name: str) -> tuple[float, Node] | None:
    """The number and the other operand of `x * number` or `x + number`."""
    for x, y in pairs(node, name):
        value = scalar(t, x)
        if value is not None:
            return value, y
    return None


def vector_along(node: Node, axis: int) -> Node | None:
    """The vector that is broadcast along all axes but this one (of the node's shape)."""
    found = core(node)
    rank = len(node.shape)
    if len(found.shape) != 1 or found.shape[0] != node.shape[axis]:
        return None
    before = unbroadcast(node)  # the vector with its axes of size 1
    placed = (1,) * (rank - len(before.shape)) + before.shape
    wanted = tuple(node.shape[axis] if i == axis else 1 for i in range(rank))
    return found if placed == wanted else None
