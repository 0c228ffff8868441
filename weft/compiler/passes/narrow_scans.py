"""Narrow scans: conversions between float32 and 16-bit floats move from the kernels around a scan into its body, or out of it.

In mixed precision, kernels hand values to each other in 16 bits, and products read operands of 16 bits; a step computes in float32.

- A sequence that is only a widened copy is read narrow, and widened in the body.
- A stacked result that all readers narrow is narrowed in the body, and stored so. Carried values stay as they are; where they are
  wanted narrow as they were before every step, the body returns them as one more stacked result.
- A loop invariant that the body only reads narrow, such as the weights of a product, is narrowed before the loop.

The values are the same, but half the bytes pass, and the kernels that convert all steps at once are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...dtypes import DType, float32
from ...graph.graph import Graph, close, rebuild, substitute
from ...graph.node import ITEM, OPS, Node, Type, item, make, placeholder
from ...graph.rewrite import transform
from ...records import dataclass
from ..ir.kernel import is_widening

Users = Mapping[Node, Sequence[Node]]


def narrow_scans(graph: Graph) -> Graph:
    """The graph with such conversions moved; the graph itself if there are none."""
    if not any(n.op.name == "scan" for n in graph.nodes):
        return graph
    users, changed = _users(graph.nodes), dict[Node, _NarrowScan]()

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op.name == "scan":
            changed[node] = _narrowed(rebuild(node, inputs), node, users, graph.outputs)
            return changed[node].scan
        if node.op is ITEM and node.inputs[0] in changed:
            return changed[node.inputs[0]].result(node.param("index"))
        if node.op.name == "cast" and inputs[0].dtype is node.dtype:
            return inputs[0]  # a result that is narrow now
        return rebuild(node, inputs)

    new = transform(graph, visit)
    return graph if new == graph else new


@dataclass(frozen=True)
class _NarrowScan:
    """A scan with conversions moved, and where its results are: by their old indices, those that have become narrow or stay."""

    scan: Node
    narrow: Mapping[int, int]
    outputs: int  # of the body before; carried values before every step follow them
    added: int  # outputs of the body

    def result(self, index: int) -> Node:
        return item(self.scan, self.narrow.get(index, index if index < self.outputs else index + self.added))


def _users(nodes: Iterable[Node]) -> Users:
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        for i in node.inputs:
            found.setdefault(i, []).append(node)
    return found


def _narrow_dtype(node: Node, users: Users, outputs: Sequence[Node]) -> DType | None:
    """The 16-bit dtype to which everything that reads a value converts it, if there is one."""
    if node.dtype is not float32 or node in outputs:
        return None
    dtypes = {user.dtype if user.op.name == "cast" else float32 for user in users.get(node, ())}
    return dtypes.pop() if len(dtypes) == 1 and next(iter(dtypes)).is_half else None


def _narrowed(scan: Node, old: Node, users: Users, outputs: Sequence[Node]) -> _NarrowScan:
    """A scan with conversions moved. `old`: the scan that `users` know."""
    body, carried = scan.get_params("body", "carried")
    outer, inner, replacements = _narrow_inputs(scan)
    results = {n.param("index"): n for n in users.get(old, ()) if n.op is ITEM}
    dtypes = {i: _narrow_dtype(n, users, outputs) for i, n in results.items() if i >= carried}
    count, made, narrow = len(body.outputs), list(substitute(body.outputs, replacements)), dict[int, int]()
    for i, dtype in dtypes.items():
        if dtype is None:
            continue
        if i < count:
            narrow[i], made[i] = i, _cast(made[i], dtype)
        else:  # a carried value before every step
            narrow[i] = len(made)
            made.append(_cast(body.inputs[i - count], dtype))
    if not replacements and not narrow:
        return _NarrowScan(scan, {}, count, 0)
    history = scan.param("history") and any(i >= count and i not in narrow for i in results)
    params = scan.replace_params(body=close(inner, made), history=history)
    return _NarrowScan(make(scan.op, outer, params, scan.source), narrow, count, len(made) - count)


def _narrow_inputs(scan: Node) -> tuple[tuple[Node, ...], list[Node], dict[Node, Node]]:
    """The inputs of a scan and of its body, and the replacements of nodes of the body."""
    body, carried, sequences = scan.get_params("body", "carried", "sequences")
    outer, inner, replacements = list(scan.inputs), list(body.inputs), dict[Node, Node]()
    users = _users(body.nodes)
    for i in range(carried, len(outer)):
        before, dtype = inner[i], _narrow_dtype(inner[i], users, body.outputs)
        if i < carried + sequences and is_widening(outer[i]):
            outer[i] = outer[i].inputs[0]
            inner[i] = placeholder(object(), Type(before.shape, outer[i].dtype))
            replacements[before] = _cast(inner[i], float32)
        elif i >= carried + sequences and dtype is not None:
            outer[i] = _cast(outer[i], dtype)
            inner[i] = placeholder(object(), Type(before.shape, dtype))
            replacements |= dict.fromkeys(users[before], inner[i])
    return tuple(outer), inner, replacements


def _cast(node: Node, dtype: DType) -> Node:
    return make(OPS["cast"], (node,), (dtype,), node.source)
