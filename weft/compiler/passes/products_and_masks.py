"""Rewrites that look at the users of a value: transposed products, and masks that are computed from results."""

from __future__ import annotations

from math import prod

from ...graph.graph import Graph, rebuild
from ...graph.node import CONST, OPS, Node, constant, make
from ...graph.rewrite import Fuel, transform
from .graph_builders import const_value


def transposed_products(graph: Graph, fuel: Fuel) -> Graph:
    """A matrix product whose only user is a permute is computed in that order: the gradient of x @ w.T for w is one."""
    users: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        for i in node.inputs:
            users.setdefault(i, set()).add(node)
    outputs = set(graph.outputs)

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        product = node.inputs[0] if node.op.name == "permute" else None
        if (
            product is None
            or product.op.kernel != "contraction"
            or product in outputs
            or len(users[product]) != 1
            or not fuel.spend()
        ):
            return rebuild(node, inputs)
        out = product.param("out")
        permuted = "".join(out[axis] for axis in node.param("axes"))
        return make(product.op, inputs[0].inputs, product.replace_params(out=permuted), product.source)

    return transform(graph, visit)


def masks_from_results(graph: Graph, fuel: Fuel, recompute: bool) -> Graph:
    """The derivative of relu needs the sign of the input. The result, which is stored, has it, too, so the input can be freed. With
    `recompute`, not if the derivative reads the operands of the input anyway: then the input can be recomputed.
    """
    relus = {n.inputs[0]: n for n in graph.nodes if _is_relu(n) and not (recompute and _is_scaled(n.inputs[2]))}
    if not relus:
        return graph
    results = set(relus.values())

    def mask(test: Node, new_test: Node) -> Node:
        relu = relus[test]
        x, zero = new_test.inputs
        result = rebuild(relu, (new_test, zero, x))
        return make(OPS["le"], (result, constant(0, result.dtype, result.shape)), (), test.source)

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node not in results and any(i in relus for i in node.inputs):
            each = zip(node.inputs, inputs, strict=True)
            inputs = tuple(mask(old, new) if old in relus and fuel.spend() else new for old, new in each)
        return rebuild(node, inputs)

    return transform(graph, visit)


def _is_relu(node: Node) -> bool:
    """Whether the node is where(x <= 0, 0, x)."""
    if node.op.name != "where":
        return False
    test, zero, x = node.inputs
    if test.op.name != "le" or test.inputs != (x, zero):
        return False
    return zero.op is CONST and bool(const_value(zero) == 0)


def _is_scaled(node: Node, limit: int = 32) -> bool:
    """Whether it is one large value times others, plus others, as in batch norm, whose derivative needs that value."""
    scaled, large = False, set()
    stack, seen = [node], {node}
    while stack and len(seen) < limit:
        n = stack.pop()
        if n.op is CONST:
            continue
        if n.op.kind not in ("elementwise", "move"):
            large |= {n} if prod(n.shape) == prod(node.shape) else set()
            continue
        scaled |= n.op.name == "mul" and all(i.op is not CONST for i in n.inputs)
        new = [i for i in n.inputs if i not in seen]
        seen.update(new)
        stack += new
    return scaled and len(large) == 1 and not stack
