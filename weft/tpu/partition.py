"""Partitions the nodes of a graph: the array, the activation unit, and the host.

The array computes products of bytes (int8 or uint8) with constant weights. The activation unit computes the ops between their sums and the
next tensor of bytes, provided that every value that leaves it is such a tensor, and that the results of all ops are defined to the bit by IEEE 754
or integer arithmetic. Everything else runs on the host, and is listed: the quantization of float inputs, softmax, averages in float.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import Literal

from ..graph.graph import Graph
from ..graph.node import Node
from ..records import dataclass
from .products import BYTES, ArrayProduct, array_product

ELEMENTWISE = frozenset(
    ("add", "sub", "mul", "div", "neg", "abs", "maximum", "minimum", "round", "floor", "ceil", "trunc", "cast", "where")
    + ("eq", "lt", "le", "and_", "or_", "xor", "not_", "shl", "shr", "sign")
)  # fmt: skip
EXACT_REDUCTIONS = frozenset({"window_max", "max", "min"})  # of any dtype
INTEGER_REDUCTIONS = frozenset({"sum", "window_sum"})  # order-independent for integers
StepKind = Literal["host", "matrix", "vector"]


@dataclass(eq=False)
class PartitionStep:
    """Nodes that one unit computes together, in order."""

    kind: StepKind
    name: str
    nodes: list[Node] = field(default_factory=list)
    product: ArrayProduct | None = None

    @property
    def reads(self) -> list[Node]:
        """Nodes that it reads but does not compute, including constants."""
        own, found = {*self.nodes}, dict[Node, None]()
        if self.product is not None:
            own.add(self.product.node)
            found[self.product.x] = None
        for node in self.nodes:
            found |= dict.fromkeys(i for i in node.inputs if i not in own)
        return list(found)


@dataclass(frozen=True, eq=False)
class Partition:
    """The steps of a graph in an executable order."""

    graph: Graph
    steps: list[PartitionStep]
    step_of: dict[Node, PartitionStep]
    static: dict[Node, bool]  # nodes computed from constants alone
    copied: set[
        Node
    ]  # intermediate sums that the host reads, too: it recomputes them from values that leave the machine

    @cached_property
    def readers(self) -> dict[Node, list[PartitionStep]]:
        """The steps that read each node computed elsewhere."""
        found: dict[Node, list[PartitionStep]] = {}
        for step in self.steps:
            for node in step.reads:
                found.setdefault(node, []).append(step)
        return found

    @property
    def products(self) -> list[ArrayProduct]:
        return [step.product for step in self.steps if step.product is not None]


def partitioned(graph: Graph, constants: frozenset[int]) -> Partition:
    """Partition a graph into steps. `constants`: the indices of inputs that hold weights."""
    static = _static(graph, constants)
    products = {node: found for node in graph.nodes if (found := array_product(node, static)) is not None}
    return _Scheduler(graph, static, products, _on_activation_unit(graph, static, products)).run()


def _static(graph: Graph, constants: frozenset[int]) -> dict[Node, bool]:
    found = {node: number in constants for number, node in enumerate(graph.inputs)}
    for node in graph.nodes:
        if node not in found:
            found[node] = all(found[i] for i in node.inputs) and node.op.kind != "random"
    return found


def _on_activation_unit(graph: Graph, static: dict[Node, bool], products: dict[Node, ArrayProduct]) -> set[Node]:
    """The nodes for it: computed from sums and bytes alone, and needed for bytes that it writes or for the operand of a product."""
    users: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    possible: set[Node] = set()
    for node in graph.nodes:
        for i in node.inputs:
            users[i].append(node)
        enters = all(static[i] or i in possible or i in products or i.dtype in BYTES for i in node.inputs)
        if node.inputs and not static[node] and node not in products and enters and _is_possible(node):
            possible.add(node)
    paths = {node for product in products.values() for node in product.path}
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        is_read = any(user in found for user in users[node])
        # Nodes that only move activations to the array belong to the product.
        if node in possible and (is_read or (node.dtype in BYTES and node not in paths)):
            found.add(node)
    return found


def _is_possible(node: Node) -> bool:
    name = node.op.name
    if name in ELEMENTWISE or name in ("pad", "concat") or node.op.kernel == "view" or name in EXACT_REDUCTIONS:
        return not node.outputs
    return name in INTEGER_REDUCTIONS and not node.dtype.is_float


@dataclass
class _Scheduler:
    graph: Graph
    static: dict[Node, bool]
    products: dict[Node, ArrayProduct]
    on_unit: set[Node]
    steps: list[PartitionStep] = field(default_factory=list)
    number: dict[Node, int] = field(default_factory=dict)  # of the step that computes a node

    def run(self) -> Partition:
        self.steps.append(PartitionStep("host", "inputs"))
        paths = {node for product in self.products.values() for node in product.path} - self.on_unit
        wanted = self._needed_elsewhere(paths)
        for node in self.graph.nodes:
            if self.static[node]:
                continue
            if node in self.graph.inputs:
                self.number[node] = 0
            elif node in self.products:
                self._add_product(node)
            elif node in self.on_unit:
                self._add_to_unit(node)
            elif node not in paths or node in wanted:
                self._add_to_host(node)
        copied = {node for node in self.on_unit if node.dtype not in BYTES}
        for node in self.graph.outputs:
            if node in copied:
                self._add_to_host(node)
        step_of = {node: self.steps[number] for node, number in self.number.items()}
        if any(o in step_of and o not in copied and step_of[o].kind != "host" for o in self.graph.outputs):
            self.steps.append(PartitionStep("host", "results"))
        return Partition(self.graph, self.steps, step_of, self.static, copied)

    def _needed_elsewhere(self, paths: set[Node]) -> set[Node]:
        """Nodes on the path to a product that other nodes read, too: they are also computed separately."""
        found = {o for o in self.graph.outputs if o in paths}
        for node in reversed(self.graph.nodes):
            if node not in self.products and (node not in paths or node in found):
                found |= {i for i in node.inputs if i in paths}
        return found

    def _earliest(self, node: Node) -> int:
        return max((self.number[i] for i in node.inputs if not self.static[i]), default=0)

    def _add(self, step: PartitionStep) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def _add_product(self, node: Node) -> None:
        product = self.products[node]
        self.number[node] = self._add(PartitionStep("matrix", f"{product.name} {self._count('matrix')}", [], product))

    def _add_to_unit(self, node: Node) -> None:
        first = self._earliest(node)
        pools = node.op.name in EXACT_REDUCTIONS | INTEGER_REDUCTIONS
        if pools or self.steps[first].kind == "host":
            first = self._add(PartitionStep("vector", f"{'pool' if pools else 'vector'} {self._count('vector')}"))
        self.number[node] = first
        self.steps[first].nodes.append(node)

    def _add_to_host(self, node: Node) -> None:
        copies, first = self._copies(node)
        found = next((n for n in range(first, len(self.steps)) if self.steps[n].kind == "host"), None)
        if found is None:
            found = self._add(PartitionStep("host", f"host {self._count('host')}"))
        self.number.setdefault(node, found)
        nodes = self.steps[found].nodes
        nodes += [n for n in copies if n not in nodes]
        if node not in self.on_unit or node not in nodes:
            nodes.append(node)

    def _copies(self, node: Node) -> tuple[list[Node], int]:
        """Non-byte nodes of the activation unit that a host node needs, and the last step that it then reads from."""
        copies: dict[Node, None] = {}
        waiting, first = list(node.inputs), 0
        while waiting:
            i = waiting.pop()
            if self.static[i] or i in copies:
                continue
            if i in self.on_unit and i.dtype not in BYTES:
                copies[i] = None
                waiting += i.inputs
            else:
                first = max(first, self.number[i])
        return [n for n in self.graph.nodes if n in copies], first

    def _count(self, kind: StepKind) -> int:
        return sum(step.kind == kind for step in self.steps) + (kind != "host")
