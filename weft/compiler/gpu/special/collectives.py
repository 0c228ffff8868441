"""Collectives on GPUs: what NCCL is asked for, as plain data.

NCCL adds in an order that depends on the number of processes and on how their GPUs are connected. Sums of two floats, and of integers, have one
result whatever the order is: NCCL does them. All others are exchanges, and sums of ours (see passes/collective_sums.py).
"""

from __future__ import annotations

from math import prod
from typing import Any

from ....graph.node import Node, Type
from ....records import dataclass
from ...ir.kernel import Kernel
from ...ir.plan import PlanPhase
from ...ir.program import operand_names
from ..source import KernelSource

SYMBOL = "collective"  # of the only phase of a plan: it is no kernel of ours
FLOATS = frozenset(("float64", "float32", "float16", "bfloat16"))
INTEGERS = frozenset(("int8", "uint8", "int32", "uint32", "int64", "uint64"))
BYTES = "uint8"  # the type of what is only moved


@dataclass(frozen=True)
class CollectiveSpec:
    """One collective of processes along an axis of a mesh, on one tensor or several."""

    name: str
    axis: str
    mesh: tuple[tuple[str, int], ...]
    combine: str  # sum, max or min; "" if data is only moved
    dtype: str
    counts: tuple[int, ...]  # elements of each tensor that one process gives, or of the part for, or from, one process
    detail: int = 0  # the root of a broadcast, or how far a shift goes

    @property
    def size(self) -> int:
        """The number of processes."""
        return dict(self.mesh)[self.axis]

    @property
    def uses_network(self) -> bool:
        """Whether it sends anything: a process knows its own number."""
        return self.name != "axis_index"

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> CollectiveSpec:
        mesh = tuple((str(name), int(size)) for name, size in known["mesh"])
        return cls(**{**known, "mesh": mesh, "counts": tuple(known["counts"])})


def nccl_adds(node: Node) -> bool:
    """Whether NCCL combines the values of processes as weft defines it, to the bit. Its maximum of floats loses nan."""
    axis, mesh = node.get_params("axis", "mesh")
    types = {x.dtype.name for x in node.inputs}
    if len(types) > 1 or types <= INTEGERS:
        return len(types) == 1
    is_sum = bool(node.outputs) or node.param("combine") == "sum"
    return is_sum and dict(mesh)[axis] <= 2 and types <= FLOATS


def spec(kernel: Kernel) -> CollectiveSpec:
    """What a kernel asks NCCL for."""
    node = _anchor(kernel)
    axis, mesh = node.get_params("axis", "mesh")
    combines = bool(node.outputs) or "combine" in node.op.params
    combine = (node.param("combine") if "combine" in node.op.params else "sum") if combines else ""
    detail = node.param("detail") if "detail" in node.op.params else 0
    types = [node.outputs[i] for i in _wanted(kernel)] if node.outputs else [node.type]
    parts = dict(mesh)[axis] if node.op.name in ("all_gather", "all_to_all") else 1
    dtype = types[0].dtype.name if combines else BYTES
    counts = tuple(_elements(t, combines) // parts for t in types)
    name = "all_reduce" if node.outputs else node.op.name
    return CollectiveSpec(name, axis, mesh, combine, dtype, counts, detail)


def _elements(type_: Type, combines: bool) -> int:
    return prod(type_.shape) * (1 if combines else type_.dtype.itemsize)


def phases(kernel: Kernel) -> tuple[PlanPhase, ...]:
    """One call, with sources first and then targets."""
    node = _anchor(kernel)
    names = operand_names(kernel)
    inputs, results = names[: len(node.inputs)], names[len(node.inputs) :]
    if node.outputs:
        inputs, results = (tuple(group[i] for i in _wanted(kernel)) for group in (inputs, results))
    return (PlanPhase(SYMBOL, (*inputs, *results), frozenset(inputs), frozenset(results)),) if results else ()


def scratch_tensors(kernel: Kernel) -> tuple[Node, ...]:
    """NCCL has memory of its own."""
    return ()


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    raise AssertionError("a collective is no kernel of ours")


def _anchor(kernel: Kernel) -> Node:
    assert kernel.anchor is not None
    return kernel.anchor


def _wanted(kernel: Kernel) -> list[int]:
    """The numbers of the tensors whose sums are read."""
    return sorted(kernel.results)
