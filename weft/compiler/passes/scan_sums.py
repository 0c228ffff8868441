"""Accumulate: a sum that a scan carries becomes one sum after it.

The derivative of a recurrent network adds a product to the gradient of its weights at every step: total + a_t' b_t. That sum
is one product over time and batch together, of the stacked a and b, which mostly are stacked already, as results or
sequences of the scan. The gradient of the weights is then written once, not at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...graph.graph import Graph, close, substitute
from ...graph.node import ITEM, OPS, Node, item, make, toposort
from ...records import dataclass


def scan_sums(graph: Graph) -> Graph:
    """The graph with such sums moved out of its scans."""
    nodes = graph.nodes
    scans = [n for n in nodes if n.op.name == "scan"]
    if not scans:
        return graph
    for scan in scans:
        read = {n.param("index"): n for n in graph.nodes if n.op is ITEM and n.inputs[0] is scan}
        changed = _without_totals(scan, read)
        if changed is not None:
            outputs = substitute(graph.outputs, {read[i]: new for i, new in changed.items() if i in read})
            # The users of the scan are new nodes now, so the search starts again.
            return scan_sums(Graph(graph.inputs, outputs))
    return graph


@dataclass(frozen=True)
class _CarriedSum:
    """Carried value `number` is only added to: at each step `step`, a product or sum with the inputs `factors`."""

    number: int
    step: Node
    factors: tuple[Node, ...]


def _without_totals(scan: Node, read: dict[int, Node]) -> dict[int, Node] | None:
    """For each result of a scan its replacement, if sums could be moved out of it."""
    body, carried, sequences, length, history = scan.get_params("body", "carried", "sequences", "length", "history")
    stacked = len(body.outputs) - carried
    unread = [i for i in range(carried) if not (history and carried + stacked + i in read)]
    totals = [t for i in unread if length and (t := _total(body, i, carried + sequences)) is not None]
    if not totals:
        return None
    gone = {t.number for t in totals}
    kept = [i for i in range(carried) if i not in gone]
    stacks = list(dict.fromkeys(f for t in totals for f in t.factors if _sequence(body, f, carried, sequences) is None))
    extra = [f for f in stacks if f not in body.outputs[carried:]]
    inputs = [n for i, n in enumerate(body.inputs) if i not in gone]
    outputs = [*(body.outputs[i] for i in kept), *body.outputs[carried:], *extra]
    smaller = make(
        scan.op,
        tuple(n for i, n in enumerate(scan.inputs) if i not in gone),
        scan.replace_params(body=close(inputs, outputs), carried=len(kept)),
        scan.source,
    )
    stack_of = {n: item(smaller, len(kept) + i) for i, n in enumerate([*body.outputs[carried:], *extra])}
    found = {old: item(smaller, new) for new, old in enumerate(kept)}
    found |= {carried + i: item(smaller, len(kept) + i) for i in range(stacked)}
    if history:
        first = len(kept) + stacked + len(extra)
        found |= {carried + stacked + old: item(smaller, first + new) for new, old in enumerate(kept)}
    for total in totals:
        stacks_here = [
            stack_of.get(f) or scan.inputs[_sequence(body, f, carried, sequences) or 0] for f in total.factors
        ]
        found[total.number] = make(
            OPS["add"], (scan.inputs[total.number], _summed(total.step, stacks_here)), (), scan.source
        )
    return found


def _total(body: Graph, number: int, moving: int) -> _CarriedSum | None:
    """The carried value as a sum, if the body only adds to it."""
    carry, result = body.inputs[number], body.outputs[number]
    if result.op.name != "add" or carry not in result.inputs or not carry.dtype.is_float:
        return None
    step = result.inputs[1] if result.inputs[0] is carry else result.inputs[0]
    users = [n for n in body.nodes if carry in n.inputs]
    if users != [result] or list(body.outputs).count(result) != 1 or carry in body.outputs or step is carry:
        return None
    if any(result in n.inputs for n in body.nodes):
        return None
    inner = step
    while inner.op.name in ("permute", "reshape"):
        inner = inner.inputs[0]
    if inner.op.name not in ("contract", "sum") or any(prod(f.shape) > 4 * prod(step.shape) for f in _stacked(inner)):
        return None
    if not any(n in body.inputs[:moving] for n in toposort([inner])):
        return None
    return _CarriedSum(number, step, tuple(inner.inputs))


def _stacked(node: Node) -> Sequence[Node]:
    return node.inputs if node.op.name == "contract" else ()


def _sequence(body: Graph, node: Node, carried: int, sequences: int) -> int | None:
    """The number of the scan's input that holds a node for all steps, if it is one of its sequences."""
    if node in body.inputs[carried : carried + sequences]:
        return body.inputs.index(node)
    return None


def _summed(step: Node, stacks: Sequence[Node]) -> Node:
    """The sum of the terms of all steps, computed from the stacked factors."""
    if step.op.name == "permute":
        return make(step.op, (_summed(step.inputs[0], stacks),), step.params, step.source)
    if step.op.name == "reshape":
        return make(step.op, (_summed(step.inputs[0], stacks),), step.params, step.source)
    if step.op.name == "sum":
        axes = (0, *(a + 1 for a in step.param("axes")))
        return make(step.op, tuple(stacks), (axes,), step.source)
    a, b, out = step.get_params("a", "b", "out")
    letter = next(c for c in "tuvwxyzabcdefghijklmnopqrs" if c not in a + b)
    return make(step.op, tuple(stacks), (letter + a, letter + b, out), step.source)
