"""Merging two kernels: when their loops are compatible, and the merged loops.

A producer can be merged into a consumer if every value is read in the row that computes it. The producer's loops are then expressed
as loops of the consumer, its phases come first, and phases over equal loops are jammed into one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from ...graph.node import Node
from ..ir.elements import grown, read_by, rows_before, wanted_of
from ..ir.index import IndexExpr, Inside, Loop, Place, linear, substituted
from ..ir.kernel import Kernel
from ..ir.loops import Body, LoopPhase, Nest, Position, Reduction, Store, body, substituted_place
from ..thresholds import thresholds

SHORT_ROW = 64  # number of elements up to which their distance in memory does not matter


def phase_body(phase: LoopPhase, stored: Collection[Node], rows: Sequence[Node], position: Position = linear) -> Body:
    """The steps of a phase: values that it stores itself are available, all other stored values are loaded."""
    return body(wanted_of(phase), read_by(phase, stored), rows_before(phase, rows), position)


def solved(position: IndexExpr, known: IndexExpr, loops: Sequence[Loop]) -> dict[Loop, IndexExpr] | None:
    """The loops as functions of others, if `position` (over them) enumerates the same elements as `known`; None if it skips or repeats."""
    digits = sorted(((c, t) for t, c in position.parts), key=lambda d: d[0])
    step = 1
    for c, term in digits:
        if not isinstance(term, Loop) or c != step:
            return None
        step *= term.size
    if not step or position.offset or known.offset or {t for _, t in digits} != {l for l in loops if l.size != 1}:
        return None  # without elements (a step of 0) it is undefined
    if step != known.high + 1:
        return None  # they are the first of more elements
    values = {}
    for c, term in digits:
        assert isinstance(term, Loop)
        values[term] = known.divided(c)[0].divided(term.size)[1]
    return values


def merged_nests(
    producer: Kernel, kernel: Kernel, places: dict[Node, set[Place]], stored: Collection[Node], only_reader: bool
) -> Nest | None:
    """One nest that computes both, or None if they are not compatible: every value must be read in the row that computes it.

    `only_reader`: no other kernel reads what the producer computes.
    """
    first, second = producer.nest, kernel.nest
    assert first is not None
    assert second is not None
    if not places or any(len(p) != 1 for p in places.values()):
        return None
    values: dict[Loop, IndexExpr] | None = None
    for node, [place] in places.items():
        own = _own_place(first, node)
        found = _aligned(linear(own, node.shape), linear(place, node.shape), first, second)
        if found is None or (values is not None and found != values):
            return None
        values = found
    assert values is not None
    image = {l for o in first.outer if o in values for l in values[o].loops}
    outer = tuple(l for l in second.outer if l in image)
    if is_flexible(second):
        if set(outer) != set(second.outer) and not (first.rows and _fits_a_row(producer, kernel, outer, only_reader)):
            return None
        inner = tuple(l for l in second.outer if l not in image)
        second = Nest(outer, [LoopPhase((*inner, *p.loops), p.reductions, p.stores, p.elements) for p in second.phases])
    elif image != set(second.outer):
        return None
    return Nest(second.outer, jammed([*(moved_phase(p, values) for p in first.phases), *second.phases], stored))


def moved_phase(phase: LoopPhase, values: Mapping[Loop, IndexExpr]) -> LoopPhase:
    """The phase in other loops."""
    return LoopPhase(
        tuple(l for old in phase.loops for l in (values[old].loops if old in values else (old,))),
        [Reduction(r.node, substituted_place(r.place, values), r.loops,
                   tuple((n, substituted_place(q, values)) for n, q in r.factors),
                   tuple(_moved_condition(c, values) for c in r.conditions))
         for r in phase.reductions],
        [Store(s.node, substituted_place(s.place, values)) for s in phase.stores],
    )  # fmt: skip


def _moved_condition(condition: Inside, values: Mapping[Loop, IndexExpr]) -> Inside:
    return Inside(substituted(condition.inner, values), condition.size, condition.step)


def _own_place(nest: Nest, node: Node) -> Place:
    for phase in nest.phases:
        for store in phase.stores:
            if store.node is node:
                return store.place
    for phase in nest.phases:
        for r in phase.reductions:
            if r.node is node:
                return r.place
    raise AssertionError(node)


def is_flexible(nest: Nest) -> bool:
    """Whether the loops may be reordered freely: there are no reductions."""
    return not nest.rows and len(nest.phases) == 1 and not nest.phases[0].loops


def _aligned(own: IndexExpr, read: IndexExpr, first: Nest, second: Nest) -> dict[Loop, IndexExpr] | None:
    """The first nest's loops as loops of the second, if each of its rows is read in one row of the second."""
    loops = [t for t, _ in own.parts if isinstance(t, Loop)]
    if any(not isinstance(t, Loop) for t, _ in read.parts):
        return None
    values = solved(own, read, loops)
    if values is None or not {l for l in first.outer if l.size != 1} <= set(loops):
        return None
    for loop, value in values.items():
        if loop.size == 1:
            continue
        if value.offset or len(value.parts) != 1:  # a part of the producer is read, or its elements in another order
            return None
        term, c = value.parts[0]
        if c != 1 or not isinstance(term, Loop):
            return None
    used = [t for v in values.values() for t, _ in v.parts]
    if len(used) != len(set(used)) or any(l.size != v.parts[0][0].size for l, v in values.items() if v.parts):
        return None
    return values


def _fits_a_row(producer: Kernel, kernel: Kernel, outer: Sequence[Loop], only_reader: bool) -> bool:
    """Whether a kernel may be split into rows to be merged with a reduction: rows are contiguous and stay in the cache."""
    assert producer.nest is not None
    assert kernel.nest is not None
    rows = prod(l.size for l in outer)
    reduced = max((prod(r.factors[0][0].shape) for p in producer.nest.phases for r in p.reductions), default=1)
    longest = max(reduced, prod(l.size for l in kernel.nest.outer)) // rows
    if not outer:  # a single row, such as that of a token: short enough for one thread, and no other thread waits for the reduction
        return only_reader and longest <= thresholds.task_elements
    if 4 * reduced // rows > thresholds.row_bytes:
        return False
    return longest <= SHORT_ROW or not any(
        prod(node.shape) > rows and _is_along(linear(place, node.shape), {*producer.nest.outer, *outer})
        for k in (producer, kernel)
        for node, place in k.loads()
    )


def _is_along(position: IndexExpr, loops: Collection[Loop]) -> bool:
    """Whether neighbours along one of these loops are neighbours in memory."""
    return any(position.coefficient(l) == 1 for l in position.loops if l in loops)


def jammed(phases: Sequence[LoopPhase], stored: Collection[Node]) -> list[LoopPhase]:
    """Phases over equal loops become one, unless one needs what the other reduces."""
    result: list[LoopPhase] = []
    for phase in phases:
        if phase.stores or not result:  # what the last phase stores is available to those that join it
            earliest = len(result) - 1
        else:
            needed = _needed_by(phase, stored, [r.node for p in result for r in p.reductions])
            earliest = max((i + 1 for i, p in enumerate(result) if not needed.isdisjoint(_made_by(p))), default=0)
        target = next((p for p in result[max(earliest, 0) :] if _can_jam(p, phase, result)), None)
        if target is None:
            result.append(LoopPhase(phase.loops, list(phase.reductions), list(phase.stores), phase.elements))
            continue
        moved = phase
        if phase.loops != target.loops:
            values = {old: IndexExpr(0, ((new, 1),)) for old, new in zip(phase.loops, target.loops, strict=True)}
            moved = moved_phase(phase, values)
        if target.elements is None or moved.elements is None:
            target.elements = target.elements or moved.elements
        else:
            target.elements = target.elements.merge(moved.elements)
        target.stores += moved.stores
        target.reductions += [
            Reduction(r.node, r.place, target.loops, r.factors, r.conditions) for r in moved.reductions
        ]
    return result


def _can_jam(target: LoopPhase, phase: LoopPhase, so_far: Sequence[LoopPhase]) -> bool:
    """Reductions go with reductions; stores only with the last phase, so that what they read is written."""
    if [l.size for l in target.loops] != [l.size for l in phase.loops]:
        return False
    if phase.stores:
        return target is so_far[-1] and not target.reductions and set(target.loops) == set(phase.loops)
    return bool(target.reductions) and not target.stores


def _made_by(phase: LoopPhase) -> list[Node]:
    return [*(r.node for r in phase.reductions), *(w.node for w in phase.stores)]


def _needed_by(phase: LoopPhase, stored: Collection[Node], rows: Sequence[Node]) -> set[Node]:
    """Row values and stored nodes that a phase reads."""
    found = phase.elements if phase.elements is not None else grown(phase, stored, rows)
    return {*found.loads, *found.rows}
