"""Narrow scans: the body of a scan converts what the scan would have to read, or would be read from it, in another kernel.

In mixed precision, kernels hand values to each other in 16 bits, and products read operands of 16 bits; a step computes in float32. A sequence
that is only a widened copy is read narrow, and a stacked result that is only wanted narrow is written so: the values are the same, but
half the bytes pass, and the kernels that convert all steps at once are gone. Carried values stay as they are; where they are wanted narrow
as they were before every step, the body hands them out as one more stacked result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...dtypes import DType, float32
from ...graph.graph import Graph, close, substitute
from ...graph.node import ITEM, OPS, Node, Type, item, make, placeholder
from ..ir.kernel import is_widening


def narrow_scans(graph: Graph) -> Graph:
    """The graph with such conversions in the bodies of its scans."""
    if not any(n.op.name == "scan" for n in graph.nodes):
        return graph
    users: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for i in node.inputs:
            users.setdefault(i, []).append(node)
    for scan in (n for n in graph.nodes if n.op.name == "scan"):
        results = {n.param("index"): n for n in users.get(scan, []) if n.op is ITEM}
        wanted = {i: dtype for i, n in results.items() if (dtype := _wanted(n, users, graph.outputs)) is not None}
        changed = _narrowed(scan, results, wanted, users)
        if changed:
            # The users of the scan are new nodes now, so the search starts again.
            return narrow_scans(Graph(graph.inputs, substitute(graph.outputs, changed)))
    return graph


def _wanted(result: Node, users: Mapping[Node, Sequence[Node]], outputs: Sequence[Node]) -> DType | None:
    """The type of 16 bits to which everything that reads a result converts it, if there is one."""
    if result.dtype is not float32 or result in outputs:
        return None
    kinds = {user.dtype if user.op.name == "cast" else float32 for user in users.get(result, ())}
    return kinds.pop() if len(kinds) == 1 and next(iter(kinds)).is_half else None


def _narrowed(
    scan: Node, results: Mapping[int, Node], wanted: Mapping[int, DType], users: Mapping[Node, Sequence[Node]]
) -> dict[Node, Node]:
    """The replacements of what a scan computes; empty if it has nothing to convert."""
    body, carried, sequences = scan.get_params("body", "carried", "sequences")
    widened = [i for i in range(carried, carried + sequences) if is_widening(scan.inputs[i])]
    last = [i for i in wanted if i >= carried]  # a carried value that is wanted in the end keeps its type
    if not widened and not last:
        return {}
    count = len(body.outputs)
    outer, inner, given = list(scan.inputs), list(body.inputs), dict[Node, Node]()
    for i in widened:
        outer[i] = scan.inputs[i].inputs[0]
        inner[i] = placeholder(object(), Type(body.inputs[i].shape, outer[i].dtype))
        given[body.inputs[i]] = _cast(inner[i], float32)
    outputs = list(substitute(body.outputs, given))
    place: dict[int, int] = {}  # of results that are narrow now
    for i in last:
        if i < count:
            place[i], outputs[i] = i, _cast(outputs[i], wanted[i])
        else:  # a carried value before every step
            place[i] = len(outputs)
            outputs.append(_cast(body.inputs[i - count], wanted[i]))
    history = scan.param("history") and any(i >= count and i not in place for i in results)
    new = make(scan.op, tuple(outer), scan.replace_params(body=close(inner, outputs), history=history), scan.source)
    changed: dict[Node, Node] = {}
    for i, result in results.items():
        if i in place:
            changed |= dict.fromkeys(users[result], item(new, place[i]))
        else:
            changed[result] = item(new, i if i < count else i + len(outputs) - count)
    return changed


def _cast(node: Node, dtype: DType) -> Node:
    return make(OPS["cast"], (node,), (dtype,), node.source)
