"""The graph verifier. `problems` lists all violations; `check` raises the first."""

from __future__ import annotations

from ..errors import UserError
from .graph import Graph
from .node import OPS, PLACEHOLDER, Node, Type
from .text import subgraphs


def check(graph: Graph) -> Graph:
    """Return the graph, or raise an error if it is invalid."""
    found = problems(graph)
    if found:
        raise UserError("check", f"the graph is not legal: {found[0]}" + _more(len(found) - 1))
    return graph


def problems(graph: Graph) -> list[str]:
    """All violations in a graph and its subgraphs."""
    return [text for part in [*subgraphs(graph), graph] for text in _own_problems(part)]


def _own_problems(graph: Graph) -> list[str]:
    found = []
    for index, node in enumerate(graph.inputs):
        if node.op is not PLACEHOLDER or node.param("index") != index:
            found.append(f"input {index} must be placeholder {index}, got {node}.")
    known = set(graph.inputs)
    for node in graph.nodes:
        if node.op is PLACEHOLDER:
            if node not in known:
                found.append(f"{node} is used but is not an input of the graph.")
        else:
            found.extend(_node_problems(node))
    found.extend(f"output {i} is {o}, which has several results." for i, o in enumerate(graph.outputs) if o.outputs)
    return found


def _node_problems(node: Node) -> list[str]:
    op = node.op
    if OPS.get(op.name) is not op:
        return [f"{node} has an op that is not declared."]
    if op.arity is not None and len(node.inputs) != op.arity:
        return [f"{node} has {len(node.inputs)} inputs; {op.name} takes {op.arity}."]
    if len(node.params) != len(op.params):
        return [f"{node} has {len(node.params)} parameters; {op.name} takes {len(op.params)}."]
    if op.name != "item" and any(i.outputs for i in node.inputs):
        return [f"{node} uses a node with several results directly; take one of them with item()."]
    if any(size < 0 for size in node.shape):
        return [f"{node} has a negative size."]
    try:
        inferred = op.infer(node.inputs, *node.params) if op.arity is None else op.infer(*node.inputs, *node.params)
    except UserError as error:
        return [f"{node}: {error}"]
    actual = node.type if isinstance(inferred, Type) else node.outputs
    return [] if actual == inferred else [f"{node} should be {inferred}."]


def _more(count: int) -> str:
    return f" ({count} more problem{'s' * (count > 1)})" if count else ""
