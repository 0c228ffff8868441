"""How values flow between the layers of a network, and which of them must have the same layout.

The network is traced once. Elementwise operations between layers (a residual sum, an activation) preserve any layout, so the values
they connect share one; everything else between layers (reshapes, sums, products with parameters) needs whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from ...graph.node import CLOCK, DATA, VARIABLE, Node, Shape, toposort
from ...nn.module import Module, listening, own_tensors
from ...nn.summary import macs, type_of
from ...records import dataclass
from ...tensor import as_tensor
from ...tracing.trace import trace
from ...tree import flatten
from .layer import is_number


@dataclass(frozen=True)
class FlowCall:
    """A call of a layer: the layout groups of its first input and its result, and their whole shapes."""

    layer: Module
    value: int  # index of its input
    source: int  # groups
    result: int
    x: Shape
    y: Shape
    itemsize: int
    differentiated: bool  # whether its input depends on parameters
    macs: int  # multiply-adds of its products and convolutions


@dataclass
class Flow:
    """The calls of layers in order, and the groups of values that must be whole."""

    calls: list[FlowCall]
    whole: set[int]
    outside: set[Node] = field(default_factory=set)  # parameters that are read outside the layers


def flow_of(model: Module, examples: Sequence[Any], layers: Iterable[Module], *, whole_results: bool = True) -> Flow:
    """Trace a network and find how values flow between these layers. With `whole_results`, the network's results must be whole."""
    types = [type_of(e) for e in examples]
    recorder = _Recorder(set(layers))
    with _tracing_mode(model), listening(recorder):
        traced = trace(lambda *xs: model(*xs), types, flatten(tuple(0 for _ in types))[1])
    nodes = [n for n in toposort(traced.outputs) if n.abstract]
    for call in recorder.calls:
        call.macs = macs([n for n in nodes if call.begin < n.serial <= call.end])
    return _LayoutGroups(recorder.calls, traced.outputs).flow(whole_results)


@dataclass
class _Call:
    layer: Module
    inputs: list[Node]
    begin: int  # of the CLOCK
    end: int = 0
    result: Node | None = None
    macs: int = 0


class _Recorder:
    """Records the calls of some layers, but not the calls inside them."""

    def __init__(self, layers: set[Module]) -> None:
        self.layers = layers
        self.calls: list[_Call] = []
        self._inside: Module | None = None

    def begins(self, module: Module, args: tuple[Any, ...]) -> None:
        if self._inside is None and module in self.layers:
            tensors = [a for a in flatten(args)[0] if a is not None]
            self.calls.append(_Call(module, [as_tensor(a).node for a in tensors], CLOCK.nodes))
            self._inside = module

    def ends(self, module: Module, result: Any) -> None:
        if self._inside is module:
            self.calls[-1].result, self.calls[-1].end = as_tensor(result).node, CLOCK.nodes
            self._inside = None


@contextmanager
def _tracing_mode(model: Module) -> Iterator[None]:
    """While active, layers are in training mode, to record dropout between layers, except layers with state, which must not change."""
    was = {part: part.training for part in model.modules()}
    for part in was:
        part.training = all(t.requires_grad for _, t in own_tensors(part))
    try:
        yield
    finally:
        for part, mode in was.items():
            part.training = mode


class _LayoutGroups:
    """Groups of nodes that must have the same layout, by union-find."""

    def __init__(self, calls: list[_Call], outputs: Sequence[Node]) -> None:
        self.calls = [c for c in calls if c.result is not None and c.result is not c.inputs[0]]
        self.outputs = outputs
        self.parent: dict[Node, Node] = {}
        self.whole: set[Node] = set()
        self.outside: set[Node] = set()

    def flow(self, whole_results: bool) -> Flow:
        results = {c.result for c in self.calls}
        waiting = [*self.outputs, *(n for c in self.calls for n in c.inputs)]
        self.whole.update(self.outputs if whole_results else ())
        self.whole.update(n for c in self.calls for n in c.inputs[1:])
        self._join_repeated()
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node not in results:
                self._connect(node)
                waiting += [n for n in node.inputs if not is_number(n)]
        roots = {self._root(n) for n in self.whole}
        numbers: dict[Node, int] = {}
        found = [self._numbered(call, numbers) for call in self.calls]
        return Flow(found, {numbers[root] for root in roots if root in numbers}, self.outside)

    def _connect(self, node: Node) -> None:
        """Add a node between layers: elementwise ones join the groups of their operands, others need them whole."""
        operands = [n for n in node.inputs if not is_number(n)]
        fits = node.op.kind == "elementwise" and all(n.shape == node.shape for n in operands)
        if not operands:
            self.whole.add(node)
        if node.op in (VARIABLE, DATA):
            self.outside.add(node)
        for operand in operands:
            if fits:
                self._join(operand, node)
            else:
                self.whole.update((node, operand))

    def _join_repeated(self) -> None:
        """Join the groups of a layer that is called several times: all its inputs share one layout, and all its results."""
        first: dict[Module, _Call] = {}
        for call in self.calls:
            other = first.setdefault(call.layer, call)
            assert call.result is not None
            assert other.result is not None
            for a, b in ((call.inputs[0], other.inputs[0]), (call.result, other.result)):
                self._join(a, b)

    def _join(self, a: Node, b: Node) -> None:
        a, b = self._root(a), self._root(b)
        if a is not b:
            self.parent[a] = b

    def _root(self, node: Node) -> Node:
        while node in self.parent:
            node = self.parent[node]
        return node

    def _numbered(self, call: _Call, numbers: dict[Node, int]) -> FlowCall:
        assert call.result is not None
        x, y = call.inputs[0], call.result
        value = numbers.setdefault(x, len(numbers))
        source, result = (numbers.setdefault(self._root(n), len(numbers)) for n in (x, y))
        return FlowCall(call.layer, value, source, result, x.shape, y.shape, y.dtype.itemsize, x.tracked, call.macs)
