"""Where a network can be cut into pipeline stages, and where it should be.

The network is traced once. It can be cut after the call of a module if everything later depends on the input only through the result of
that call; it should be cut such that the most expensive stage is as cheap as possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate, pairwise
from math import inf, prod
from typing import Any

from ..dtypes import uint64
from ..errors import UserError
from ..graph.node import CONST, VARIABLE, Node, Type, toposort
from ..nn.module import Module, calls_through
from ..nn.summary import macs
from ..random import default_generator
from ..records import dataclass
from ..runtime import STATE_LOCK
from ..tensor import Tensor, number
from ..tracing.context import StateRecorder
from ..tracing.trace import trace
from ..tree import flatten

BYTE_COST = 5  # multiply-adds in the time that one byte of a layer's result takes, unless times were measured


@dataclass
class TracedCall:
    """A call of a module of the network, numbered in the order in which calls begin."""

    number: int
    module: Module
    last: int = 0  # the number of the last call inside it, or its own
    result: Any = None
    drawn: int = 0  # blocks of random numbers drawn from the start of the network to the end of this call


@dataclass(frozen=True)
class CutPoint:
    """A place where the network can be cut: after a call, whose result is all that is needed from then on."""

    call: TracedCall
    path: str
    node: Node

    @property
    def type(self) -> Type:
        return self.node.type

    @property
    def nbytes(self) -> int:
        return prod(self.type.shape) * self.type.dtype.itemsize


@dataclass
class NetworkTrace:
    """The graph of a network in training mode: its calls, the points where it can be cut, and the costs between them."""

    input: Type
    calls: list[TracedCall]
    outputs: list[Node]
    tensors: dict[Node, Tensor]  # parameters and state, by their leaves
    drawn: int  # blocks of random numbers that a pass draws, including those before the network
    names: dict[Module, str]
    points: list[CutPoint] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)  # one more than there are points

    @property
    def point_names(self) -> list[str]:
        """The names of the points: the path of the module that is called, with the number of the call from the second on.

        They do not depend on costs: a run that is continued is cut at the points of the same names.
        """
        seen = Counter[str]()
        found = []
        for point in self.points:
            seen[point.path] += 1
            found.append(point.path if seen[point.path] == 1 else f"{point.path}:{seen[point.path]}")
        return found

    def between(self, begin: CutPoint | None, end: CutPoint | None) -> list[Node]:
        """The nodes from one cut to another; None is the input or the output of the network."""
        roots = self.outputs if end is None else [end.node]
        stop = None if begin is None else begin.node
        return [n for n in toposort(roots, lambda n: () if n is stop else n.inputs) if n is not stop]


def trace_network(
    model: Module,
    input: Type,
    costs: Mapping[str, float] | None = None,
    before: Callable[[Tensor], Tensor] = lambda x: x,
) -> NetworkTrace:
    """Trace a network and find where it can be cut. Costs are given by the path of layers, or estimated from the traced graph.

    `before` is applied to an input of this type before the network begins.
    """
    recorder, found = StateRecorder(), _CallTracer(model, before)
    with STATE_LOCK, recorder:
        made = trace(found.call, [input], flatten((0,))[1], watched=True)
        others = [stream for stream in made.streams if stream is not default_generator]
        outputs, tensors = made.outputs, dict(recorder.by_node)
    if others or found.position is None:
        raise UserError(
            "Pipeline",
            "layers that draw from random streams of their own, or inside of loops, are not supported: stages must know where the stream "
            "of a micro-batch begins. Draw from the global stream, outside of loops.",
        )
    names = {part: path for path, part in model.named_modules().items()}
    network = NetworkTrace(found.input.type, found.made, outputs, tensors, found.position, names)
    network.points = _cut_points(network, found.input)
    network.costs = _measured_costs(network, costs) if costs is not None else _graph_costs(network)
    return network


class _CallTracer:
    """Records the calls of modules, and the position of the random stream."""

    def __init__(self, model: Module, before: Callable[[Tensor], Tensor]) -> None:
        self.model, self.before = model, before
        self.made: list[TracedCall] = []
        self.position: int | None = 0

    def call(self, x: Tensor) -> Any:
        start, default_generator.offset = default_generator.offset, number(0, uint64)
        try:
            given = self.before(x)
            self.input = given._node
            with calls_through(self):
                return self.model(given)
        finally:
            self._look()
            default_generator.offset = start

    def __call__(self, module: Module, compute: Any) -> Any:
        call = TracedCall(len(self.made), module)
        self.made.append(call)
        call.result = compute()
        call.last = len(self.made) - 1
        self._look()
        call.drawn = self.position or 0
        return call.result

    def _look(self) -> None:
        node = default_generator.offset._node
        self.position = node.params[0] if node.op is CONST and self.position is not None else None


def _cut_points(network: NetworkTrace, input: Node) -> list[CutPoint]:
    found: dict[Node, CutPoint] = {}
    for call in sorted(network.calls, key=lambda call: (call.last, call.number)):
        node = call.result._node if isinstance(call.result, Tensor) else None
        if node is None or node in found or node in network.outputs or not node.dtype.is_float:
            continue
        point = CutPoint(call, network.names.get(call.module, ""), node)
        if call.number and _separates(network, point, input):
            found[node] = point
    return list(found.values())


def _separates(network: NetworkTrace, point: CutPoint, input: Node) -> bool:
    """Whether nothing after the cut uses the input, or results of modules before the cut, except through the cut."""
    later = set(network.between(point, None))
    before = (c for c in network.calls if c.last < point.call.number)
    results = (r._node for call in before for r in flatten(call.result)[0] if isinstance(r, Tensor))
    return input not in later and later.isdisjoint(r for r in results if r is not point.node)


def _graph_costs(network: NetworkTrace) -> list[float]:
    """Costs from multiply-adds and bytes of results. Nodes that several parts share, such as masks, count in the first of them."""
    seen: set[Node] = set()
    found = []
    results = {r._node for c in network.calls for r in flatten(c.result)[0] if isinstance(r, Tensor)}
    for begin, end in pairwise([None, *network.points, None]):
        own = [n for n in network.between(begin, end) if n not in seen and n.op is not VARIABLE]
        seen.update(own)
        nbytes = sum(prod(n.shape) * n.dtype.itemsize for n in own if n in results)
        found.append(float(macs(own) + BYTE_COST * nbytes))
    return found


def _measured_costs(network: NetworkTrace, costs: Mapping[str, float]) -> list[float]:
    """The given seconds of layers, each assigned to the part where the layer ends."""
    ends = {path: call.last for call in network.calls if (path := network.names.get(call.module))}
    unknown = [path for path in costs if path and path not in ends]
    if unknown:
        raise UserError("Pipeline", f"costs by the paths of layers are required; there is no layer {unknown[0]!r}.")
    found = [0.0] * (len(network.points) + 1)
    for path, seconds in costs.items():
        if path:
            part = sum(ends[path] > point.call.last for point in network.points)
            found[part] += float(seconds)
    return found


def balanced(costs: Sequence[float], stages: int, trained: Sequence[bool] | None = None) -> list[int]:
    """Where to cut a sequence to minimize the largest sum between two cuts: the index of the first item of each stage but the first.

    Each stage gets at least one of the `trained` items; an empty list if that is impossible.

    >>> balanced([1, 1, 4, 2, 2], 3)
    [2, 3]
    >>> balanced([1, 1, 4, 2, 2], 3, [True, True, False, False, True])
    [1, 3]
    """
    sums = list(accumulate(costs, initial=0.0))
    counts = list(accumulate(trained or [True] * len(costs), initial=0))
    # For the first i items in a number of stages: the largest sum, and the cuts.
    best: list[tuple[float, tuple[int, ...]]] = [(sums[i] if counts[i] else inf, ()) for i in range(len(sums))]
    for stage in range(1, stages):
        best = [
            min(
                (
                    (max(best[k][0], sums[i] - sums[k]), (*best[k][1], k))
                    for k in range(stage, i)
                    if counts[i] > counts[k]
                ),
                default=(inf, ()),
            )
            for i in range(len(sums))
        ]
    return list(best[-1][1]) if best[-1][0] < inf else []


def cut(network: NetworkTrace, stages: int) -> list[CutPoint]:
    """The cuts that balance `stages` stages, each with parameters."""
    trained = [_is_trained(network, begin, end) for begin, end in pairwise([None, *network.points, None])]
    found = balanced(network.costs, stages, trained)
    if len(found) < stages - 1:
        raise UserError(
            "Pipeline",
            f"the network can be cut into {sum(trained)} stages with parameters, {stages} are required. It can be cut after a layer "
            "whose result is all that later layers need: use fewer stages, or a network of more layers in a row.",
        )
    return [network.points[first - 1] for first in found]


def cut_after(network: NetworkTrace, stages: int, names: Sequence[str]) -> list[CutPoint]:
    """The cuts after these layers, each the last one of its stage."""
    known = network.point_names
    for name in names:
        if name not in known:
            raise UserError("Pipeline", f"the network cannot be cut after {name!r}. It can be cut after {', '.join(known) or 'no layer'}.")  # fmt: skip
    places = [known.index(name) for name in names]
    if places != sorted(set(places)) or len(places) != stages - 1:
        raise UserError(
            "Pipeline",
            f"the {stages - 1} layers that end all {stages} stages but the last are required, in the order of the network, got {', '.join(names) or 'none'}.",
        )
    cuts = [network.points[place] for place in places]
    for begin, end in pairwise([None, *cuts, None]):
        if not _is_trained(network, begin, end):
            where = "the input" if begin is None else begin.path
            raise UserError("Pipeline", f"each stage needs parameters to train, and the one after {where} has none.")
    return cuts


def cut_names(network: NetworkTrace, cuts: Sequence[CutPoint]) -> list[str]:
    """The names of cuts, for `cut_after`."""
    names = network.point_names
    return [names[network.points.index(point)] for point in cuts]


def _is_trained(network: NetworkTrace, begin: CutPoint | None, end: CutPoint | None) -> bool:
    """Whether there are parameters to train from one cut to another."""
    return any(n in network.tensors and network.tensors[n].requires_grad for n in network.between(begin, end))


def described(network: NetworkTrace, cuts: Sequence[CutPoint]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Descriptions of the layers of all stages, and their costs."""
    ends = [0, *(network.points.index(c) + 1 for c in cuts), len(network.costs)]
    costs = tuple(sum(network.costs[a:b]) for a, b in pairwise(ends))
    begins = ["the input", *(f"after {c.path}" for c in cuts)]
    stops = [*(f"to {c.path}" for c in cuts), "to the loss"]
    return tuple(f"{a} {b}" for a, b in zip(begins, stops, strict=True)), costs
