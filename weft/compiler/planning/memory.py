"""Memory planning: where every stored value is.

Inputs, results and state have their own memory, passed with every call. All other values share one arena: a value is alive from
the kernel that writes it to the last one that reads it, and its memory is reused afterwards. An elementwise kernel may
overwrite an input that it is the last to read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from ...graph.node import Node
from ..ir.index import linear
from ..ir.kernel import Kernel
from ..ir.storage import ARENA, KEPT, NOWHERE, MemoryPlan, Slot, nbytes
from .arena import Arena, Interval, most, place


def plan(
    kernels: Sequence[Kernel],
    fixed: Mapping[Node, Slot],
    shares: Mapping[Node, Node],
    scratch: Mapping[Kernel, int],
    packed: Mapping[Kernel, int],
    persistent: Collection[Kernel] = (),
    outlive: Collection[Node] = (),
    streamed: Collection[Kernel] = (),
    in_flight: Mapping[Kernel, int] | None = None,
) -> MemoryPlan:
    """Memory for all nodes that the kernels write. `fixed`: those that have it already. `shares`: those that use another's.

    The results of `persistent` kernels, and `packed` operands, are kept from run to run. `outlive`: nodes that are read once more
    at the end. `streamed`: kernels whose anchor's own result is never in memory as a whole, only in their scratch or in registers.
    `in_flight`: kernels that run beside others, and the number of the first one that waits for them: until then they use their memory.
    """
    flights = in_flight or {}
    birth, death = _lifetimes(kernels, shares, streamed, flights)
    slots: dict[Node, Slot] = dict(fixed)
    kept = Arena()

    def keep(size: int) -> Slot:
        return Slot(KEPT, kept.allocate(size), size)

    for kernel in kernels:
        if kernel in persistent:
            slots |= {n: keep(nbytes(n)) for n in kernel.outputs if n not in slots}
    prepared = {k: keep(size) for k, size in packed.items() if size}
    dying: dict[int, list[Node]] = defaultdict(list)
    for node, last in death.items():
        dying[len(kernels) if node in outlive else last].append(node)
    born: dict[int, list[Node]] = defaultdict(list)
    for node, first in birth.items():
        born[first].append(node)
    buffers = _Lifetimes(slots, shares, len(kernels))
    for i, kernel in enumerate(kernels):
        buffers.step(i, kernel, born[i], dying[i], scratch.get(kernel, 0), flights.get(kernel, i))
    offsets, size = place(buffers.all)
    placed = {r: Slot(ARENA, offset, r.nbytes) for r, offset in zip(buffers.all, offsets, strict=True)}
    slots |= {node: placed[buffer] for node, buffer in buffers.of.items()}
    spaces = {kernel: placed[buffer] for kernel, buffer in buffers.scratch.items()}
    for new in sorted((n for n in shares if n in birth and n not in slots), key=birth.__getitem__):
        slots[new] = slots[shares[new]]
    slots |= {k.anchor: spaces.get(k, NOWHERE) for k in streamed if k.anchor is not None}
    return MemoryPlan(slots, spaces, prepared, size, kept.size, kept.size + most(buffers.all))


class _Lifetimes:
    """The buffers of the arena, and the nodes that use them."""

    def __init__(self, slots: Mapping[Node, Slot], shares: Mapping[Node, Node], steps: int) -> None:
        self.slots, self.shares, self.steps = slots, shares, steps  # nodes that have memory already, or use another's
        self.of: dict[Node, Interval] = {}
        self.scratch: dict[Kernel, Interval] = {}
        self.all: list[Interval] = []

    def step(self, i: int, kernel: Kernel, born: list[Node], dying: list[Node], scratch: int, end: int) -> None:
        reusable = _overwritable(kernel, [n for n in dying if n in self.of])
        for node in (n for n in born if n not in self.slots and n not in self.shares):
            place = _position(kernel, node) if reusable else None
            old = next((o for o in reusable if nbytes(o) == nbytes(node) and reusable[o] == place), None)
            if old is not None:
                del reusable[old]
                dying.remove(old)
                self.of[node] = self.of[old]
            else:
                self.of[node] = self._new(nbytes(node), i, self.steps)
        if scratch:
            self.scratch[kernel] = self._new(scratch, i, end)
        for node in dying:
            if node in self.of:
                self.of[node].end = i

    def _new(self, size: int, begin: int, end: int) -> Interval:
        self.all.append(Interval(size, begin, end))
        return self.all[-1]


def _lifetimes(
    kernels: Sequence[Kernel],
    shares: Mapping[Node, Node],
    streamed: Collection[Kernel],
    in_flight: Mapping[Kernel, int],
) -> tuple[dict[Node, int], dict[Node, int]]:
    """When each node is written, and when it is read for the last time; shared memory is alive for both."""
    birth: dict[Node, int] = {}
    death: dict[Node, int] = {}
    for i, kernel in enumerate(kernels):
        own = kernel.anchor is not None and not kernel.anchor.outputs and kernel not in streamed
        written = [*kernel.outputs, *([kernel.anchor] if own and kernel.anchor is not None else [])]
        for node in written:
            birth.setdefault(node, i)
            death[node] = max(death.get(node, i), in_flight.get(kernel, i))
        for node in kernel.reads:
            death[node] = max(death.get(node, i), in_flight.get(kernel, i))
    for new, old in shares.items():
        if new in death:
            death[old] = max(death.get(old, 0), death[new])
    return birth, death


def _overwritable(kernel: Kernel, candidates: list[Node]) -> dict[Node, object]:
    """Inputs that are read at one position only, and that position: an output may be written there."""
    if kernel.nest is None or kernel.anchor is not None or len(kernel.nest.phases) != 1:
        return {}
    found: dict[Node, object] = {}
    for node in candidates:
        positions = {s.indices[0] for b in kernel.bodies for s in b.steps if s.kind == "load" and s.node is node}
        if len(positions) == 1 and node in kernel.reads:
            found[node] = (positions.pop(), node.dtype.itemsize)
    return found


def _position(kernel: Kernel, node: Node) -> object:
    assert kernel.nest is not None
    for store in kernel.nest.phases[0].stores:
        if store.node is node:
            return linear(store.place, node.shape), node.dtype.itemsize
    return None
