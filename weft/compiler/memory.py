"""Memory: where every stored value lives.

Inputs, results and state have memory of their own, given with every call. All else shares one arena: a value is there from
the kernel that writes it to the last one that reads it, and its place is taken again afterwards. An elementwise kernel may
write over an input that it is the last to read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..graph.node import Node
from .index import linear
from .kernel import Kernel

ALIGN = 64
ARENA, KEPT = 0, 2  # the frame's entries for the arena, and for what is kept from run to run


@dataclass(frozen=True)
class Slot:
    """Memory: an entry of the frame (a pointer), and where in it."""

    base: int
    offset: int
    nbytes: int

    def overlaps(self, other: Slot) -> bool:
        return (
            self.base == other.base
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


NOWHERE = Slot(ARENA, 0, 0)


@dataclass(frozen=True)
class Memory:
    slots: Mapping[Node, Slot]
    scratch: Mapping[Kernel, Slot]  # the workspace of a kernel
    packed: Mapping[Kernel, Slot]  # operands prepared once
    arena: int  # bytes
    kept: int  # bytes
    needed: int  # the most that lives at one time: no plan can be smaller


def nbytes(node: Node) -> int:
    return prod(node.shape) * node.dtype.itemsize


def plan(
    kernels: Sequence[Kernel],
    fixed: Mapping[Node, Slot],
    shares: Mapping[Node, Node],
    scratch: Mapping[Kernel, int],
    packed: Mapping[Kernel, int],
    lasting: Collection[Kernel] = (),
    to_the_end: Collection[Node] = (),
    hidden: Collection[Kernel] = (),
) -> Memory:
    """Places for all nodes that the kernels write. `fixed` have theirs; one that `shares` takes the place of another.

    What `lasting` kernels write, and what is `packed`, is kept from run to run; some nodes are read once more at the end.
    `hidden`: kernels whose anchor's own result is never as a whole in memory; its place is their scratch, or registers.
    """
    birth, death = _lifetimes(kernels, shares, hidden)
    slots: dict[Node, Slot] = dict(fixed)
    kept = _Arena(KEPT)
    for kernel in kernels:
        if kernel in lasting:
            slots |= {n: kept.take(nbytes(n)) for n in kernel.outputs if n not in slots}
    prepared = {k: kept.take(size) for k, size in packed.items() if size}
    dying: dict[int, list[Node]] = defaultdict(list)
    for node, last in death.items():
        dying[len(kernels) if node in to_the_end else last].append(node)
    born: dict[int, list[Node]] = defaultdict(list)
    for node, first in birth.items():
        born[first].append(node)
    planner = _Planner(slots, shares, fixed, kept.size)
    for i, kernel in enumerate(kernels):
        planner.step(kernel, born[i], dying[i], scratch.get(kernel, 0))
    slots |= {k.anchor: planner.rooms.get(k, NOWHERE) for k in hidden if k.anchor is not None}
    return Memory(slots, planner.rooms, prepared, planner.arena.size, kept.size, planner.most)


class _Planner:
    """The arena as it is taken and given back, kernel after kernel."""

    def __init__(
        self, slots: dict[Node, Slot], shares: Mapping[Node, Node], fixed: Mapping[Node, Slot], kept: int
    ) -> None:
        self.slots, self.shares, self.fixed = slots, shares, fixed
        self.arena = _Arena(ARENA)
        self.rooms: dict[Kernel, Slot] = {}
        self.live = self.most = kept

    def step(self, kernel: Kernel, born: list[Node], dying: list[Node], scratch: int) -> None:
        slots, arena = self.slots, self.arena
        reusable = _overwritable(kernel, [n for n in dying if self._is_ours(n)])
        for node in (n for n in born if n not in slots and n not in self.shares):
            place = _position(kernel, node) if reusable else None
            old = next((o for o in reusable if nbytes(o) == nbytes(node) and reusable[o] == place), None)
            if old is not None:
                del reusable[old]
                dying.remove(old)
                slots[node] = slots[old]
            else:
                slots[node] = arena.take(nbytes(node))
                self.live += nbytes(node)
        for node in (n for n in born if n in self.shares):
            slots[node] = slots[self.shares[node]]
        if scratch:
            self.rooms[kernel] = arena.take(scratch)
            self.live += scratch
        self.most = max(self.most, self.live)
        if scratch:
            arena.give_back(self.rooms[kernel])
            self.live -= scratch
        for node in dying:
            if self._is_ours(node) and node not in self.shares:
                arena.give_back(slots[node])
                self.live -= nbytes(node)

    def _is_ours(self, node: Node) -> bool:
        return node in self.slots and self.slots[node].base == ARENA and node not in self.fixed


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


class _Arena:
    """Free pieces of one growing range: the smallest that fits is taken."""

    def __init__(self, base: int) -> None:
        self.base, self.size = base, 0
        self.free: list[tuple[int, int]] = []  # (offset, bytes), by offset

    def take(self, wanted: int) -> Slot:
        rounded = max(ALIGN, -(-wanted // ALIGN) * ALIGN)
        fitting = [(n, o) for o, n in self.free if n >= rounded]
        if fitting:
            n, offset = min(fitting)
            self.free.remove((offset, n))
            if n > rounded:
                self._put(offset + rounded, n - rounded)
        elif self.free and sum(self.free[-1]) == self.size:  # the last piece is free: make it longer
            offset, _ = self.free.pop()
            self.size = offset + rounded
        else:
            offset, self.size = self.size, self.size + rounded
        return Slot(self.base, offset, wanted)

    def give_back(self, slot: Slot) -> None:
        self._put(slot.offset, max(ALIGN, -(-slot.nbytes // ALIGN) * ALIGN))

    def _put(self, offset: int, n: int) -> None:
        self.free.append((offset, n))
        self.free.sort()
        joined: list[tuple[int, int]] = []
        for start, length in self.free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((start, length))
        self.free = joined
