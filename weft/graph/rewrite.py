"""Rewriting by patterns: a rule is a pattern and a function that answers with the replacement.

    x = Var("x")
    rules = [Rule(Pattern("neg", Pattern("neg", x)), lambda m: m["x"])]

Nodes are visited with a stack, inputs first, and each until no rule applies any more, so a replacement is itself
rewritten. `fuel` stops after so many replacements, which finds the one that breaks a program by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InternalError
from .graph import Graph, rebuild
from .node import Node

Match = dict[str, Node]


@dataclass(frozen=True)
class Var:
    """Matches any node, if `where` holds, and remembers it; the same name must match the same node again."""

    name: str
    where: Callable[[Node], bool] = lambda node: True


@dataclass(frozen=True, init=False)
class Pattern:
    """Matches a node by its op, its inputs and, where given, its parameters. `name` remembers the node."""

    op: str
    inputs: tuple[Pattern | Var, ...]
    params: tuple[tuple[str, Any], ...]
    name: str

    def __init__(self, op: str, *inputs: Pattern | Var, name: str = "", **params: Any) -> None:
        for key, value in {"op": op, "inputs": inputs, "params": tuple(params.items()), "name": name}.items():
            object.__setattr__(self, key, value)


@dataclass(frozen=True)
class Rule:
    """`build` gets the matched nodes by name and answers with the replacement, or None to decline."""

    pattern: Pattern
    build: Callable[[Match], Node | None]
    name: str = ""


def match(pattern: Pattern | Var, node: Node) -> Match | None:
    """The nodes a pattern names when it fits, else None."""
    found: Match = {}
    stack: list[tuple[Pattern | Var, Node]] = [(pattern, node)]
    while stack:
        part, here = stack.pop()
        if isinstance(part, Var):
            if found.setdefault(part.name, here) is not here or not part.where(here):
                return None
            continue
        if here.op.name != part.op or len(here.inputs) != len(part.inputs):
            return None
        if any(here.param(key) != value for key, value in part.params):
            return None
        if part.name and found.setdefault(part.name, here) is not here:
            return None
        stack.extend(zip(part.inputs, here.inputs, strict=True))
    return found


def rewrite(graph: Graph, rules: Sequence[Rule], fuel: int | None = None) -> Graph:
    """The graph after all rules were applied wherever they fit, the bodies of control flow left as they are."""
    by_op: dict[str, list[Rule]] = {}
    for rule in rules:
        by_op.setdefault(rule.pattern.op, []).append(rule)
    budget = _Budget(fuel, limit=1000 * (len(graph.nodes) + 1))
    final: dict[Node, Node] = {node: node for node in graph.inputs}
    for output in graph.outputs:
        _settle(output, by_op, budget, final)
    return Graph(graph.inputs, tuple(final[output] for output in graph.outputs))


@dataclass
class _Budget:
    fuel: int | None
    limit: int
    used: int = 0
    last: str = "none"

    def spend(self, rule: Rule) -> None:
        self.used += 1
        self.last = rule.name or str(rule.pattern)
        if self.used > self.limit:
            raise self.never_settles()

    def never_settles(self) -> InternalError:
        return InternalError("rewrite", f"the rules never settle; the last one was {self.last}.")

    @property
    def empty(self) -> bool:
        return self.fuel is not None and self.used >= self.fuel


def _settle(root: Node, rules: dict[str, list[Rule]], budget: _Budget, final: dict[Node, Node]) -> None:
    """Fill `final` for the root and all below it. A node waits on the stack for its inputs, then for its successor."""
    successor: dict[Node, Node] = {}
    entered: set[Node] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        if node in final:
            stack.pop()
            continue
        entered.add(node)
        needed = (successor[node],) if node in successor else node.inputs
        waiting = [n for n in needed if n not in final]
        if waiting:
            if not entered.isdisjoint(waiting):  # it waits for itself
                raise budget.never_settles()
            stack.extend(waiting)
        elif node in successor:
            final[node] = final[successor[node]]
        else:
            new = rebuild(node, tuple(final[i] for i in node.inputs))
            if new is node:
                new = _apply(node, rules.get(node.op.name, ()), budget)
            if new is node:
                final[node] = node
            else:
                successor[node] = new


def _apply(node: Node, rules: Iterable[Rule], budget: _Budget) -> Node:
    for rule in rules:
        if budget.empty:
            break
        found = match(rule.pattern, node)
        if found is not None:
            new = rule.build(found)
            if new is not None and new is not node:
                if new.type != node.type or new.outputs != node.outputs:
                    raise InternalError("rewrite", f"{rule.name or rule.pattern} turned {node} into {new}.")
                budget.spend(rule)
                return new
    return node
