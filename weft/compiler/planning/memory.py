"""Memory: where every stored value lives.

Inputs, results and state have memory of their own, given with every call. All else shares one arena: a value is there from
the kernel that writes it to the last one that reads it, and its place is taken again afterwards. An elementwise kernel may
write over an input that it is the last to read.
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
    lasting: Collection[Kernel] = (),
    to_the_end: Collection[Node] = (),
    hidden: Collection[Kernel] = (),
) -> MemoryPlan:
    """Places for all nodes that the kernels write. `fixed` have theirs; one that `shares` takes the place of another.

    What `lasting` kernels write, and what is `packed`, is kept from run to run; some nodes are read once more at the end.
    `hidden`: kernels whose anchor's own result is never as a whole in memory; its place is their scratch, or registers.
    """
    birth, death = _lifetimes(kernels, shares, hidden)
    slots: dict[Node, Slot] = dict(fixed)
    kept = Arena()

    def keep(size: int) -> Slot:
        return Slot(KEPT, kept.take(size), size)

    for kernel in kernels:
        if kernel in lasting:
            slots |= {n: keep(nbytes(n)) for n in kernel.outputs if n not in slots}
    prepared = {k: keep(size) for k, size in packed.items() if size}
    dying: dict[int, list[Node]] = defaultdict(list)
    for node, last in death.items():
        dying[len(kernels) if node in to_the_end else last].append(node)
    born: dict[int, list[Node]] = defaultdict(list)
    for node, first in birth.items():
        born[first].append(node)
    rooms = _Rooms(slots, shares, len(kernels))
    for i, kernel in enumerate(kernels):
        rooms.step(i, kernel, born[i], dying[i], scratch.get(kernel, 0))
    offsets, size = place(rooms.all)
    placed = {r: Slot(ARENA, offset, r.nbytes) for r, offset in zip(rooms.all, offsets, strict=True)}
    slots |= {node: placed[room] for node, room in rooms.of.items()}
    spaces = {kernel: placed[room] for kernel, room in rooms.scratch.items()}
    for new in sorted((n for n in shares if n in birth and n not in slots), key=birth.__getitem__):
        slots[new] = slots[shares[new]]
    slots |= {k.anchor: spaces.get(k, NOWHERE) for k in hidden if k.anchor is not None}
    return MemoryPlan(slots, spaces, prepared, size, kept.size, kept.size + most(rooms.all))


class _Rooms:
    """The rooms of the arena, and who lives in them when."""

    def __init__(self, slots: Mapping[Node, Slot], shares: Mapping[Node, Node], moments: int) -> None:
        self.slots, self.shares, self.moments = slots, shares, moments  # who has a place already, or takes another's
        self.of: dict[Node, Interval] = {}
        self.scratch: dict[Kernel, Interval] = {}
        self.all: list[Interval] = []

    def step(self, i: int, kernel: Kernel, born: list[Node], dying: list[Node], scratch: int) -> None:
        reusable = _overwritable(kernel, [n for n in dying if n in self.of])
        for node in (n for n in born if n not in self.slots and n not in self.shares):
            place = _position(kernel, node) if reusable else None
            old = next((o for o in reusable if nbytes(o) == nbytes(node) and reusable[o] == place), None)
            if old is not None:
                del reusable[old]
                dying.remove(old)
                self.of[node] = self.of[old]
            else:
                self.of[node] = self._new(nbytes(node), i, self.moments)
        if scratch:
            self.scratch[kernel] = self._new(scratch, i, i)
        for node in dying:
            if node in self.of:
                self.of[node].end = i

    def _new(self, size: int, begin: int, end: int) -> Interval:
        self.all.append(Interval(size, begin, end))
        return self.all[-1]


def _lifetimes(
    kernels: Sequence[Kernel], shares: Mapping[Node, Node], hidden: Collection[Kernel]
) -> tuple[dict[Node, int], dict[Node, int]]:
    """When each node is written, and read for the last time; one whose place is shared lives as long as both."""
    birth: dict[Node, int] = {}
    death: dict[Node, int] = {}
    for i, kernel in enumerate(kernels):
        own = kernel.anchor is not None and not kernel.anchor.outputs and kernel not in hidden
        written = [*kernel.outputs, *([kernel.anchor] if own and kernel.anchor is not None else [])]
        for node in written:
            birth.setdefault(node, i)
            death[node] = max(death.get(node, i), i)
        for node in kernel.reads:
            death[node] = i
    for new, old in shares.items():
        if new in death:
            death[old] = max(death.get(old, 0), death[new])
    return birth, death


def _overwritable(kernel: Kernel, candidates: list[Node]) -> dict[Node, object]:
    """Inputs that are read at one place only, where an output may be written: the place."""
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
