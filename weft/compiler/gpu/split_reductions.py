"""Split reductions: long loops with few rows, distributed over the whole GPU by several launches.

A loop kernel gives each program some rows and all of their inner loops. Where rows are few and loops long (the statistics of batch norm,
the gradient of a bias, a loss), every phase with loops becomes a launch of its own: a program has a tile of rows and a part of the
loops, and writes the part's partial result to the workspace. Later launches combine the partial results, always in the same order.
The size of a part depends on shapes only, so results do not depend on the GPU.

What is stored once per row may overwrite what it is computed from. So it stays in registers until nothing recomputes it; then a launch
in which each row belongs to one program stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...dtypes import float32, int64
from ...graph.node import Node
from ...records import dataclass
from ..ir.nest import ReadyNest, ReadyPhase, ReadyReduction
from ..ir.storage import nbytes
from ..thresholds import thresholds
from . import scalars as scalar
from .kernel_utils import next_power_of_two, scratch_offsets, scratch_tensor
from .kernels import MOST_TILE, LoopTile, LoopWriter, ReductionWriter, tile_for, write_kernel
from .moments import FIRST, MomentsWriter, mean_squares
from .source import KernelSource, decomposed
from .values import PhaseValues

WANTED = 528  # programs: four for each multiprocessor of a large GPU
MOST_PARTS = 512
FEWEST_COLUMNS = 512  # of a tile that is made narrower for more parts
BROAD = 64  # adjacent rows that a program sums
FINISH_ROWS, FINISH_TILE = 8, 2048  # of a program that only combines parts: rows, for whole sectors of memory; elements


def write_kernels(name: str, nest: ReadyNest) -> list[KernelSource]:
    """The sources of a nest, to be launched one after the other: a single one where its loops need not be cut."""
    plan = _planned(nest)
    return [write_kernel(name, nest)] if plan is None else [_Launch(name, plan, s).source() for s in plan.stages]


def loops_workspace(nest: ReadyNest) -> dict[Node, int]:
    """The scratch tensors that the launches of a nest share, and the offset of each."""
    plan = _planned(nest)
    return scratch_offsets(node for held in (plan.partials.values() if plan is not None else ()) for node in held.nodes)


def loops_scratch(nest: ReadyNest) -> int:
    """The bytes of scratch that the launches of a nest need."""
    return max((offset + nbytes(node) for node, offset in loops_workspace(nest).items()), default=0)


# --- launches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LoopPartition:
    """How the loops of a phase are split: `length` iterations, `share` of them per part."""

    tile: LoopTile
    length: int
    share: int

    @property
    def parts(self) -> int:
        return -(-self.length // self.share)


def _partition(tile: LoopTile, length: int, parts: int) -> _LoopPartition:
    """At most so many parts."""
    return _LoopPartition(tile, length, -(-length // (parts * tile.width)) * tile.width)


@dataclass(frozen=True)
class _PartialResults:
    """The results of a reduction's parts: tensors of (parts, rows). Of squares, `total` is the sum that their mean comes from."""

    reduced: ReadyReduction
    cut: _LoopPartition
    nodes: tuple[Node, ...]
    total: Node | None = None


@dataclass(frozen=True)
class _Stage:
    """One launch: phases without loops, then a part of a phase with loops. Without that one it stores what the others have."""

    rows: tuple[ReadyPhase, ...]
    cut: _LoopPartition
    phase: ReadyPhase | None


@dataclass(frozen=True)
class _Plan:
    nest: ReadyNest
    stages: list[_Stage]
    partials: dict[Node, _PartialResults]

    def squares_of(self, total: Node) -> list[_PartialResults]:
        return [partial for partial in self.partials.values() if partial.total is total]


def _planned(nest: ReadyNest) -> _Plan | None:
    """How a nest is split over launches; None if one launch is better."""
    tile, rows = tile_for(nest), prod(l.size for l in nest.outer)
    lengths = [prod(l.size for l in p.loops) for p in nest.phases if p.loops]
    if 2 * -(-rows // tile.rows) > WANTED or min(rows, tile.rows) * sum(lengths) < thresholds.gpu_cut or 0 in lengths:
        return None
    plan = _Planner(nest).plan()
    return plan if any(stage.cut.parts > 1 for stage in plan.stages) else None


class _Planner:
    """Phases become stages, in their order."""

    def __init__(self, nest: ReadyNest) -> None:
        self.nest = nest
        self.count = prod(l.size for l in nest.outer)
        self.stages: list[_Stage] = []
        self.partials: dict[Node, _PartialResults] = {}
        self.small: list[ReadyPhase] = []  # phases without loops, seen so far
        self.stored = 0  # the number of them that have been stored

    def plan(self) -> _Plan:
        for number, phase in enumerate(self.nest.phases):
            sums = mean_squares(self.nest.phases, number)
            if not phase.loops:
                self.small.append(phase)
            elif sums and all(total in self.partials and self.partials[total].total is None for total in sums.values()):
                for reduced in phase.reductions:
                    self._reserve(reduced, self.partials[sums[reduced.node]].cut, sums[reduced.node])
            else:
                self._cut(phase)
        self._finish()
        return _Plan(self.nest, self.stages, self.partials)

    def _cut(self, phase: ReadyPhase) -> None:
        if phase.stores:
            self._finish()
        cut = self._cut_of(phase)
        self.stages.append(_Stage(self._computed_again(phase), cut, phase))
        for reduced in phase.reductions:
            self._reserve(reduced, cut)

    def _cut_of(self, phase: ReadyPhase) -> _LoopPartition:
        length = prod(l.size for l in phase.loops)
        tile = self._tile(phase)
        tiles = -(-self.count // tile.rows)
        parts = max(1, min(MOST_PARTS, WANTED // tiles, min(tile.rows, self.count) * length // thresholds.gpu_part))
        while tile.width >= 2 * FEWEST_COLUMNS and 4 * _partition(tile, length, parts).parts < 3 * parts:
            tile = replace(tile, width=tile.width // 2)  # parts are whole tiles: with wide ones there are too few
        return _partition(tile, length, parts)

    def _tile(self, phase: ReadyPhase) -> LoopTile:
        tile = tile_for(ReadyNest(self.nest.outer, [phase], self.nest.vector))
        if self.nest.vector is None or not phase.reductions:
            return tile
        height = min(next_power_of_two(self.count), BROAD)  # whole lines of memory, and many loads in flight
        crowded = len(phase.reductions) > 2 or _tensors(phase) > 1
        elements = MOST_TILE // 2 if crowded else MOST_TILE
        return LoopTile(
            height, max(1, min(next_power_of_two(prod(l.size for l in phase.loops)), elements // height)), 8
        )

    def _reserve(self, reduced: ReadyReduction, cut: _LoopPartition, total: Node | None = None) -> None:
        dtype = reduced.dtype
        dtypes = [float32 if dtype.is_half else dtype, *([int64] if reduced.finds else [])]
        shape = (cut.parts, self.count)
        nodes = tuple(scratch_tensor(f"parts {i}", reduced.node, shape, d) for i, d in enumerate(dtypes))
        self.partials[reduced.node] = _PartialResults(reduced, cut, nodes, total)

    def _finish(self) -> None:
        """Add a launch for the stores that were postponed."""
        waiting = [p for i, p in enumerate(self.small) if i >= self.stored or p.reductions]
        if any(phase.stores for phase in waiting):
            most = max((partial.cut.parts for partial in self.partials.values()), default=1)
            rows = min(next_power_of_two(self.count), max(FINISH_ROWS, FINISH_TILE // next_power_of_two(most)))
            self.stages.append(_Stage(tuple(waiting), _LoopPartition(LoopTile(rows, 1, 4), 1, 1), None))
        self.stored = len(self.small)

    def _computed_again(self, phase: ReadyPhase) -> tuple[ReadyPhase, ...]:
        """Phases without loops that compute the inputs of a phase that are not in memory."""
        needed, found = _needed(phase), list[ReadyPhase]()
        for number, small in reversed(list(enumerate(self.small))):
            made = {r.node for r in small.reductions}
            if number >= self.stored:
                made |= {w.node for w in small.stores}
            if not needed.isdisjoint(made):
                needed |= _needed(small)
                found.insert(0, small)
        return tuple(found)


def _needed(phase: ReadyPhase) -> set[Node]:
    """The values that a phase reads from memory, and its row values."""
    return {s.node for s in phase.steps if s.kind in ("row", "load")}


def _tensors(phase: ReadyPhase) -> int:
    """The number of tensors that its loops traverse."""
    return sum(s.kind == "load" and any(loop in s.indices[0].loops for loop in phase.loops) for s in phase.steps)


# --- the text -------------------------------------------------------------------------------------------------------------------


class _Launch(LoopWriter):
    """Writes the kernel of one stage."""

    def __init__(self, name: str, plan: _Plan, stage: _Stage) -> None:
        super().__init__(name, plan.nest, stage.cut.tile)
        self.plan, self.stage, self.cut = plan, stage, stage.cut
        tile, cut = stage.cut.tile, stage.cut
        self.whole = self.count % tile.rows == cut.length % cut.share == cut.share % tile.width == 0

    def source(self) -> KernelSource:
        tiles, phase = -(-self.count // self.tile.rows), self.stage.phase
        self.begin_rows(f"(tl.program_id(0) % {tiles})")
        phases = [*self.stage.rows, *([phase] if phase is not None else [])]
        self._combine_all(phases)
        for number, small in enumerate(self.stage.rows):
            self._row_phase(small, phases[number + 1 :])
        if phase is not None:
            self.line(f"part = tl.program_id(0) // {tiles}")
            self._part(phase)
        return self.finished(tiles * self.cut.parts, self.tile.warps)

    def _combine_all(self, phases: Sequence[ReadyPhase]) -> None:
        """The combined reductions that these phases need. A sum comes before its squares, which need the mean."""
        needed = {node for phase in phases for node in _needed(phase)}
        needed |= {
            partial.total
            for node, partial in self.plan.partials.items()
            if node in needed and partial.total is not None
        }
        for node, held in self.plan.partials.items():
            if node in needed:
                self.rows[node] = self._combined(held)

    def _combined(self, partial: _PartialResults) -> str:
        parts = partial.cut.parts
        width = min(next_power_of_two(parts), max(1, MOST_TILE // self.tile.rows))
        self.line(f"# {partial.reduced.node.op.name} of {parts} parts")
        total = ReductionWriter(self, partial.reduced, width)
        looped = parts > width
        self.line(f"for first in range(0, {parts}, {width}):" if looped else "first = 0")
        self.depth += looped
        self.line(f"every = first + tl.arange(0, {width})[None, :]")
        self.line(f"inside_parts = inside_rows & (every < {parts})")
        values = [self._loaded(node) for node in partial.nodes]
        if partial.total is not None:
            values = [self._from_the_mean(partial, values[0])]
        if total.finds:
            total.take(values[0], f"tl.where(inside_parts, {values[1]}, -1)")
        else:
            total.take(total.masked("inside_parts", values[0]))
        self.depth -= looped
        return total.end()

    def _loaded(self, partial: Node) -> str:
        where = f"{self.pointer(partial)} + every * {self.count} + row"
        return self.let("w", scalar.from_storage(f"tl.load({where}, mask=inside_parts, other=0)", partial.dtype))

    def _from_the_mean(self, partial: _PartialResults, squares: str) -> str:
        """Squares of differences from the mean of all, given those from the mean of each part."""
        assert partial.total is not None
        kind, cut = scalar.register(partial.reduced.node.inputs[0].dtype), partial.cut
        size = self.let(
            "size", f"tl.maximum(tl.minimum({cut.share}, {cut.length} - every * {cut.share}), 1).to({kind})"
        )
        mean = f"{self.rows[partial.total]} / {float(cut.length)}"
        apart = self.let("apart", f"{self._loaded(self.plan.partials[partial.total].nodes[0])} / {size} - {mean}")
        return f"{squares} + {size} * {apart} * {apart}"

    def _row_phase(self, phase: ReadyPhase, later: Sequence[ReadyPhase]) -> None:
        """A phase without loops. Its stores are done in the launch that has no loops."""
        self.about(phase)
        self.inside = "inside_rows"
        values = PhaseValues(self, phase)
        for reduced in phase.reductions:
            total = ReductionWriter(self, reduced, 1)
            total.add(values)
            self.rows[reduced.node] = total.end()
        if self.stage.phase is None:
            values.store_all()
        self.keep(phase, values, later)

    def _part(self, phase: ReadyPhase) -> None:
        cut = self.cut
        self.about(phase)
        self.line(f"begin = part * {cut.share}")
        self.line(f"end = tl.minimum(begin + {cut.share}, {cut.length})")
        totals = self._totals(phase)
        self.strips(phase, totals, "begin", "end", cut.share)
        for total in totals:
            partials = [self.plan.partials[total.reduced.node], *self.plan.squares_of(total.reduced.node)]
            nodes = [node for partial in partials for node in partial.nodes]
            results = total.results()
            for number, node in enumerate(nodes):
                self._store_partial(node, results[min(number, len(results) - 1)])

    def _totals(self, phase: ReadyPhase) -> list[ReductionWriter]:
        """The accumulators of a phase's reductions. Sums of squares also need the first elements of a part."""
        width, totals = self.tile.width, list[ReductionWriter]()
        for reduced in phase.reductions:
            if self.plan.squares_of(reduced.node):
                totals.append(MomentsWriter(self, reduced, width, self._first(phase, reduced)))
            else:
                totals.append(ReductionWriter(self, reduced, width))
        return totals

    def _first(self, phase: ReadyPhase, reduced: ReadyReduction) -> str:
        """The first elements of the part that is reduced, as a tile."""
        self.line(f"early = begin + tl.arange(0, {min(FIRST, self.tile.width)})[None, :]")
        self.line("inside_early = early < end")
        self.at |= decomposed(phase.loops, "early")
        self.masks |= dict.fromkeys(phase.loops, "inside_early")
        self.inside = "inside_rows & inside_early"
        return PhaseValues(self, phase).names[reduced.steps[0]]

    def _store_partial(self, partial: Node, value: str) -> None:
        """Store the partial result of a part, to be combined by a later launch."""
        self.written.append(partial)
        stored = scalar.to_storage(value, partial.dtype)
        self.line(f"tl.store({self.pointer(partial)} + part * {self.count} + row, {stored}, mask=inside_rows)")
