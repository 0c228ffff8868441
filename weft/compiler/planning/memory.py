"""Memory planning: where every stored value is.

Inputs, results and state have their own memory, passed with every call. All other values share one arena: a value is alive from
the kernel that writes it to the last one that reads it, and its memory is reused afterwards. An elementwise kernel may
overwrite an input that it is the last to read. A recomputed value (see rematerialize.py) has the same place each time, and is not live in
between.
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
    again: Mapping[Kernel, Kernel] | None = None,
) -> MemoryPlan:
    """Memory for all nodes that the kernels write. `fixed`: those that have it already. `shares`: those that use another's.

    The results of `persistent` kernels, and `packed` operands, are kept from run to run. `outlive`: nodes that are read once more
    at the end. `streamed`: kernels whose anchor's own result is never in memory as a whole, only in their scratch or in registers.
    `in_flight`: kernels that run beside others, and the number of the first one that waits for them: until then they use their memory.
    `again`: kernels that repeat an earlier one, which use the same scratch memory.
    """
    slots: dict[Node, Slot] = dict(fixed)
    kept = Arena()

    def keep(size: int) -> Slot:
        return Slot(KEPT, kept.allocate(size), size)

    for kernel in kernels:
        if kernel in persistent:
            slots |= {n: keep(nbytes(n)) for n in kernel.outputs if n not in slots}
    prepared = {k: keep(size) for k, size in packed.items() if size}
    buffers = lifetimes(kernels, slots, shares, scratch, outlive, streamed, in_flight, again)
    offsets, size = place(buffers.all)
    placed = {r: Slot(ARENA, offset, r.nbytes) for r, offset in zip(buffers.all, offsets, strict=True)}
    slots |= {node: placed[buffer] for node, buffer in buffers.of.items()}
    spaces = {kernel: placed[buffer] for kernel, buffer in buffers.scratch.items()}
    for new in sorted((n for n in shares if n in buffers.first and n not in slots), key=buffers.first.__getitem__):
        slots[new] = slots[shares[new]]
    slots |= {k.anchor: spaces.get(k, NOWHERE) for k in streamed if k.anchor is not None}
    return MemoryPlan(slots, spaces, prepared, size, kept.size, kept.size + most(buffers.all))


def lifetimes(
    kernels: Sequence[Kernel],
    slots: Collection[Node],
    shares: Mapping[Node, Node],
    scratch: Mapping[Kernel, int],
    outlive: Collection[Node] = (),
    streamed: Collection[Kernel] = (),
    in_flight: Mapping[Kernel, int] | None = None,
    again: Mapping[Kernel, Kernel] | None = None,
) -> Buffers:
    """The buffers that the arena must hold; see `plan`. `slots`: nodes that have memory elsewhere."""
    flights = in_flight or {}
    spans = _spans(kernels, shares, streamed, flights)
    born: dict[int, list[Node]] = defaultdict(list)
    dying: dict[int, list[Node]] = defaultdict(list)
    for node, alive in spans.items():
        if node in outlive:
            alive[-1][1] = len(kernels)
        for begin, end in alive:
            born[begin].append(node)
            dying[end].append(node)
    buffers = Buffers(slots, shares, {node: alive[-1][1] for node, alive in spans.items()}, len(kernels))
    buffers.first = {node: alive[0][0] for node, alive in spans.items()}
    for i, kernel in enumerate(kernels):
        buffers.step(i, kernel, born[i], dying[i])
        if scratch.get(kernel):
            buffers.add_scratch(kernel, (again or {}).get(kernel), scratch[kernel], i, flights.get(kernel, i))
    return buffers


class Buffers:
    """The buffers of the arena, and the nodes that use them."""

    def __init__(
        self, slots: Collection[Node], shares: Mapping[Node, Node], last: Mapping[Node, int], steps: int
    ) -> None:
        self.slots, self.shares, self.steps = slots, shares, steps  # nodes that have memory already, or use another's
        self.last = last  # the time from which a node is not alive any more, not even again
        self.first: dict[Node, int] = {}  # the time at which each node is first written
        self.of: dict[Node, Interval] = {}
        self.scratch: dict[Kernel, Interval] = {}
        self.all: list[Interval] = []

    def step(self, i: int, kernel: Kernel, born: list[Node], dying: list[Node]) -> None:
        reusable = _overwritable(kernel, [n for n in dying if n in self.of and self.last[n] == i])
        for node in (n for n in born if n not in self.slots and n not in self.shares):
            if node in self.of:
                self.of[node].revive(i, self.steps)
                continue
            place = _position(kernel, node) if reusable else None
            old = next((o for o in reusable if nbytes(o) == nbytes(node) and reusable[o] == place), None)
            if old is not None:
                del reusable[old]
                dying.remove(old)
                self.of[node] = self.of[old]
            else:
                self.of[node] = self._new(nbytes(node), i, self.steps)
        for node in dying:
            if node in self.of:
                self.of[node].end = i

    def add_scratch(self, kernel: Kernel, original: Kernel | None, size: int, begin: int, end: int) -> None:
        """Let a kernel have scratch memory; one that repeats another uses that of the original."""
        if original is None:
            self.scratch[kernel] = self._new(size, begin, end)
        else:
            self.scratch[kernel] = self.scratch[original]
            self.scratch[kernel].revive(begin, end)

    def _new(self, size: int, begin: int, end: int) -> Interval:
        self.all.append(Interval(size, begin, end))
        return self.all[-1]


def _spans(
    kernels: Sequence[Kernel],
    shares: Mapping[Node, Node],
    streamed: Collection[Kernel],
    in_flight: Mapping[Kernel, int],
) -> dict[Node, list[list[int]]]:
    """When each node is alive: from a kernel that writes it to the last one that reads it before it is written again.

    Shared memory is alive for both nodes.
    """
    found: dict[Node, list[list[int]]] = {}
    for i, kernel in enumerate(kernels):
        end = in_flight.get(kernel, i)
        for node in kernel.reads:
            if node in found:
                found[node][-1][1] = max(found[node][-1][1], end)
        own = kernel.anchor is not None and not kernel.anchor.outputs and kernel not in streamed
        for node in [*kernel.outputs, *([kernel.anchor] if own and kernel.anchor is not None else [])]:
            spans = found.setdefault(node, [])
            if spans and i <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], end)
            else:
                spans.append([i, end])
    for new, old in shares.items():
        for begin, end in found.get(new, ()):
            together = [span for span in found.get(old, ()) if span[0] <= begin]
            if together:
                together[-1][1] = max(together[-1][1], end)
    return found


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
