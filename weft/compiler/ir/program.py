"""A program ready for code generation: calls in order, each with the memory that it reads and writes.

A call is one kernel's loops, or one phase of a library plan, executed by all threads together. Barriers follow from memory alone:
there is one before a call that reads or writes what a call since the last barrier has written, or writes what it has read.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ...graph.graph import Graph
from ...graph.node import Node
from ...records import dataclass
from .frame import FRAME_RESERVED as FRAME_RESERVED
from .kernel import Kernel, View
from .plan import Plan
from .storage import MemoryPlan, Slot


@dataclass(eq=False)
class Call:
    """A piece of work that all threads execute together."""

    kernel: Kernel
    kind: str  # "loops", "plan", "copy", "control"
    reads: list[Slot]
    writes: list[Slot]
    barrier: bool = False  # before it
    once: bool = False  # it is loop-invariant, and executed in the first iteration only
    beside: bool = (
        False  # it runs concurrently with the following calls, until one of them needs its results or its memory
    )
    phase: Any = None  # of a plan
    operands: dict[str, Slot] = field(default_factory=dict)


@dataclass(frozen=True)
class Fused:
    """A program as kernels, in an order in which they can run."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    stored: frozenset[Node]


@dataclass(eq=False)
class KernelProgram:
    """Everything that code generation needs."""

    graph: Graph
    fused: Fused
    calls: list[Call]
    memory: MemoryPlan
    plans: dict[Kernel, Plan]
    bodies: dict[Kernel, tuple[KernelProgram, ...]]  # of control flow
    updates: dict[int, int]  # outputs that take the memory of an input
    recomputed: frozenset[Kernel] = frozenset()  # kernels that recompute a value, so that it need not be kept
    shared_bytes: int = 0  # of a kernel, on a GPU

    @property
    def frame_size(self) -> int:
        """The frame: arena, status, persistent memory, inputs, outputs."""
        return FRAME_RESERVED + len(self.graph.inputs) + len(self.graph.outputs)

    @property
    def kernels(self) -> list[Kernel]:
        """In the order in which they run; kernels in bodies of control flow are not included."""
        return list(dict.fromkeys(c.kernel for c in self.calls if c.kind != "copy"))

    def viewed(self, view: View) -> Slot:
        """The memory of a view, from its first element."""
        base, offset = self.memory.slots[view.base], view.offset * view.base.dtype.itemsize
        return Slot(base.base, base.offset + offset, base.nbytes - offset)

    @property
    def launches(self) -> int:
        """The number of groups between barriers or library calls: neighbouring loops without a barrier are one."""
        count, together = 0, False
        for call in self.calls:
            if not (call.kind == "loops" and together and not call.barrier):
                count += 1
            together = call.kind == "loops"
        return count


def operand_names(kernel: Kernel) -> tuple[str, ...]:
    """The names by which a plan refers to the inputs of an anchor and, last, to its result or results: "y", or "y0", "y1", ..."""
    anchor = kernel.anchor
    assert anchor is not None
    results = [f"y{i}" for i in range(len(anchor.outputs))] or ["y"]
    return anchor.op.operands or (*(f"x{i}" for i in range(len(anchor.inputs))), *results)


def result_nodes(kernel: Kernel) -> dict[str, Node]:
    """The results of an anchor that have memory, by the names that its plan calls them."""
    assert kernel.anchor is not None
    if not kernel.anchor.outputs:
        return {operand_names(kernel)[-1]: kernel.anchor}
    return {f"y{i}": node for i, node in kernel.results.items()}


def operand_slots(kernel: Kernel, memory: MemoryPlan) -> dict[str, Slot]:
    """The memory behind each name that a plan's phases use."""
    names = operand_names(kernel)
    slots = {}
    for name, found in zip(names, kernel.views, strict=False):
        base = memory.slots[found.base]
        offset = found.offset * found.base.dtype.itemsize
        slots[name] = Slot(base.base, base.offset + offset, base.nbytes - offset)
    slots |= {name: memory.slots[node] for name, node in result_nodes(kernel).items()}
    if kernel in memory.scratch:
        slots["work"] = memory.scratch[kernel]
    if kernel in memory.packed:
        slots["packed"] = memory.packed[kernel]
    return slots
