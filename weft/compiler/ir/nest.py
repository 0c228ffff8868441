"""The last steps before code generation: loops are split, merged, and one is chosen to be vectorized.

A loop that a reshape divides is split in two, which removes the division; neighbouring loops that every access traverses
contiguously are merged; the loop along which most accesses are contiguous is vectorized.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from ...dtypes import DType
from ...graph.node import Node
from ...records import dataclass
from .index import IndexExpr, Inside, Loop, Place, linear, substituted
from .kernel import Kernel
from .loops import Key, Reduction, Step, mergeable, split, substituted_place
from .window_ops import SPREAD, TAP


@dataclass
class ReadyStore:
    """A store: the step whose value is written, and where."""

    node: Node
    step: int
    position: IndexExpr


@dataclass
class ReadyReduction:
    """A reduction: the steps whose product is combined, and the conditions for elements that are not padding."""

    node: Node
    steps: tuple[int, ...]
    conditions: tuple[Inside, ...]
    positions: tuple[IndexExpr, ...]  # the position that argmax reports for the current element

    @property
    def dtype(self) -> DType:
        """The type of the values that are combined."""
        return self.node.dtype if self.node.op is SPREAD else self.node.inputs[0].dtype

    @property
    def finds(self) -> bool:
        """Whether its result is a position, not a value."""
        return self.node.op.returns_position


@dataclass
class ReadyPhase:
    loops: tuple[Loop, ...]
    steps: tuple[Step, ...]
    number: dict[Key, int]
    stores: list[ReadyStore]
    reductions: list[ReadyReduction]
    vector: Loop | None = None  # of its own loops

    def indices(self) -> Iterable[IndexExpr]:
        for step in self.steps:
            yield from step.indices
            for group in step.conditions:
                yield from (c.inner for c in group)
        for store in self.stores:
            yield store.position
        for reduction in self.reductions:
            yield from (c.inner for c in reduction.conditions)
            yield from reduction.positions

    def replaced(self, values: Mapping[Loop, IndexExpr], loops: tuple[Loop, ...]) -> ReadyPhase:
        steps = tuple(
            replace(
                s,
                indices=tuple(substituted(i, values) for i in s.indices),
                conditions=tuple(tuple(_moved(c, values) for c in group) for group in s.conditions),
            )
            for s in self.steps
        )
        stores = [ReadyStore(w.node, w.step, substituted(w.position, values)) for w in self.stores]
        reductions = [
            ReadyReduction(
                r.node,
                r.steps,
                tuple(_moved(c, values) for c in r.conditions),
                tuple(substituted(i, values) for i in r.positions),
            )
            for r in self.reductions
        ]
        number = {(node, substituted_place(place, values)): n for (node, place), n in self.number.items()}
        return ReadyPhase(loops, steps, number, stores, reductions)


def _moved(condition: Inside, values: Mapping[Loop, IndexExpr]) -> Inside:
    return Inside(substituted(condition.inner, values), condition.size, condition.step)


GROUPED_STEPS = 64  # of a loop's body, up to which more columns are reduced together


@dataclass
class ReadyNest:
    outer: tuple[Loop, ...]
    phases: list[ReadyPhase]
    vector: Loop | None  # an outer loop; None: each phase has one of its own


def ready_nest(kernel: Kernel, lanes: int) -> ReadyNest:
    """The nest of a kernel as code is generated from it. The loops of an anchor's result are not changed."""
    result = _unsplit_nest(kernel)
    if not kernel.rows:
        _split(result)
        _merge(result)
        _choose_vectors(result, lanes)
    else:
        result.vector = result.outer[-1]
    return result


def row_nest(kernel: Kernel, row: Loop) -> ReadyNest | None:
    """The nest with the loop over rows outside and all other loops inside. None if some phases have loops inside those."""
    result = _unsplit_nest(kernel)
    _split(result)
    rest = tuple(l for l in result.outer if l is not row and l.size != 1)
    nested = any(p.loops or p.reductions for p in result.phases) or len(result.phases) > 1
    if row not in result.outer or (rest and nested):
        return None
    phases = [p.replaced({}, rest or p.loops) for p in result.phases]
    return ReadyNest((row,), [_merged_phase(p) for p in phases], None)


def _unsplit_nest(kernel: Kernel) -> ReadyNest:
    nest = kernel.nest
    assert nest is not None
    phases = []
    for phase, body in zip(nest.phases, kernel.bodies, strict=True):
        stores = [
            ReadyStore(s.node, body.number[(s.node, s.place)], linear(s.place, s.node.shape)) for s in phase.stores
        ]
        reductions = [
            ReadyReduction(r.node, tuple(body.number[k] for k in r.factors), r.conditions,
                    tuple(_argument_position(r, place, x) for x, place in r.factors))
            for r in phase.reductions
        ]  # fmt: skip
        phases.append(ReadyPhase(phase.loops, body.steps, dict(body.number), stores, reductions))
    return ReadyNest(nest.outer, phases, None)


def _argument_position(reduction: Reduction, place: Place, x: Node) -> IndexExpr:
    op = reduction.node.op
    if op.kernel == "reduction" and op.returns_position:
        along: IndexExpr = place[reduction.node.param("axis")]
        return along
    if op in (TAP, SPREAD):  # the number of the tap
        loops = reduction.loops
        return linear(tuple(IndexExpr(0, ((loop, 1),)) for loop in loops), tuple(loop.size for loop in loops))
    return linear(place, x.shape)


def _split(nest: ReadyNest) -> None:
    for _ in range(8):
        every = [*nest.outer, *(l for p in nest.phases for l in p.loops)]
        found = split(every, [tuple(i for p in nest.phases for i in p.indices())])
        if not found:
            return
        values = {old: index for old, (index, _) in found.items()}

        def cut(
            loops: Sequence[Loop], found: Mapping[Loop, tuple[IndexExpr, tuple[Loop, ...]]] = found
        ) -> tuple[Loop, ...]:
            return tuple(n for l in loops for n in (found[l][1] if l in found else (l,)) if n.size != 1)

        nest.phases = [p.replaced(values, cut(p.loops)) for p in nest.phases]
        nest.outer = cut(nest.outer)


def _merge(nest: ReadyNest) -> None:
    nest.outer = tuple(l for l in nest.outer if l.size != 1)
    for phase in nest.phases:
        phase.loops = tuple(l for l in phase.loops if l.size != 1)
    position = 0
    while position + 1 < len(nest.outer):
        first, second = nest.outer[position : position + 2]
        if all(mergeable(first, second, p.indices()) for p in nest.phases):
            both = Loop(first.size * second.size)
            values = {first: IndexExpr(), second: IndexExpr(0, ((both, 1),))}
            nest.phases = [p.replaced(values, p.loops) for p in nest.phases]
            nest.outer = (*nest.outer[:position], both, *nest.outer[position + 2 :])
        else:
            position += 1
    nest.phases = [_merged_phase(p) for p in nest.phases]


def _merged_phase(phase: ReadyPhase) -> ReadyPhase:
    position = 0
    while position + 1 < len(phase.loops):
        first, second = phase.loops[position : position + 2]
        if mergeable(first, second, phase.indices()):
            both = Loop(first.size * second.size)
            values = {first: IndexExpr(), second: IndexExpr(0, ((both, 1),))}
            phase = phase.replaced(values, (*phase.loops[:position], both, *phase.loops[position + 2 :]))
        else:
            position += 1
    return phase


def _choose_vectors(nest: ReadyNest, lanes: int) -> None:
    inner_best = 0.0
    times = [prod(l.size for l in phase.loops) for phase in nest.phases]  # that a phase does its steps, for each row
    for phase, often in zip(nest.phases, times, strict=True):
        scored = [(_score(phase, l, lanes), n, l) for n, l in enumerate(phase.loops)]
        if scored:
            score, _, phase.vector = max(scored, key=lambda s: s[:2])
            inner_best += often * score
    outer = [
        (sum(often * _score(p, l, lanes) for p, often in zip(nest.phases, times, strict=True)), n, l)
        for n, l in enumerate(nest.outer)
    ]
    if outer:
        score, _, best = max(outer, key=lambda s: s[:2])
        if score > inner_best or not any(p.loops for p in nest.phases):
            nest.vector = best
            for phase in nest.phases:
                phase.vector = None
            return
    for phase in nest.phases:  # the vector loop runs innermost
        if phase.vector is not None:
            phase.loops = (*(l for l in phase.loops if l is not phase.vector), phase.vector)


def _score(phase: ReadyPhase, loop: Loop, lanes: int) -> float:
    """A score of how well the accesses of a phase vectorize along a loop."""
    total = 0.0
    for step in phase.steps:
        if step.kind == "load":
            total += _access(_coefficient(step.indices[0], loop), 1.0)
        for group in step.conditions:
            total -= sum(1.0 for c in group if loop in c.inner.loops and not is_cut(c, loop))
    for store in phase.stores:
        total += _access(_coefficient(store.position, loop), 2.0)
    if loop.size >= lanes:
        return total
    return total * loop.size / lanes if total > 0 else total / 4 - 1  # a short loop fills a part of the lanes


def is_cut(condition: Inside, loop: Loop) -> bool:
    """Whether a condition holds in one range of a loop, whatever the others are: there the loop can be cut (see segments.py)."""
    return condition.step == 1 and condition.inner.parts == ((loop, 1),)


def _coefficient(index: IndexExpr, loop: Loop) -> int | None:
    """The coefficient of a loop, within a range in which the conditions on it are known."""
    known = IndexExpr(index.offset)
    for term, c in index.parts:
        known += (term.inner if isinstance(term, Inside) and is_cut(term, loop) else IndexExpr(0, ((term, 1),))) * c
    return known.coefficient(loop)


def _access(step: int | None, weight: float) -> float:
    if step == 1:
        return weight
    return 0.0 if step == 0 else -weight / 2


def fitting_lanes(nest: ReadyNest, lanes: int) -> int:
    """How many elements a vector should have, when `lanes` are the usual number.

    Fewer if the loops are too short. More where columns are reduced: one step down the rows should use whole cache lines.
    """
    lengths = (
        [nest.vector.size] if nest.vector is not None else [p.vector.size for p in nest.phases if p.vector is not None]
    )
    longest = max(lengths, default=1)
    if nest.vector is not None and any(p.reductions for p in nest.phases):
        steps = max(len(p.steps) * max(1, len(p.reductions)) for p in nest.phases)
        while lanes < 32 and 2 * lanes <= longest and lanes * steps < 256:
            lanes *= 2
    while lanes > 2 and lanes > longest:
        lanes //= 2
    return lanes


def grouped_columns(nest: ReadyNest, lanes: int, registers: int, register_lanes: int) -> int:
    """How many columns are reduced together, when vectors have `lanes` elements: as many as half of the registers can accumulate. Rows are
    then read in long contiguous pieces, and independent sums hide the latency of additions.
    """
    reducing = [p for p in nest.phases if p.reductions and p.loops]
    if nest.vector is None or not reducing:
        return lanes
    sums = max(len(p.reductions) for p in reducing)
    steps = max(len(p.steps) for p in nest.phases)
    count = min(registers // 2 * register_lanes // (sums * lanes), GROUPED_STEPS // steps)
    return lanes * max(1, min(count, -(-nest.vector.size // lanes)))
