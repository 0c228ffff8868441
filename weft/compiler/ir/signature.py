"""The signature of a kernel: a key of everything that the emitter reads, with loops and memory numbered in order of appearance.

A deep network repeats its layers. Kernels with equal signatures are compiled once, to one function that is called with other pointers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from ...graph.node import Node
from .index import IndexExpr, Inside, Loop, Quotient, Read, Remainder, Term
from .loops import Step
from .nest import ReadyNest, ReadyPhase


def signature(nest: ReadyNest, slot: Callable[[Node], int]) -> Hashable:
    """The key of a nest; `slot` gives the number of the pointer that a node's memory is."""
    return _Numbering(nest, slot).key()


class _Numbering:
    def __init__(self, nest: ReadyNest, slot: Callable[[Node], int]) -> None:
        self.nest, self.slot = nest, slot
        loops = [*nest.outer, *(l for p in nest.phases for l in p.loops)]
        self.loops = {l: (i, l.size) for i, l in enumerate(loops)}
        self.rows: dict[Node, int] = {}

    def key(self) -> Hashable:
        nest = self.nest
        vector = None if nest.vector is None else self.loops[nest.vector]
        return (tuple(self.loops[l] for l in nest.outer), vector, tuple(map(self._phase, nest.phases)))

    def _phase(self, phase: ReadyPhase) -> Hashable:
        steps = tuple(self._step(s, phase) for s in phase.steps)
        stores = tuple(
            (self.slot(w.node), w.node.dtype.name, w.step, self._index(w.position, phase)) for w in phase.stores
        )
        reductions = []
        for r in phase.reductions:
            self.rows[r.node] = len(self.rows)
            where = (self._conditions(r.conditions, phase), self._indices(r.positions, phase))
            reductions.append((r.node.op.name, r.node.inputs[0].dtype.name, r.node.dtype.name, r.steps, where))
        vector = None if phase.vector is None else self.loops[phase.vector]
        return tuple(self.loops[l] for l in phase.loops), vector, steps, stores, tuple(reductions)

    def _step(self, step: Step, phase: ReadyPhase) -> Hashable:
        node = step.node
        what: Any = None
        if step.kind == "load":
            what = self.slot(node)
        elif step.kind == "row":
            what = self.rows[node]
        elif step.kind in ("op", "const", "guard", "window"):
            inputs = tuple(i.dtype.name for i in node.inputs)
            filler = (node.param("value"),) if step.kind in ("const", "guard") else ()
            what = (node.op.name, inputs, _plain(filler if step.kind != "op" else node.params))
            if node.op.can_fail and not node.dtype.is_float:
                what = (what, _line(node))  # errors name the source line
        conditions = tuple(self._conditions(group, phase) for group in step.conditions)
        return step.kind, what, node.dtype.name, step.args, conditions, self._indices(step.indices, phase)

    def _conditions(self, conditions: Iterable[Inside], phase: ReadyPhase) -> Hashable:
        return tuple((self._index(c.inner, phase), c.size, c.step) for c in conditions)

    def _indices(self, indices: Iterable[IndexExpr], phase: ReadyPhase) -> Hashable:
        return tuple(self._index(i, phase) for i in indices)

    def _index(self, index: IndexExpr, phase: ReadyPhase) -> Hashable:
        return index.offset, tuple((self._term(t, phase), c) for t, c in index.parts)

    def _term(self, term: Term, phase: ReadyPhase) -> Hashable:
        if isinstance(term, Loop):
            return self.loops[term]
        if isinstance(term, Read):
            step = phase.number[(term.node, term.place)]
            return "read", step, term.size, term.gather.params, _line(term.gather), term.node.dtype.name
        kind = type(term).__name__
        by = term.by if isinstance(term, Quotient) else term.step if isinstance(term, Inside) else 0
        assert isinstance(term, Quotient | Remainder | Inside)
        return kind, self._index(term.inner, phase), by, term.size


def _line(node: Node) -> Hashable:
    return node.source and node.source[:2]


def _plain(params: tuple[Any, ...]) -> Hashable:
    return tuple(str(p) for p in params)
