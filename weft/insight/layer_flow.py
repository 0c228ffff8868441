"""The layers of a traced function and the data flow between them: its graph of operations, grouped by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from ..errors import Scope
from ..graph.graph import Graph
from ..graph.node import Node, dependencies
from ..records import dataclass

INPUT = "input"
LayerKey = tuple[str, str, int]  # path, class and network, as in a scope


@dataclass(frozen=True)
class FlowLayer:
    """A layer in the order of data flow. A layer that is called several times may occur several times."""

    path: str
    kind: str
    root: int
    shape: tuple[int, ...]  # of its last result
    reads: tuple[int, ...]  # positions of the layers whose results it reads
    nodes: int  # operations in it

    @property
    def key(self) -> LayerKey:
        return self.path, self.kind, self.root


def layer_flow(graph: Graph, arguments: Iterable[Node]) -> tuple[FlowLayer, ...]:
    """The layers of a graph, without the backward pass and updates of parameters.

    >>> import weft
    >>> x = weft.jit(weft.nn.Sequential(weft.nn.Linear(4, 3), weft.nn.ReLU())).traced_function(weft.ones((2, 4)))
    >>> [(layer.kind, layer.shape, layer.reads) for layer in layer_flow(x.graph, x.graph.inputs[:1])]
    [('input', (2, 4), ()), ('Linear', (2, 3), (0,)), ('ReLU', (2, 3), (1,))]
    """
    groups = _FlowGroups()
    for node in arguments:
        groups.add(node, ("", INPUT, id(node)), ())
    for node in graph.nodes:
        scope = None if node.source is None else node.source.scope
        inputs = [groups.of[i] for i in dependencies(node) if i in groups.of]
        if node not in groups.of and inputs and (scope is None or scope.phase == "forward"):
            scope = scope or Scope()
            groups.add(node, (scope.path, scope.kind, scope.root), inputs)
    return groups.layers()


@dataclass
class _FlowGroup:
    key: LayerKey
    nodes: list[Node] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    before: int = 0  # bit set of the groups that it depends on


class _FlowGroups:
    """Groups of operations without cycles: no group depends on itself through another one."""

    def __init__(self) -> None:
        self.found: list[_FlowGroup] = []
        self.of: dict[Node, int] = {}
        self._latest: dict[LayerKey, int] = {}

    def add(self, node: Node, key: LayerKey, inputs: Iterable[int]) -> None:
        place = self._latest.get(key)
        others = {i for i in inputs if i != place}
        if place is None or any(self.found[i].before >> place & 1 for i in others):
            place = self._latest[key] = len(self.found)
            self.found.append(_FlowGroup(key))
        self.of[node] = place
        group = self.found[place]
        group.nodes.append(node)
        group.reads |= others - {place}
        added = group.before
        for other in group.reads:
            added |= self.found[other].before | 1 << other
        for one in self.found:  # dependants of this group inherit its new dependencies
            if one is group or one.before >> place & 1:
                one.before |= added

    def layers(self) -> tuple[FlowLayer, ...]:
        """The layers in topological order."""
        order = sorted(range(len(self.found)), key=lambda i: (self.found[i].before.bit_count(), i))
        position = {place: i for i, place in enumerate(order)}
        return tuple(_layer(self.found[place], position) for place in order)


def _layer(group: _FlowGroup, position: Mapping[int, int]) -> FlowLayer:
    path, kind, root = group.key
    reads = tuple(sorted(position[i] for i in group.reads))
    return FlowLayer(path, kind, root, group.nodes[-1].shape, reads, len(group.nodes))


def flow_from_json(known: Iterable[Mapping[str, Any]]) -> tuple[FlowLayer, ...]:
    """The layers from the output of `dataclasses.asdict`."""
    return tuple(FlowLayer(**{**one, "shape": tuple(one["shape"]), "reads": tuple(one["reads"])}) for one in known)
