"""Compiles a graph to a program of the machine: the steps of the partition as stages, with the values passed between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from math import prod

from ..graph.graph import Graph
from ..graph.node import Node
from ..records import dataclass
from .instructions import TpuProgram
from .lowering import lowered
from .machine import TpuMachine
from .partition import EXACT_REDUCTIONS, INTEGER_REDUCTIONS, Partition, PartitionStep, partitioned
from .stages import HostStage, MatrixStage, Stage, TpuValue, VectorStage


def compiled_program(graph: Graph, constants: frozenset[int], machine: TpuMachine) -> tuple[Partition, TpuProgram]:
    """The partition of a graph and its program. `constants`: the indices of inputs that hold weights."""
    parts = partitioned(graph, constants)
    stages = _Stages(parts).made()
    host = [f"{stage.name}: {stage.what}" for stage in stages if isinstance(stage, HostStage) and stage.what]
    return parts, lowered(stages, machine, host)


@dataclass
class _Stages:
    parts: Partition
    values: dict[Node, TpuValue] = field(default_factory=dict)

    def made(self) -> list[Stage]:
        crossing = self._crossing()
        return [self._stage(step, crossing) for step in self.parts.steps]

    def _crossing(self) -> dict[PartitionStep, tuple[dict[Node, None], dict[Node, None]]]:
        """For each step, the stored nodes that it reads from the unified buffer, and those that it writes there."""
        found: dict[PartitionStep, tuple[dict[Node, None], dict[Node, None]]] = {
            step: ({}, {}) for step in self.parts.steps
        }
        for step in self.parts.steps:
            for node in step.reads:
                self._note(found, step, node)
        last = self.parts.steps[-1]
        for node in self.parts.graph.outputs:
            if node not in self.parts.copied:
                self._note(found, last, node)
        return found

    def _note(
        self, found: dict[PartitionStep, tuple[dict[Node, None], dict[Node, None]]], step: PartitionStep, node: Node
    ) -> None:
        if self.parts.static.get(node, False):
            return
        node = self._stored(node)
        made_by = self.parts.step_of[node]
        if made_by is not step and (made_by.kind != "host" or step.kind != "host"):
            found[step][0][node] = None
            found[made_by][1][node] = None

    def _stored(self, node: Node) -> Node:
        """The node whose memory another node reads in a different order."""
        while node.op.kernel == "view" and node.inputs and not self.parts.static[node.inputs[0]]:
            if self.parts.step_of[node].kind == "host" or node.inputs[0].dtype is not node.dtype:
                break
            node = node.inputs[0]
        return node

    def _value(self, node: Node) -> TpuValue:
        if node not in self.values:
            step = self.parts.step_of[node]
            own = step.name.replace(" ", "") if step.nodes or step.product else "input"
            taken = sum(value.name.partition(".")[0] == own for value in self.values.values())
            name = f"{own}.{taken}" if taken else own
            self.values[node] = TpuValue(name, prod(node.shape) * node.dtype.itemsize)
        return self.values[node]

    def _stage(
        self, step: PartitionStep, crossing: dict[PartitionStep, tuple[dict[Node, None], dict[Node, None]]]
    ) -> Stage:
        reads, writes = (tuple(map(self._value, nodes)) for nodes in crossing[step])
        if step.kind == "host":
            return HostStage(step.name, reads, writes, _host_work(step, self.parts))
        if step.product is not None:
            p = step.product
            return MatrixStage(
                step.name, reads, writes, p.rows, p.inner, p.columns, p.groups, p.kind, _function(step, self.parts)
            )
        elements = 0 if _only_moves(step) else sum(prod(node.shape) for node in crossing[step][0])
        return VectorStage(step.name, reads, writes, elements, _function(step, self.parts))


def _only_moves(step: PartitionStep) -> bool:
    return all(node.op.kind == "move" for node in step.nodes)


def _function(step: PartitionStep, parts: Partition) -> str:
    """A short name of the function of the activation unit."""
    names = {node.op.name for node in step.nodes}
    if not names:
        return "none (sums of 32 bits)"
    if step.product is None and (pools := names & (EXACT_REDUCTIONS | INTEGER_REDUCTIONS)):
        return f"{min(pools).removeprefix('window_')} pool"
    adds = any(
        node.op.name == "add" and not any(parts.static[i] for i in node.inputs) for node in step.nodes
    )  # fmt: skip
    return "add, requantize" if adds else "requantize"


def _host_work(step: PartitionStep, parts: Partition) -> str:
    """The operations and their results: products first, since one expects them on the array."""
    names = Counter(node.op.name for node in step.nodes if node.op.kind != "move")
    products = [n for n in step.nodes if n.op.kernel in ("contraction", "convolution")]
    texts = [f"{n.op.name} {_why_not(n, parts)}" for n in products]
    rest = ", ".join(name for name in names if name not in {n.op.name for n in products})
    return "; ".join([*texts, *([rest] if rest else [])])


def _why_not(node: Node, parts: Partition) -> str:
    if node.dtype.is_float:
        return f"of {node.dtype.name} (the array multiplies int8)"
    if all(not parts.static[i] for i in node.inputs):
        return "of two activations (weights must be constants)"
    widths = ", ".join(dict.fromkeys(_before_casts(i).dtype.name for i in node.inputs))
    return f"of {widths} (the array multiplies int8, with weights that all rows share)"


def _before_casts(node: Node) -> Node:
    while node.op.name == "cast" or (node.op.kernel == "view" and node.inputs):
        node = node.inputs[0]
    return node
