"""Segments of a vector loop: where a concat passes from one input to the next, and a pad from its filler to its input, the loop is cut.

Inside a segment no such choice remains: every input is read contiguously. Without segments, each element of a vector would be located separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from ...records import dataclass
from ..thresholds import thresholds
from .index import IndexExpr, Inside, Loop
from .loops import Step, reads
from .nest import ReadyNest, ReadyPhase, ReadyReduction, ReadyStore, is_cut

CHOICES = ("choose", "guard")  # kinds of steps that depend on conditions


@dataclass
class LoopSegment:
    """A part of the vector loop, as a loop of its own, and the phases for it."""

    vector: Loop
    phases: list[ReadyPhase]


def segments(nest: ReadyNest) -> list[LoopSegment]:
    """The segments of a nest's vector loop; none if it need not be cut, or into too many."""
    if nest.vector is None:
        return []
    found = _cut(LoopSegment(nest.vector, nest.phases))
    return found if 1 < len(found) <= thresholds.segments else []


def phase_parts(phase: ReadyPhase, edges: Iterable[int]) -> list[tuple[int, ReadyPhase]]:
    """A phase of one loop, cut at these places and where choices change: where each part begins, and the part."""
    [loop] = phase.loops
    places = sorted({0, *edges, loop.size})
    found = []
    for begin, end in pairwise(places):
        part = Loop(end - begin)
        values = {loop: IndexExpr(begin, ((part, 1),))}
        found.append((begin, _decided(phase.replaced(values, (part,)))))
    return found


def phase_edges(phase: ReadyPhase) -> list[int]:
    """Where choices of a phase of one loop change."""
    return _edges(LoopSegment(phase.loops[0], [phase]))


def _cut(whole: LoopSegment) -> list[LoopSegment]:
    """The segment, cut at all places where a choice changes; concats of concats are cut again."""
    edges = _edges(whole)
    if not edges:
        return [whole]
    found = []
    for begin, end in pairwise((0, *edges, whole.vector.size)):
        vector = Loop(end - begin)
        values = {whole.vector: IndexExpr(begin, ((vector, 1),))}
        part = LoopSegment(vector, [_decided(p.replaced(values, p.loops)) for p in whole.phases])
        found += _cut(part)
        if len(found) > thresholds.segments:
            break
    return found


def _edges(whole: LoopSegment) -> list[int]:
    conditions = [
        c for p in whole.phases for s in p.steps if s.kind in CHOICES for group in s.conditions for c in group
    ]
    places = {n for c in conditions if is_cut(c, whole.vector) for n in (-c.inner.offset, c.size - c.inner.offset)}
    return sorted(n for n in places if 0 < n < whole.vector.size)


def _decided(phase: ReadyPhase) -> ReadyPhase:
    """The phase without the choices whose outcome is known, and without steps that only the other outcomes need."""
    steps = [_decided_step(s) for s in phase.steps]
    needed = _needed(phase, steps)
    number = {old: new for new, old in enumerate(sorted(needed))}
    return ReadyPhase(
        phase.loops,
        tuple(replace(steps[old], args=tuple(number[a] for a in steps[old].args)) for old in number),
        {key: number[n] for key, n in phase.number.items() if n in number},
        [ReadyStore(w.node, number[w.step], w.position) for w in phase.stores],
        [
            ReadyReduction(r.node, tuple(number[s] for s in r.steps), r.conditions, r.positions)
            for r in phase.reductions
        ],
        phase.vector,
    )


def _decided_step(step: Step) -> Step:
    if step.kind not in CHOICES or not step.args:
        return step
    open_ones = [
        (arg, tuple(c for c in group if not _holds(c)))
        for arg, group in zip(step.args, step.conditions, strict=True)
        if not any(map(_fails, group))
    ]
    if step.kind == "guard" and not open_ones:
        return replace(step, args=(), conditions=())
    first = next((i for i, (_, group) in enumerate(open_ones) if not group), len(open_ones) - 1)
    taken = open_ones[: first + 1]  # later ones are never reached
    if len(taken) == 1 and (step.kind == "choose" or not taken[0][1]):
        return replace(step, kind="same", args=(taken[0][0],), conditions=())
    return replace(step, args=tuple(a for a, _ in taken), conditions=tuple(g for _, g in taken))


def _holds(condition: Inside) -> bool:
    inner, top = condition.inner, (condition.size - 1) * condition.step
    return inner.low >= 0 and inner.high <= top and inner.divided(condition.step)[1] == IndexExpr()


def _fails(condition: Inside) -> bool:
    return condition.inner.high < 0 or condition.inner.low > (condition.size - 1) * condition.step


def _needed(phase: ReadyPhase, steps: Sequence[Step]) -> set[int]:
    """The numbers of the steps that stores and reductions depend on."""
    ends: list[IndexExpr] = [w.position for w in phase.stores]
    for reduction in phase.reductions:
        ends += [*reduction.positions, *(c.inner for c in reduction.conditions)]
    left = [w.step for w in phase.stores] + [s for r in phase.reductions for s in r.steps]
    left += _read_by(phase, ends)
    found: set[int] = set()
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            step = steps[number]
            inner = [c.inner for group in step.conditions for c in group]
            left += [*step.args, *_read_by(phase, [*step.indices, *inner])]
    return found


def _read_by(phase: ReadyPhase, indices: Iterable[IndexExpr]) -> list[int]:
    """The steps that compute the numbers that indices depend on."""
    return [phase.number[key] for key in reads(tuple(indices))]
