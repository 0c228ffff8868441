"""Recall: what a scan computes again on its way back, though a scan before it had it, is kept from there.

The derivative of a scan walks back over the carried values and computes each step anew, for the derivatives of what is in it.
That is cheap for elementwise steps but not for matrix products and convolutions: those become one more stack that the first
scan fills and the second reads. Where nothing else is made of them, it is the values made of them that are kept: the gates of an
LSTM, not what goes into them. `checkpoint` hides a body's insides from this, as it should.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...graph.graph import Graph, close, substitute
from ...graph.node import ITEM, Node, existing, item, make, placeholder
from ..ir.storage import nbytes

EXPENSIVE = ("contract", "conv", "conv_data", "conv_filter")
CHEAP = ("elementwise", "move")


def recall(graph: Graph) -> Graph:
    """The graph with the expensive parts of steps kept where they are needed again."""
    for later in (n for n in graph.nodes if n.op.name == "scan"):
        for first in dict.fromkeys(i.inputs[0] for i in later.inputs if i.op is ITEM and i.inputs[0].op is later.op):
            changed = _kept(_Scan(first), _Scan(later), graph)
            if changed:
                # What stood above the scans is new now: begin again with what is left.
                return recall(Graph(graph.inputs, substitute(graph.outputs, changed)))
    return graph


@dataclass(frozen=True)
class _Scan:
    node: Node

    @property
    def body(self) -> Graph:
        body: Graph = self.node.params[0]
        return body

    @property
    def carried(self) -> int:
        return int(self.node.params[1])

    @property
    def moving(self) -> int:
        """The number of inputs that are carried values or sequences; the others are constants."""
        return int(self.node.params[1] + self.node.params[2])

    def inside(self, outside: Node) -> list[Node]:
        """The body's inputs that stand, at each step, for a sequence or a constant outside."""
        places = range(self.carried, len(self.node.inputs))
        return [self.body.inputs[i] for i in places if self.node.inputs[i] is outside]


def _kept(first: _Scan, later: _Scan, graph: Graph) -> dict[Node, Node]:
    """What takes the place of the results of both scans; nothing if there is nothing to keep."""
    if first.node.params[3] != later.node.params[3]:
        return {}
    same = _same_steps(first, later)
    wanted = _worth(same, later.body)
    if not wanted:
        return {}
    return _rebuilt(first, later, wanted, same, graph)


def _same_steps(first: _Scan, later: _Scan) -> dict[Node, Node]:
    """The nodes of the later body that are computed in the first one too, and as what."""
    same: dict[Node, Node] = {}
    outputs = len(first.body.outputs)
    for place in range(later.carried, len(later.node.inputs)):
        outside, inside = later.node.inputs[place], later.body.inputs[place]
        number = outside.params[0] - outputs if outside.op is ITEM and outside.inputs[0] is first.node else -1
        if place < later.moving and number >= 0:  # the carried values before every step
            same[inside] = first.body.inputs[number]
        else:
            moves = place < later.moving
            found = [n for n in first.inside(outside) if (first.body.inputs.index(n) < first.moving) == moves]
            if found:
                same[inside] = found[0]
    there = set(first.body.nodes)
    for node in later.body.nodes:
        if node in same or node.op.name == "placeholder" or not all(i in same for i in node.inputs):
            continue
        twin = existing(node.op, tuple(same[i] for i in node.inputs), node.params)
        if twin is not None and (twin in there or not node.inputs):
            same[node] = twin
    return same


def _worth(same: Mapping[Node, Node], body: Graph) -> list[Node]:
    """The nodes to keep: expensive ones, or what alone is made of them and is not larger."""
    users: dict[Node, dict[Node, None]] = {}
    for node in body.nodes:
        for i in node.inputs:
            users.setdefault(i, {})[node] = None
    instead: dict[Node, dict[Node, None]] = {}  # what may be kept in the place of a node
    for node in reversed(body.nodes):
        made = users.get(node, {})
        found = {kept: None for user in made for kept in instead[user]}
        alone = made and node not in body.outputs and all(n in same and n.op.kind in CHEAP for n in made)
        instead[node] = found if alone and sum(map(nbytes, found)) <= nbytes(node) else {node: None}
    expensive = [n for n in body.nodes if n in same and n.op.name in EXPENSIVE]
    return list({kept: None for node in expensive for kept in instead[node]})


def _rebuilt(
    first: _Scan, later: _Scan, wanted: list[Node], same: Mapping[Node, Node], graph: Graph
) -> dict[Node, Node]:
    """Both scans anew: the first with one more stack for each wanted node, the later one with one more sequence."""
    given = {n: placeholder(object(), n.type) for n in wanted}
    outputs = substitute(later.body.outputs, given)
    used = set(Graph((), outputs).nodes)
    given = {n: p for n, p in given.items() if p in used}  # some were only there for others
    if not given:
        return {}
    body, carried, sequences, length, reverse, history = first.node.params
    count = len(body.outputs)
    bigger = make(
        first.node.op, first.node.inputs,
        (close(body.inputs, [*body.outputs, *(same[n] for n in given)]), carried, sequences, length, reverse, history),
        first.node.source,
    )  # fmt: skip
    changed = {
        n: item(bigger, number if (number := n.params[0]) < count else number + len(given))
        for n in _items(first.node, graph.nodes)
    }
    stacks = [item(bigger, count + i) for i in range(len(given))]
    needed = [i for i in range(len(later.node.inputs)) if i < later.carried or later.body.inputs[i] in used]
    split = sum(i < later.moving for i in needed)
    inner = [later.body.inputs[i] for i in needed]
    outer = list(substitute([later.node.inputs[i] for i in needed], changed))
    smaller = make(
        later.node.op, (*outer[:split], *stacks, *outer[split:]),
        (
            close([*inner[:split], *given.values(), *inner[split:]], outputs),
            later.carried, split - later.carried + len(given), *later.node.params[3:],
        ),
        later.node.source,
    )  # fmt: skip
    return changed | {n: item(smaller, n.params[0]) for n in _items(later.node, graph.nodes)}


def _items(scan: Node, nodes: Iterable[Node]) -> list[Node]:
    return [n for n in nodes if n.op is ITEM and n.inputs[0] is scan]
