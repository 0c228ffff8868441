"""A sum, and the sum of squared differences from the mean, in one pass over memory. By definition they take two passes, since the
differences depend on the mean. But differences from any number near the mean are enough: the sum of their squares is too large by what
their own sum tells. So each part of a long loop takes its first few elements
for all. And sums of squares from the means of two groups can be combined (Chan, Golub, LeVeque): each group's own, and its size
times the square of how far its mean is from the mean of both. So each part has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...graph.node import Node
from ..ir.index import IndexExpr, substituted
from ..ir.loops import Step
from ..ir.nest import ReadyPhase, ReadyReduction
from . import scalars as scalar
from .kernels import LoopWriter, ReductionWriter
from .values import PhaseValues

FIRST = 16  # the number of elements whose mean is near enough to that of all


def mean_squares(phases: Sequence[ReadyPhase], number: int) -> dict[Node, Node]:
    """If all that a phase reduces are sums of squares of differences from a mean, each with the sum that the mean comes from."""
    found = {}
    for squares in phases[number].reductions:
        total = _sum_below(phases, number, squares)
        if total is None:
            return {}
        found[squares.node] = total
    return found


def _sum_below(phases: Sequence[ReadyPhase], number: int, squares: ReadyReduction) -> Node | None:
    """The sum of x, if this reduction is the sum over the same elements of (x - that sum / their number) squared."""
    phase = phases[number]
    square = phase.steps[squares.steps[0]]
    if not _is_plain_sum(squares) or not _is(square, "mul") or square.args[0] != square.args[1]:
        return None
    apart = phase.steps[square.args[0]]
    if not _is(apart, "sub"):
        return None
    total = _total_of_mean(phases[: number + 1], apart.args[1], prod(l.size for l in phase.loops))
    for before in phases[:number]:
        for reduced in before.reductions:
            if reduced.node is total and total is not None and reduced.node.inputs[0] is apart.node.inputs[0]:
                return total if _is_plain_sum(reduced) and _same_places(before, reduced, phase, squares) else None
    return None


def _is(step: Step, op: str) -> bool:
    return step.kind == "op" and step.node.op.name == op


def _is_plain_sum(reduced: ReadyReduction) -> bool:
    return reduced.node.op.name == "sum" and reduced.node.inputs[0].dtype.is_float and not reduced.conditions


def _same_places(first: ReadyPhase, a: ReadyReduction, second: ReadyPhase, b: ReadyReduction) -> bool:
    """Whether two reductions of tensors of one shape traverse the same elements, in the same loops."""
    if [l.size for l in first.loops] != [l.size for l in second.loops]:
        return False
    values = {old: IndexExpr(0, ((new, 1),)) for old, new in zip(second.loops, first.loops, strict=True)}
    return substituted(b.positions[0], values) == a.positions[0]


def _total_of_mean(phases: Sequence[ReadyPhase], step: int, count: int) -> Node | None:
    """The sum that a step of the last phase divides by this count, itself or in the earlier phase that stored what it reads."""
    phase = phases[-1]
    found = _behind(phase, step)
    if found.kind == "load":
        for earlier in phases[:-1]:
            for written in earlier.stores:
                if written.node is found.node and written.position == found.indices[0] and not earlier.loops:
                    phase, found = earlier, _behind(earlier, written.step)
    if not _is(found, "div"):
        return None
    total, by = (_behind(phase, arg) for arg in found.args)
    return total.node if total.kind == "row" and by.kind == "const" and by.node.param("value") == count else None


def _behind(phase: ReadyPhase, number: int) -> Step:
    """The step whose value this one only passes on."""
    step = phase.steps[number]
    while step.kind == "same" and step.args:
        step = phase.steps[step.args[0]]
    return step


class MomentsWriter(ReductionWriter):
    """The running state of both, in each lane of a tile: sums of differences from a number near the mean, and of their squares.

    The loop runs from `begin` to `end`, names in the kernel, and `first` is a tile of its first `FIRST` elements, or fewer.
    """

    def __init__(self, writer: LoopWriter, reduced: ReadyReduction, width: int, first: str) -> None:
        super().__init__(writer, reduced, width)
        self.type = scalar.register(self.dtype)
        self.state.append(writer.let("t", scalar.filled(self.dtype, 0, self.shape)))
        some = writer.let("near", f"tl.reduce({self.masked(writer.inside, first)}, 1, add, keep_dims=True)")
        near = writer.let("near", f"{some} / tl.minimum(end - begin, {min(FIRST, width)}).to({self.type})")
        finite = f"tl.abs({near}) < float('inf')"  # others would make something else of sums that are infinite
        self.near = writer.let("near", f"tl.where({finite}, {near}, 0.0)")

    def add(self, values: PhaseValues) -> None:
        write, (total, squares) = self.writer, self.state
        new = write.let("v", self.masked(write.inside, f"{self.factors(values)} - {self.near}"))
        write.line(f"{total} = {total} + {new}")
        write.line(f"{squares} = tl.fma({new}, {new}, {squares})")

    def results(self) -> list[str]:
        write, (total, squares) = self.writer, self.state
        if self.width > 1:
            total = write.let("r", f"tl.reduce({total}, 1, add, keep_dims=True)")
            squares = write.let("r", f"tl.reduce({squares}, 1, add, keep_dims=True)")
        count = write.let("count", f"(end - begin).to({self.type})")
        spread = f"tl.maximum({squares} - {total} * {total} / {count}, 0.0, propagate_nan=tl.PropagateNan.ALL)"
        return [write.let("r", f"{total} + {count} * {self.near}"), write.let("r", spread)]
