"""Rewriting: the driver that the compiler's graph-to-graph passes share.

    @rule("neg")
    def double_negation(node: Node) -> Node | None:
        x = node.inputs[0]
        return x.inputs[0] if x.op.name == "neg" else None

    rewrite(graph, [double_negation])

A rule is a function that returns the replacement of a node, or None if it does not apply. Rules are indexed by the ops they are for,
and each node is visited once, after its inputs, so rewriting is linear in the size of the graph. `transform` is the walk
itself, for passes whose replacements depend on more than one node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import InternalError
from ..records import dataclass
from .graph import Graph, rebuild
from .node import Node, Op, blame, toposort

MAX_REWRITES = 1000  # of one node: more of them never settle


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite of single nodes; `matches` says which ops it is for. Made by the decorator `rule`.

    >>> isinstance(rule("neg")(lambda node: None), Rule)
    True
    """

    apply: Callable[[Node], Node | None]
    matches: Callable[[Op], bool]
    name: str


def rule(*ops: str, where: Callable[[Op], bool] | None = None) -> Callable[[Callable[[Node], Node | None]], Rule]:
    """Decorator: a function that rewrites nodes of these ops, given by name or by a fact about them, as a rule."""

    def matches(op: Op) -> bool:
        return op.name in ops or (where is not None and where(op))

    return lambda apply: Rule(apply, matches, apply.__name__)


class Fuel:
    """How many replacements may still be made. A limit finds, by bisection, the replacement that breaks a program."""

    def __init__(self, limit: int | None = None) -> None:
        self.left = limit

    def spend(self) -> bool:
        """Use one unit; False if there is none left."""
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0


def rewrite(graph: Graph, rules: Sequence[Rule], fuel: Fuel | int | None = None) -> Graph:
    """The graph after all rules. Each node is rewritten until no rule applies; bodies of control flow are left as they are."""
    budget = fuel if isinstance(fuel, Fuel) else Fuel(fuel)
    by_op: dict[Op, list[Rule]] = {}

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = rebuild(node, inputs)
        for _ in range(MAX_REWRITES):
            if node.op not in by_op:
                by_op[node.op] = [r for r in rules if r.matches(node.op)]
            new = _replacement(node, by_op[node.op], budget)
            if new is node:
                return node
            node = new
        names = ", ".join(r.name for r in by_op[node.op])
        raise InternalError("rewrite", f"the rules {names} never settle on {node}.")

    return transform(graph, visit)


def _replacement(node: Node, rules: Sequence[Rule], fuel: Fuel) -> Node:
    for each in rules:
        new = each.apply(node)
        if new is None or new is node:
            continue
        if new.type != node.type or new.outputs != node.outputs:
            raise InternalError("rewrite", f"{each.name} turned {node} into {new}.")
        return new if fuel.spend() else node
    return node


def transform(graph: Graph, visit: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
    """Rebuild a graph, inputs first: `visit(node, new_inputs)` returns the new node. It is attributed to the old one's source line.

    >>> from weft import make_graph, zeros
    >>> from weft.graph.graph import rebuild
    >>> g = make_graph(lambda x: x + 1.0, zeros(3))
    >>> transform(g, rebuild) == g
    True
    """
    done: dict[Node, Node] = {i: i for i in graph.inputs}
    with blame() as attribute_to:
        for node in toposort([*graph.inputs, *graph.outputs]):
            if node not in done:
                attribute_to(node.source)
                done[node] = visit(node, tuple(done[i] for i in node.inputs))
    return Graph(graph.inputs, tuple(done[o] for o in graph.outputs))
