"""Narrow scans: conversions between float32 and 16 bits that a scan would cause in other kernels happen in its body, and the other way around.

In mixed precision, kernels hand values to each other in 16 bits, and products read operands of 16 bits; a step computes in float32. A sequence
that is only a widened copy is read narrow, and a stacked result that is only wanted narrow is written so: the values are the same, but
half the bytes pass, and the kernels that convert all steps at once are gone. Carried values stay as they are; where they are wanted narrow
as they were before every step, the body hands them out as one more stacked result. Constants that the body only reads narrow, the weights
of its products, are converted before the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...dtypes import DType, float32
from ...graph.graph import Graph, close, substitute
from ...graph.node import ITEM, OPS, Node, Type, item, make, placeholder
from ..ir.kernel import is_widening

Users = Mapping[Node, Sequence[Node]]


def narrow_scans(graph: Graph) -> Graph:
    """The graph with such conversions moved."""
    scans = [n for n in graph.nodes if n.op.name == "scan"]
    if not scans:
        return graph
    users = _users(graph.nodes)
    for scan in scans:
        changed = _narrowed(scan, users, graph.outputs)
        if changed:
            # The users of the scan are new nodes now, so the search starts again.
            return narrow_scans(Graph(graph.inputs, substitute(graph.outputs, changed)))
    return graph


def _users(nodes: Iterable[Node]) -> Users:
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        for i in node.inputs:
            found.setdefault(i, []).append(node)
    return found


def _wanted(node: Node, users: Users, outputs: Sequence[Node]) -> DType | None:
    """The type of 16 bits to which everything that reads a value converts it, if there is one."""
    if node.dtype is not float32 or node in outputs:
        return None
    kinds = {user.dtype if user.op.name == "cast" else float32 for user in users.get(node, ())}
    return kinds.pop() if len(kinds) == 1 and next(iter(kinds)).is_half else None


def _narrowed(scan: Node, users: Users, outputs: Sequence[Node]) -> dict[Node, Node]:
    """The replacements of what a scan computes; empty if there is nothing to convert."""
    body, carried = scan.get_params("body", "carried")
    outer, inner, given = _narrow_inputs(scan)
    results = {n.param("index"): n for n in users.get(scan, ()) if n.op is ITEM}
    found = {i: _wanted(n, users, outputs) for i, n in results.items() if i >= carried}
    wanted = {i: dtype for i, dtype in found.items() if dtype is not None}
    if not given and not wanted:
        return {}
    count, made, place = len(body.outputs), list(substitute(body.outputs, given)), dict[int, int]()
    for i, dtype in wanted.items():
        if i < count:
            place[i], made[i] = i, _cast(made[i], dtype)
        else:  # a carried value before every step
            place[i] = len(made)
            made.append(_cast(body.inputs[i - count], dtype))
    history = scan.param("history") and any(i >= count and i not in place for i in results)
    new = make(scan.op, outer, scan.replace_params(body=close(inner, made), history=history), scan.source)
    changed: dict[Node, Node] = {}
    for i, result in results.items():
        if i in place:
            changed |= dict.fromkeys(users[result], item(new, place[i]))
        else:
            changed[result] = item(new, i if i < count else i + len(made) - count)
    return changed


def _narrow_inputs(scan: Node) -> tuple[tuple[Node, ...], list[Node], dict[Node, Node]]:
    """The inputs of a scan and of its body, and what takes the place of nodes of the body."""
    body, carried, sequences = scan.get_params("body", "carried", "sequences")
    outer, inner, given = list(scan.inputs), list(body.inputs), dict[Node, Node]()
    users = _users(body.nodes)
    for i in range(carried, len(outer)):
        old, dtype = inner[i], _wanted(inner[i], users, body.outputs)
        if i < carried + sequences and is_widening(outer[i]):
            outer[i] = outer[i].inputs[0]
            inner[i] = placeholder(object(), Type(old.shape, outer[i].dtype))
            given[old] = _cast(inner[i], float32)
        elif i >= carried + sequences and dtype is not None:
            outer[i] = _cast(outer[i], dtype)
            inner[i] = placeholder(object(), Type(old.shape, dtype))
            given |= dict.fromkeys(users[old], inner[i])
    return tuple(outer), inner, given


def _cast(node: Node, dtype: DType) -> Node:
    return make(OPS["cast"], (node,), (dtype,), node.source)
