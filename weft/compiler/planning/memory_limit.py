"""A program within a memory limit: what is kept and what is computed again, and the error if even that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ...errors import UserError
from ...graph.graph import Graph
from ...graph.node import Node
from ...records import dataclass
from ..ir.kernel import Kernel
from ..ir.plan import Plan
from ..ir.program import KernelProgram
from ..ir.storage import MemoryPlan, Slot, nbytes
from .arena import Interval
from .cost_model import kernel_cost
from .memory import lifetimes, plan
from .overlap import in_flight
from .rematerialize import Occurrences, Rules, rematerialize
from .schedule import KernelSchedule


@dataclass(frozen=True)
class ArenaLayout:
    """Everything beside the order of the kernels that decides where values are; see `memory.plan`."""

    fixed: Mapping[Node, Slot]
    shares: Mapping[Node, Node]
    scratch: Callable[[Kernel], int]
    packed: Mapping[Kernel, int]
    persistent: Collection[Kernel]
    outlive: Collection[Node]
    streamed: Collection[Kernel]
    beside: Collection[Kernel]

    def plan(self, found: Occurrences) -> MemoryPlan:
        """The memory of every value."""
        made = plan(
            found.kernels, self.fixed, self.shares, self._scratch(found), self.packed, self.persistent, self.outlive,
            self._streamed(found), in_flight(found.kernels, self.beside), found.again,
        )  # fmt: skip
        packed = {k: made.packed[original] for k, original in found.again.items() if original in made.packed}
        return replace(made, packed={**made.packed, **packed}) if packed else made

    def buffers(self, found: Occurrences) -> Sequence[Interval]:
        """The buffers of the arena, without offsets."""
        flights, prepared = in_flight(found.kernels, self.beside), {n for k in self.persistent for n in k.outputs}
        return lifetimes(
            found.kernels, {*self.fixed, *prepared}, self.shares, self._scratch(found), self.outlive, self._streamed(found), flights,
            found.again,
        ).all  # fmt: skip

    def _scratch(self, found: Occurrences) -> dict[Kernel, int]:
        return {k: self.scratch(found.again.get(k, k)) for k in found.kernels}

    def _streamed(self, found: Occurrences) -> Collection[Kernel]:
        return {*self.streamed, *(k for k, original in found.again.items() if original in self.streamed)}


def within(
    order: KernelSchedule,
    layout: ArenaLayout,
    limit: int,
    plans: Mapping[Kernel, Plan],
    bodies: Mapping[Kernel, Sequence[KernelProgram]],
    flops_per_byte: float,
    by_graph: Callable[[Kernel, Plan | None], bool],
) -> Occurrences:
    """The kernels with as much computed again as it takes for an arena of `limit` bytes; see rematerialize.py."""

    def cost(kernel: Kernel) -> float:
        done = kernel_cost(kernel, plans.get(kernel), bodies.get(kernel, ()))
        return max(done.nbytes, done.flops / flops_per_byte)

    prepared = {n for k in layout.persistent for n in k.outputs}
    shared = {*order.written_over, *order.written_over.values()}
    rules = Rules(
        {*layout.fixed, *layout.outlive}, shared, prepared, cost, lambda kernel: by_graph(kernel, plans.get(kernel))
    )
    return rematerialize(order, rules, limit, layout.buffers, lambda found: layout.plan(found).arena)


def outside_bytes(graph: Graph, updates: Mapping[int, int]) -> int:
    """The bytes of a program's arguments, state and results."""
    results = sum(nbytes(node) for number, node in enumerate(graph.outputs) if number not in updates)
    return sum(map(nbytes, graph.inputs)) + results


def check(limit: int, outside: int, memory: MemoryPlan) -> None:
    """Raise an error if a program takes more than its limit although everything possible is computed again."""
    needed = outside + memory.arena + memory.kept
    if needed <= limit:
        return
    if outside >= limit:
        what = f"its arguments, state and results alone take {_size(outside)}"
        advice = "Raise the limit, or use a smaller network or an optimizer with less state."
    else:
        what = (
            f"it takes {_size(needed)} even if everything is computed again that can be: {_size(outside)} for arguments, state and "
            f"results, {_size(needed - outside)} while it runs"
        )
        advice = "Use a smaller batch, or raise the limit."
    raise UserError("memory", f"the program does not fit into {_size(limit)}: {what}. {advice}")


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
