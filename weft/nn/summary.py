"""`summary`: output shape, parameters, multiply-adds (MACs) and bytes of each layer, found by tracing the network once.

The numbers come from the traced graph, not from formulas of the layers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

from ..dtypes import DEFAULT_FLOAT
from ..errors import UserError
from ..graph.graph import Graph
from ..graph.node import CLOCK, Node, Type, toposort
from ..records import dataclass
from ..tensor import Tensor, as_tensor
from ..tracing.trace import Trace, trace
from ..tree import flatten
from .module import Module, listening, own_tensors


def macs(nodes: Sequence[Node]) -> int:
    """The multiply-adds (MACs) of all matrix products and convolutions among these nodes."""
    return sum(map(_macs, nodes))


def _macs(node: Node) -> int:
    if node.op.flops is not None:
        return node.op.flops(node) // 2
    bodies = [macs(p.nodes) for p in node.params if isinstance(p, Graph)]
    if not bodies:
        return 0
    return max(bodies) * (node.param("length") if node.op.name == "scan" else 1)


@dataclass(frozen=True)
class LayerCost:
    """The cost of one call of a layer."""

    name: str
    kind: str
    output: str
    parameters: int  # of the layer itself, without its children
    frozen: int  # of them
    macs: int  # its own
    nbytes: int  # of its output
    depth: int
    has_parts: bool


@dataclass(frozen=True)
class Summary:
    """A table of a network's layers, for printing."""

    lines: tuple[LayerCost, ...]
    parameters: int
    trained: int
    state: int
    macs: int
    nbytes: int  # of the outputs of all leaf layers

    def __str__(self) -> str:
        rows = [("", "layer", "output", "parameters", "MACs", "bytes")]
        above: list[str] = []  # the names of the enclosing layers
        for line in self.lines:
            del above[line.depth :]
            name = "  " * line.depth + (line.name.removeprefix(above[-1] + "." if above and above[-1] else "") or "·")
            above.append(line.name)
            count = f"{line.parameters:,}" + (" frozen" if line.frozen else "")
            rows.append((name, line.kind, line.output, count, f"{line.macs:,}", f"{line.nbytes:,}"))
        rows.append(("total", "", "", f"{self.parameters:,}", f"{self.macs:,}", f"{self.nbytes:,}"))
        head, *body, total = _columns(rows)
        rule = "-" * len(head)
        trained = f"{self.trained:,} of {self.parameters:,} parameters are trained, {self.state:,} numbers of state"
        return "\n".join([head, rule, *body, rule, total, trained])


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text with words left-aligned and numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]


def summary(module: Module, *examples: Any) -> Summary:
    """The cost of each layer of a network for example inputs: tensors, arrays or shapes (with the batch).

    >>> from weft import nn
    >>> nn.summary(nn.Linear(3, 2), (8, 3)).macs
    48
    """
    traced, calls = traced_calls(module, *examples)
    return _summary(module, calls, [n for n in toposort(traced.outputs) if n.abstract])


def traced_calls(module: Module, *examples: Any) -> tuple[Trace, list[ModuleCall]]:
    """A network as nodes, in evaluation mode, and the calls of its parts in the order in which they begin."""
    inputs = [type_of(e) for e in examples]
    calls = _CallRecorder()
    was = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with listening(calls):
            traced = trace(lambda *xs: module(*xs), inputs, flatten(tuple(0 for _ in inputs))[1])
    finally:
        for part, mode in was.items():
            part.training = mode
    return traced, calls.made


def type_of(example: Any) -> Type:
    if isinstance(example, Type):
        return example
    if isinstance(example, tuple) and all(isinstance(n, int) for n in example):
        return Type(example, DEFAULT_FLOAT)
    if not isinstance(example, Tensor) and not hasattr(example, "__array__"):
        raise UserError("summary", f"tensors, arrays or shapes are required, got {example!r}.")
    return as_tensor(example)._node.type


@dataclass
class ModuleCall:
    """A call of a module: its nodes were created between two times of the CLOCK."""

    module: Module
    depth: int
    begin: int
    end: int = 0
    result: Any = None


class _CallRecorder:
    """Records the calls of a network's modules, in the order in which they begin."""

    def __init__(self) -> None:
        self.made: list[ModuleCall] = []
        self.open: list[ModuleCall] = []

    def begins(self, module: Module, args: tuple[Any, ...]) -> None:
        call = ModuleCall(module, len(self.open), CLOCK.nodes)
        self.made.append(call)
        self.open.append(call)

    def ends(self, module: Module, result: Any) -> None:
        call = self.open.pop()
        call.end, call.result = CLOCK.nodes, result


def _summary(module: Module, calls: list[ModuleCall], nodes: list[Node]) -> Summary:
    names = {part: path for path, part in module.named_modules().items()}
    work = _work_of_calls(calls, nodes)
    own = list(work)
    for i, call in enumerate(calls):  # minus the cost of its children: the following calls, one level deeper
        for j in range(i + 1, len(calls)):
            if calls[j].depth <= call.depth:
                break
            own[i] -= work[j] if calls[j].depth == call.depth + 1 else 0
    lines = [_layer_cost(call, names.get(call.module, "?"), done) for call, done in zip(calls, own, strict=True)]
    tensors = module.named_tensors()
    trained = sum(prod(t.shape) for t in tensors.values() if t.requires_grad)
    state = sum(prod(t.shape) for t in module.named_state().values())
    every = sum(prod(t.shape) for t in tensors.values()) - state
    return Summary(tuple(lines), every, trained, state, macs(nodes), sum(l.nbytes for l in lines if not l.has_parts))


def _work_of_calls(calls: Sequence[ModuleCall], nodes: Sequence[Node]) -> list[int]:
    """The multiply-adds of each call: a difference of two sums over the nodes in the order in which they were created."""
    ordered = sorted(nodes, key=lambda node: node.serial)
    serials = [node.serial for node in ordered]
    sums = list(accumulate(map(_macs, ordered), initial=0))
    return [sums[bisect_right(serials, call.end)] - sums[bisect_right(serials, call.begin)] for call in calls]


def _layer_cost(call: ModuleCall, name: str, work: int) -> LayerCost:
    module, frozen = call.module, call.module._frozen_names()
    outputs = [o for o in flatten(call.result)[0] if isinstance(o, Tensor)]
    counts = {n: prod(t.shape) for n, t in own_tensors(module) if t.requires_grad or n in frozen}
    return LayerCost(
        name,
        type(module).__name__,
        ", ".join(str(o._node.type) for o in outputs),
        sum(counts.values()),
        sum(count for n, count in counts.items() if n in frozen),
        work,
        sum(prod(o.shape) * o.dtype.itemsize for o in outputs),
        call.depth,
        len(module.named_modules()) > 1,
    )
