"""Recall: values of a scan's forward pass that its backward pass would recompute are saved as residuals.

The derivative of a scan runs backwards over the carried values and recomputes each step. That is cheap for elementwise
steps but not for matrix products and convolutions: their results become one more stacked output of the forward scan and one more
sequence of the backward scan. If they are only used by elementwise ops, the results of those are saved instead: the gates of an
LSTM, not their inputs. Bodies of `checkpoint` are excluded, so that it still recomputes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...graph.graph import Graph, close, substitute
from ...graph.node import ITEM, PLACEHOLDER, Node, existing, item, make, placeholder
from ...records import dataclass
from ..ir.storage import nbytes


def scan_residuals(graph: Graph) -> Graph:
    """The graph with the expensive values of forward scans saved for backward scans."""
    for later in (n for n in graph.nodes if n.op.name == "scan"):
        for first in dict.fromkeys(i.inputs[0] for i in later.inputs if i.op is ITEM and i.inputs[0].op is later.op):
            changed = _kept(_Scan(first), _Scan(later), graph)
            if changed:
                # The users of the scans are new nodes now, so the search starts again.
                return scan_residuals(Graph(graph.inputs, substitute(graph.outputs, changed)))
    return graph


@dataclass(frozen=True)
class _Scan:
    node: Node

    @property
    def body(self) -> Graph:
        body: Graph = self.node.param("body")
        return body

    @property
    def carried(self) -> int:
        return int(self.node.param("carried"))

    @property
    def moving(self) -> int:
        """The number of inputs that are carried values or sequences; the others are constants."""
        return self.carried + int(self.node.param("sequences"))

    def inside(self, outside: Node) -> list[Node]:
        """The body's inputs that have, at each step, the element of a sequence or the constant `outside`."""
        places = range(self.carried, len(self.node.inputs))
        return [self.body.inputs[i] for i in places if self.node.inputs[i] is outside]


def _kept(first: _Scan, later: _Scan, graph: Graph) -> dict[Node, Node]:
    """The replacements of the results of both scans; empty if there is nothing to save."""
    if first.node.param("length") != later.node.param("length"):
        return {}
    same = _same_steps(first, later)
    wanted = _worth(same, later.body)
    if not wanted:
        return {}
    return _rebuilt(first, later, wanted, same, graph)


def _same_steps(first: _Scan, later: _Scan) -> dict[Node, Node]:
    """The nodes of the later body that are also computed in the first one, and the corresponding nodes there."""
    same: dict[Node, Node] = {}
    outputs = len(first.body.outputs)
    for place in range(later.carried, len(later.node.inputs)):
        outside, inside = later.node.inputs[place], later.body.inputs[place]
        number = outside.param("index") - outputs if outside.op is ITEM and outside.inputs[0] is first.node else -1
        if place < later.moving and number >= 0:  # the carried values before every step
            same[inside] = first.body.inputs[number]
        else:
            moves = place < later.moving
            found = [n for n in first.inside(outside) if (first.body.inputs.index(n) < first.moving) == moves]
            if found:
                same[inside] = found[0]
    there = set(first.body.nodes)
    for node in later.body.nodes:
        if node in same or node.op is PLACEHOLDER or not all(i in same for i in node.inputs):
            continue
        twin = existing(node.op, tuple(same[i] for i in node.inputs), node.params)
        if twin is not None and (twin in there or not node.inputs):
            same[node] = twin
    return same


def _worth(same: Mapping[Node, Node], body: Graph) -> list[Node]:
    """The nodes to save: expensive ones, or their elementwise results if those are their only users and not larger."""
    users: dict[Node, dict[Node, None]] = {}
    for node in body.nodes:
        for i in node.inputs:
            users.setdefault(i, {})[node] = None
    instead: dict[Node, dict[Node, None]] = {}  # nodes that may be saved instead of a node
    for node in reversed(body.nodes):
        made = users.get(node, {})
        found = {kept: None for user in made for kept in instead[user]}
        alone = (
            made and node not in body.outputs and all(n in same and n.op.kind in ("elementwise", "move") for n in made)
        )
        instead[node] = found if alone and sum(map(nbytes, found)) <= nbytes(node) else {node: None}
    expensive = [n for n in body.nodes if n in same and n.op.kernel in ("contraction", "convolution")]
    return list({kept: None for node in expensive for kept in instead[node]})


def _rebuilt(
    first: _Scan, later: _Scan, wanted: list[Node], same: Mapping[Node, Node], graph: Graph
) -> dict[Node, Node]:
    """Both scans rebuilt: the first with one more stacked output for each wanted node, the later one with one more sequence."""
    given = {n: placeholder(object(), n.type) for n in wanted}
    outputs = substitute(later.body.outputs, given)
    used = set(Graph((), outputs).nodes)
    given = {n: p for n, p in given.items() if p in used}  # some were only needed for others
    if not given:
        return {}
    body = first.body
    count = len(body.outputs)
    bigger = make(
        first.node.op, first.node.inputs,
        first.node.replace_params(body=close(body.inputs, [*body.outputs, *(same[n] for n in given)])),
        first.node.source,
    )  # fmt: skip
    changed = {
        n: item(bigger, number if (number := n.param("index")) < count else number + len(given))
        for n in _items(first.node, graph.nodes)
    }
    stacks = [item(bigger, count + i) for i in range(len(given))]
    needed = [i for i in range(len(later.node.inputs)) if i < later.carried or later.body.inputs[i] in used]
    split = sum(i < later.moving for i in needed)
    inner = [later.body.inputs[i] for i in needed]
    outer = list(substitute([later.node.inputs[i] for i in needed], changed))
    smaller = make(
        later.node.op, (*outer[:split], *stacks, *outer[split:]),
        later.node.replace_params(
            body=close([*inner[:split], *given.values(), *inner[split:]], outputs),
            sequences=split - later.carried + len(given),
        ),
        later.node.source,
    )  # fmt: skip
    return changed | {n: item(smaller, n.param("index")) for n in _items(later.node, graph.nodes)}


def _items(scan: Node, nodes: Iterable[Node]) -> list[Node]:
    return [n for n in nodes if n.op is ITEM and n.inputs[0] is scan]
