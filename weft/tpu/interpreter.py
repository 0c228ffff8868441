"""Computes the values of a partitioned graph: products in exact integers, activations by the definitions of their ops, host steps in native code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.graph import Graph, substitute
from ..graph.node import OPS, Node, Type, make, placeholder
from ..options import CompileOptions
from ..runtime import native
from ..runtime.reference import compute
from ..runtime.team import address_of
from .partition import Partition, PartitionStep
from .stages import MULTIPLY


class Interpreter:
    """The interpreter; see the top of this file."""

    def __init__(self, parts: Partition, options: CompileOptions) -> None:
        self.parts, self.options = parts, options
        self.host = {
            step: _HostPart(step, parts, options) for step in parts.steps if step.kind == "host" and step.nodes
        }
        self.static = self._static_nodes()
        self.last_reads = self._last_reads()

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        known: dict[Node, Any] = dict(zip(self.parts.graph.inputs, arrays, strict=True))
        with np.errstate(all="ignore"):
            for node in self.static:
                known[node] = compute(node, [known[i] for i in node.inputs])
            for step in self.parts.steps:
                self._run_step(step, known)
                for node in self.last_reads[step]:
                    known.pop(node, None)
        return [known[node] for node in self.parts.graph.outputs]

    def _run_step(self, step: PartitionStep, known: dict[Node, Any]) -> None:
        if step in self.host:
            self.host[step].run(known)
            return
        if step.product is not None:
            p = step.product
            moved = {p.x: known[p.x]}
            for node in p.path:
                moved[node] = compute(node, [moved[node.inputs[0]]])
            known[p.node] = p.sums(moved[p.operand], known[p.weight])
        for node in step.nodes:
            known[node] = compute(node, [known[i] for i in node.inputs])

    def _static_nodes(self) -> list[Node]:
        """Constants read by products and activations, and the nodes that they are computed from."""
        wanted = {step.product.weight for step in self.parts.steps if step.product is not None}
        wanted |= {i for step in self.parts.steps if step.kind != "host" for n in step.nodes for i in n.inputs}
        wanted |= {*self.parts.graph.outputs}
        order = []
        for node in reversed(self.parts.graph.nodes):
            if node in wanted and self.parts.static[node] and node not in self.parts.graph.inputs:
                order.append(node)
                wanted |= {*node.inputs}
        return order[::-1]

    def _last_reads(self) -> dict[PartitionStep, list[Node]]:
        """The nodes that no later step reads, by step."""
        last: dict[Node, PartitionStep] = {}
        for step in self.parts.steps:
            last |= dict.fromkeys([*step.reads, *step.nodes], step)
            if step.product is not None:
                last[step.product.node] = step
        kept = {*self.parts.graph.inputs, *self.parts.graph.outputs, *self.static}
        found: dict[PartitionStep, list[Node]] = {step: [] for step in self.parts.steps}
        for node, step in last.items():
            if node not in kept:
                found[step].append(node)
        return found


class _HostPart:
    """A step of the host, compiled to native code."""

    def __init__(self, step: PartitionStep, parts: Partition, options: CompileOptions) -> None:
        self.outputs = [n for n in step.nodes if _is_used_outside(n, step, parts)]
        inputs: dict[Node, None] = {}
        for node in step.reads:
            inputs |= dict.fromkeys(_roots(node, parts))
        self.inputs = {node: _axes_in_memory(node, parts) for node in inputs}
        graph = _reading(self.inputs, self.outputs)
        self.native = native.NativeExecutable(graph, {}, native.fitting(graph, options))

    def run(self, known: dict[Node, Any]) -> None:
        arrays = [native.contiguous(np.transpose(known[node], axes)) for node, axes in self.inputs.items()]
        place = address_of()
        known |= dict(zip(self.outputs, self.native.call([place(array) for array in arrays]), strict=True))


def _axes_in_memory(node: Node, parts: Partition) -> tuple[int, ...]:
    """The order of a node's axes in memory: the machine writes channels last. Float sums depend on that order, which the CPU's convolutions share."""
    axes, step = range(len(node.shape)), parts.step_of.get(node)
    if (
        step is None
        or step.kind == "host"
        or len(axes) < 3
        or (step.product is not None and step.product.kind == MULTIPLY)
    ):
        return tuple(axes)
    return (0, *axes[2:], 1)


def _reading(inputs: Mapping[Node, tuple[int, ...]], outputs: Sequence[Node]) -> Graph:
    """The graph that computes `outputs` from inputs whose axes are in the given order in memory."""
    given = [
        placeholder(i, Type(tuple(n.shape[a] for a in axes), n.dtype)) for i, (n, axes) in enumerate(inputs.items())
    ]
    moved = {
        node: found
        if axes == tuple(range(len(axes)))
        else make(OPS["permute"], (found,), (tuple(np.argsort(axes).tolist()),))
        for found, (node, axes) in zip(given, inputs.items(), strict=True)
    }
    return Graph(tuple(given), substitute(outputs, moved))


def _roots(node: Node, parts: Partition) -> list[Node]:
    """The values that a node outside a step is computed from: itself, or the inputs of a constant."""
    if not parts.static[node]:
        return [node]
    found, waiting = [], [node]
    while waiting:
        node = waiting.pop()
        if node in parts.graph.inputs:
            found.append(node)
        waiting += node.inputs
    return found


def _is_used_outside(node: Node, step: PartitionStep, parts: Partition) -> bool:
    return node in parts.graph.outputs or any(other is not step for other in parts.readers.get(node, ()))
