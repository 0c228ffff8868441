"""The elements that a phase of a kernel computes or reads, updated incrementally while kernels merge.

`loops.body` makes one step of each, with an order and positions in memory. Fusion needs the loads and the length of a kernel after
every merge; rebuilding the body each time would make fusion quadratic in the length of kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import field

from ...graph.node import Node
from ...records import dataclass
from .index import Place
from .loops import Key, LoopPhase, condition_reads, needs, reads


@dataclass
class Elements:
    """All elements of a phase; among them those that are loaded, and the row values of earlier phases."""

    keys: set[Key] = field(default_factory=set)
    loads: dict[Node, set[Place]] = field(default_factory=dict)
    rows: set[Node] = field(default_factory=set)

    def grow(self, wanted: list[Key], stored: Collection[Node], own: set[Node], rows: Collection[Node]) -> None:
        """Add elements and everything that they are computed from, down to row values and stored nodes, except the phase's own.

        A load of a node that is no longer stored elsewhere, or has become a row value, is expanded again. Nothing else changes
        while kernels merge: `stored` only shrinks, `own` and `rows` only grow.
        """
        keys, loads = self.keys, self.loads
        stack = [key for key in wanted if key not in keys]
        for node in [n for n in loads if n in rows or n in own or n not in stored]:
            again = [(node, place) for place in loads.pop(node)]
            keys.difference_update(again)
            stack += again
        while stack:
            key = stack.pop()
            if key in keys:
                continue
            keys.add(key)
            node = key[0]
            if node in rows:
                self.rows.add(node)
                continue
            if node in stored and node not in own:
                loads.setdefault(node, set()).add(key[1])
                stack += reads(key[1])
            else:
                stack += needs(key, (), ())

    def copy(self) -> Elements:
        return Elements(set(self.keys), {node: set(places) for node, places in self.loads.items()}, set(self.rows))

    def holds_for(self, stored: Collection[Node], own: Node) -> bool:
        """Whether a phase that stores one node loads and computes the same if these nodes are stored."""
        return all(
            node in self.loads or node in self.rows or node is own or node not in stored for node, _ in self.keys
        ) and all(node in stored for node in self.loads)

    def merge(self, other: Elements) -> Elements:
        """The union; the smaller one is added to the larger one."""
        large, small = (self, other) if len(self.keys) >= len(other.keys) else (other, self)
        large.keys |= small.keys
        for node, places in small.loads.items():
            large.loads.setdefault(node, set()).update(places)
        large.rows |= small.rows
        return large

    def computed(self) -> Iterator[Node]:
        """The nodes whose elements are computed here at some cost, with repetitions."""
        for node, _ in self.keys:
            if node not in self.loads and node not in self.rows and node.op.kind != "leaf":
                yield node


def grown(phase: LoopPhase, stored: Collection[Node], rows: Collection[Node]) -> Elements:
    """The elements of a phase, starting from those that are known."""
    found = phase.elements if phase.elements is not None else Elements()
    found.grow(wanted_of(phase), stored, {s.node for s in phase.stores}, rows_before(phase, rows))
    return found


def wanted_of(phase: LoopPhase) -> list[Key]:
    """What a phase stores and reduces."""
    wanted = [(s.node, s.place) for s in phase.stores]
    for r in phase.reductions:
        wanted += r.factors
    wanted += [k for r in phase.reductions for k in condition_reads(r.conditions)]
    return wanted


def read_by(phase: LoopPhase, stored: Collection[Node]) -> Collection[Node]:
    """The stored nodes that a phase loads: all but those that it stores itself, which are available."""
    return Without(stored, {s.node for s in phase.stores})


def rows_before(phase: LoopPhase, rows: Collection[Node]) -> set[Node]:
    """The row values that are known when a phase begins."""
    return set(rows) - {r.node for r in phase.reductions}


class Without:
    """A set with some members left out, without a copy."""

    def __init__(self, every: Collection[Node], left_out: set[Node]) -> None:
        self.every, self.left_out = every, left_out

    def __contains__(self, node: object) -> bool:
        return node not in self.left_out and node in self.every

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Node]:
        return (node for node in self.every if node not in self.left_out)
