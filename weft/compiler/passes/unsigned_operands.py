"""Unsigned operands: int8 tensors that products read are stored as uint8, on CPUs whose dot products take an unsigned left operand.

vpdpbusd (VNNI, x86) multiplies uint8 by int8. For an int8 left operand, kernels flip the sign bit of every word that they load, which is one instruction for at most four
dot products. Here it is flipped once, where the tensor is written: u = x ^ 128 = x + 128, and

    x w = u w - 128 sum(w)

where the last term depends on the weights alone. Views, padding, concatenation and max pooling of x are those of u, because adding 128 preserves order. The integers are
the same to the bit: sums of int32 wrap around. A tensor that anything else reads, such as a depthwise convolution or the caller, stays int8.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import prod

from ...dtypes import int8, uint8
from ...graph.graph import Graph, rebuild
from ...graph.node import OPS, Node, constant, make
from ...graph.rewrite import transform
from .graph_builders import move
from .integer_products import CONTRACT, CONV, ROUND_8_BITS

OFFSET = 128


def unsigned_operands(graph: Graph) -> Graph:
    """The graph with uint8 in place of int8 tensors that only products and casts read."""
    flipped = _flipped(graph)
    if not flipped:
        return graph

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node in flipped:
            return _unsigned(node, inputs)
        if not any(i in flipped for i in node.inputs):
            return rebuild(node, inputs)
        return _product(node, inputs) if _is_left(node, node.inputs[0]) else _cast(node, inputs)

    return transform(graph, visit)


# --- which tensors -------------------------------------------------------------------------------------------------------------


def _flipped(graph: Graph) -> Collection[Node]:
    """The tensors to store as uint8: rounded ones that products read, and everything between them."""
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for i in node.inputs:
            users[i].append(node)
    found = {node for node in graph.nodes if _is_rounded(node) or _moves(node)} - set(graph.outputs)
    waiting = list(found)
    while waiting:  # until all operands and all readers of each tensor agree
        node = waiting.pop()
        if node in found and not _agrees(node, users[node], found):
            found.remove(node)
            waiting += [*node.inputs, *users[node]]
    return found & _read_by_products(graph, found, users)


def _agrees(node: Node, users: list[Node], found: Collection[Node]) -> bool:
    given = _is_rounded(node) or all(i in found for i in node.inputs)
    return given and all(user in found or _is_left(user, node) or _is_cast(user) for user in users)


def _read_by_products(graph: Graph, found: Collection[Node], users: Mapping[Node, list[Node]]) -> set[Node]:
    """Those of `found` that are connected with a product."""
    done = {node for node in graph.nodes if node in found and any(_is_left(user, node) for user in users[node])}
    waiting = list(done)
    while waiting:
        node = waiting.pop()
        near = [n for n in (*node.inputs, *users[node]) if n in found and n not in done]
        done.update(near)
        waiting += near
    return done


def _is_rounded(node: Node) -> bool:
    return node.op is ROUND_8_BITS and node.dtype is int8


def _moves(node: Node) -> bool:
    """Whether an op commutes with adding a number to all elements: it moves them, or selects the largest."""
    return node.dtype is int8 and (node.op.kernel == "view" or node.op.name in ("pad", "concat", "window_max"))


def _is_left(node: Node, x: Node) -> bool:
    """Whether x is the left operand of a product of int8. A product with a single row is bound by memory and gains nothing."""
    if node.op not in (CONTRACT, CONV) or prod(node.shape[:-1]) < 2:
        return False
    return node.inputs[0] is x and node.inputs[1] is not x and node.inputs[1].dtype is int8


def _is_cast(node: Node) -> bool:
    return node.op.name == "cast"


# --- the same in uint8 -----------------------------------------------------------------------------------------------------------


def _unsigned(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The node plus 128. Its inputs are too, except for those of the rounding."""
    if _is_rounded(node):
        return _flip(make(OPS["bitcast"], (rebuild(node, inputs),), (uint8,)))
    params = node.replace_params(value=int(node.param("value")) + OFFSET) if node.op.name == "pad" else node.params
    return make(node.op, inputs, params, node.source)


def _flip(x: Node) -> Node:
    return make(OPS["xor"], (x, constant(OFFSET, uint8, x.shape)))


def _cast(node: Node, inputs: tuple[Node, ...]) -> Node:
    [x] = inputs
    return make(node.op, (make(OPS["bitcast"], (_flip(x),), (int8,)),), node.params, node.source)


def _product(node: Node, inputs: tuple[Node, ...]) -> Node:
    params = node.replace_params(border=node.param("border") + OFFSET) if node.op is CONV else node.params
    made = make(node.op, inputs, params, node.source)
    offset = _weight_sums(inputs[1] if node.op is CONTRACT else _as_matrix(inputs[1]))
    shape = offset.shape if node.op is CONTRACT else (1,) * (len(made.shape) - 1) + offset.shape[2:]
    return make(OPS["sub"], (made, move("expand", move("reshape", offset, shape), made.shape)))


def _as_matrix(weights: Node) -> Node:
    """A filter (filters, ..., channels) as the right operand of a product."""
    return move("reshape", weights, (1, weights.shape[0], prod(weights.shape[1:])))


def _weight_sums(weights: Node) -> Node:
    """128 sum(w) for weights (b, n, k), as (b, 1, n). It is a product: a reduction could become a part of a kernel that runs with every input."""
    b, _, k = weights.shape
    return make(CONTRACT, (constant(OFFSET, uint8, (b, 1, k)), weights))
