"""Triton source of fused loop kernels, meant to be readable.

A Triton program computes `rows` positions of the outer loops. Each phase iterates over its own loops in strips of `width`: values are
tiles of rows x width, or columns and rows that broadcast. A reduction accumulates a tile of partial results and combines it at the end,
always in the same order. A kernel without inner loops works on flat blocks of elements, or on tiles of lines where values are loaded
once per column. Long loops with few rows are split over several launches: see split_reductions.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ...dtypes import bool_
from ...records import dataclass
from ..ir.nest import ReadyNest, ReadyPhase, ReadyReduction, ReadyStore
from . import scalars as scalar
from .kernel_utils import next_power_of_two
from .source import KernelSource, KernelWriter, decomposed
from .values import PhaseValues, combined, combining_function, invariant_steps, neutral

FLAT = 1024  # elements per program without inner loops: at least 16 bytes of memory per thread
MOST_TILE = 4096  # elements of a tile: more would spill registers
FEW = 256  # programs: with no more than these the GPU is not full, and programs are made smaller to occupy it
TALL = 128  # rows per tile where memory is contiguous along the rows
LEAST_FLAT, LEAST_TALL = 256, 32  # their lower bounds when programs are made smaller: whole cache lines
LEAST_LINE, LONG_LINE = 32, 256  # elements of a line that a program loads together
LINES = 32  # lines per program; half as many where lines are long


@dataclass(frozen=True)
class LoopTile:
    """The work of one program: `rows` positions of the outer loops, strips of `width` of the inner ones."""

    rows: int
    width: int
    warps: int


def tile_for(nest: ReadyNest) -> LoopTile:
    """Strips as long as the inner loops, up to a tile; the rows fill up the tile."""
    rows = prod(l.size for l in nest.outer)
    widest = max((prod(l.size for l in p.loops) for p in nest.phases), default=1)
    if widest <= 1:
        return LoopTile(_spread(rows, FLAT, LEAST_FLAT), 1, 4)
    crowded = any(len(p.reductions) > 2 for p in nest.phases)  # each keeps an accumulator tile in registers
    if nest.vector is not None:  # memory is contiguous along the outer loops: many rows per tile
        height = _spread(rows, TALL, LEAST_TALL)
        return LoopTile(height, max(1, min(next_power_of_two(widest), MOST_TILE // height // (4 if crowded else 2))), 4)
    width = min(next_power_of_two(widest), MOST_TILE // 2 if crowded else MOST_TILE)
    height = max(1, min(next_power_of_two(rows), MOST_TILE // width // 2))
    return LoopTile(height, width, 8 if width >= 2048 else 4)


def _spread(rows: int, most: int, least: int) -> int:
    """Rows per program: fewer than `most` where that occupies more of the GPU."""
    height = min(most, next_power_of_two(rows))
    while height > least and 2 * -(-rows // height) <= FEW:
        height //= 2
    return height


def write_kernel(name: str, nest: ReadyNest, tile: LoopTile | None = None) -> KernelSource:
    """The source of a nest."""
    if tile is None:
        nest, tile = in_lines(nest) or (nest, tile_for(nest))
    return LoopWriter(name, nest, tile).source()


# --- lines ------------------------------------------------------------------------------------------------------------------------


def in_lines(nest: ReadyNest) -> tuple[ReadyNest, LoopTile] | None:
    """A kernel without inner loops as tiles of lines, if every line loads the same values, such as batch norm's per-channel scale.

    A program then loads those once for all of its lines instead of once per element. None if it does not apply or is not faster.
    """
    inner = nest.vector
    if inner is None or len(nest.phases) != 1 or nest.phases[0].loops or nest.phases[0].reductions:
        return None
    [phase], others = nest.phases, tuple(l for l in nest.outer if l is not inner)
    if not any(s.kind == "load" and set(s.indices[0].loops) == {inner} for s in phase.steps):
        return None
    width = min(next_power_of_two(inner.size), LONG_LINE)
    rows = LINES if width < LONG_LINE else LINES // 2
    if inner.size < LEAST_LINE or 4 * inner.size < 3 * width or prod(l.size for l in others) < 2 * FEW * rows:
        return None
    return ReadyNest(others, [phase.replaced({}, (inner,))], None), LoopTile(rows, width, 4)


class LoopWriter(KernelWriter):
    """Writes the kernel of a nest."""

    def __init__(self, name: str, nest: ReadyNest, tile: LoopTile) -> None:
        super().__init__(name)
        self.nest, self.tile = nest, tile
        self.flat = all(not p.loops for p in nest.phases)
        self.count = prod(l.size for l in nest.outer)
        self.whole = False  # whether every tile lies completely inside the loops: no masks are needed

    def source(self) -> KernelSource:
        self.begin_rows("tl.program_id(0)")
        for number, phase in enumerate(self.nest.phases):
            self._phase(phase, self.nest.phases[number + 1 :])
        return self.finished(-(-self.count // self.tile.rows), self.tile.warps)

    def begin_rows(self, number: str) -> None:
        """The positions of the outer loops that this program computes: the tile of this number."""
        rows = self.tile.rows
        places = f"tl.arange(0, {rows})" if self.flat else f"tl.arange(0, {rows})[:, None]"
        self.line(f"row = {number} * {rows} + {places}")
        self.line(f"inside_rows = row < {self.count}")
        self.at |= decomposed(self.nest.outer, "row")
        self.masks |= dict.fromkeys(self.nest.outer, "inside_rows")

    def _phase(self, phase: ReadyPhase, later: Sequence[ReadyPhase]) -> None:
        self.about(phase)
        totals = [ReductionWriter(self, r, self.tile.width) for r in phase.reductions]
        length = prod(l.size for l in phase.loops)
        values = self.strips(phase, totals, "0", str(length), length)
        for total in totals:
            self.rows[total.reduced.node] = total.end()
        if not phase.loops:
            self.keep(phase, values, later)
        elif _read_again(phase, later):
            self.line("tl.debug_barrier()")  # another thread of the block may load it

    def strips(
        self, phase: ReadyPhase, totals: Sequence[ReductionWriter], begin: str, end: str, length: int
    ) -> PhaseValues:
        """Iterate over a phase's loops from `begin` to `end`, at most `length` iterations: accumulate reductions, and store."""
        looped, known = length > self.tile.width, {}
        if looped:
            self.inside, once = "inside_rows", invariant_steps(phase)
            names = PhaseValues(self, phase, only=once).names
            known = {number: names[number] for number in once}
        if phase.loops:
            self.line(f"for start in range({begin}, {end}, {self.tile.width}):" if looped else f"start = {begin}")
            self.depth += looped
            self.line(f"place = start + tl.arange(0, {self.tile.width})[None, :]")
            self.line(f"inside_strip = place < {end}")
            self.at |= decomposed(phase.loops, "place")
            self.masks |= dict.fromkeys(phase.loops, "inside_strip")
        self.inside = "inside_rows & inside_strip" if phase.loops else "inside_rows"
        values = PhaseValues(self, phase, known)
        for total in totals:
            total.add(values)
        values.store_all()
        self.depth -= bool(phase.loops and looped)
        return values

    def keep(self, phase: ReadyPhase, values: PhaseValues, later: Sequence[ReadyPhase]) -> None:
        """Keep the values that a phase without loops stores in registers for later phases, rounded as if loaded from memory."""
        for written in _read_again(phase, later):
            held = scalar.to_storage(values.names[written.step], written.node.dtype)
            self.rows[written.node] = self.let("kept", scalar.from_storage(held, written.node.dtype))

    def about(self, phase: ReadyPhase) -> None:
        self.line(f"# {', '.join(_about(phase))}")


def _read_again(phase: ReadyPhase, later: Sequence[ReadyPhase]) -> list[ReadyStore]:
    """The stores of a phase that later phases load."""
    nodes = {s.node for p in later for s in p.steps if s.kind == "load"}
    return [w for w in phase.stores if w.node in nodes]


def _about(phase: ReadyPhase) -> Iterable[str]:
    for reduced in phase.reductions:
        yield f"{reduced.node.op.name} over {' x '.join(str(l.size) for l in phase.loops) or 1}"
    for written in phase.stores:
        yield f"{written.node.dtype.name}[{', '.join(map(str, written.node.shape))}]"


# --- reductions ---------------------------------------------------------------------------------------------------------------


class ReductionWriter:
    """Writes a reduction: an accumulator tile, and for argmax the positions of its values."""

    def __init__(self, writer: LoopWriter, reduced: ReadyReduction, width: int) -> None:
        self.writer, self.reduced, self.width = writer, reduced, width
        self.kind, self.dtype = reduced.node.op.name, reduced.dtype
        self.finds = reduced.finds
        self.neutral = neutral(self.kind, self.dtype)
        self.shape = f"({writer.tile.rows},)" if writer.flat else f"({writer.tile.rows}, {width})"
        self.state = [writer.let("t", scalar.filled(self.dtype, self.neutral, self.shape))]
        if self.finds:
            self.state.append(writer.let("t", f"tl.full({self.shape}, -1, tl.int64)"))

    def add(self, values: PhaseValues) -> None:
        new = self.factors(values)
        inside = values.all_of([self.writer.inside], self.reduced.conditions)
        if self.finds:
            self.take(new, f"tl.where({inside}, {values.index(self.reduced.positions[0])}, -1).to(tl.int64)")
        else:
            self.take(self.masked(inside, new))

    def factors(self, values: PhaseValues) -> str:
        """The product of what is reduced."""
        new = values.names[self.reduced.steps[0]]
        if self.kind == "window_spread":  # a window's value, if its maximum is at the current tap
            value = values.names[self.reduced.steps[1]]
            zero = scalar.number(self.dtype, self.neutral)
            return self.writer.let(
                "v", f"tl.where({new} == {values.index(self.reduced.positions[0])}, {value}, {zero})"
            )
        for step in self.reduced.steps[1:]:
            new = self.writer.let("v", f"{new} * {values.names[step]}")
        return new

    def masked(self, inside: str, new: str) -> str:
        """New values, with the neutral element outside of the loops."""
        if self.writer.whole and inside == self.writer.inside:
            return new
        return f"tl.where({inside}, {new}, {scalar.number(self.dtype, self.neutral)})"

    def take(self, new: str, position: str = "") -> None:
        """Combine the state with a tile of new values (and, for argmax, their positions; -1: outside)."""
        if self.finds:
            both = ", ".join(self.state)
            self.writer.line(f"{both} = {self._finder()}({both}, {new}, {position})")
        else:
            self.writer.line(f"{self.state[0]} = {combined(self.kind, self.state[0], new, self.dtype)}")

    def results(self) -> list[str]:
        """The accumulators reduced to one value per row: columns."""
        write = self.writer
        if write.flat or self.width == 1:
            return self.state
        if self.finds:
            names = [f"r{write.names}", f"r{write.names + 1}"]
            write.names += 2
            write.line(
                f"{', '.join(names)} = tl.reduce(({', '.join(self.state)}), 1, {self._finder()}, keep_dims=True)"
            )
            return names
        if self.dtype is bool_ and self.kind == "min":  # all are true if none is false
            return [write.let("r", f"tl.reduce({self.state[0]} == 0, 1, either, keep_dims=True) == 0")]
        combine = "either" if self.dtype is bool_ else combining_function(self.kind)
        return [write.let("r", f"tl.reduce({self.state[0]}, 1, {combine}, keep_dims=True)")]

    def end(self) -> str:
        found = self.results()[-1]
        return self.writer.let("r", f"{found}.to(tl.int32)") if self.kind == "window_tap" else found

    def _finder(self) -> str:
        return "smallest" if combining_function(self.kind) == "less" else "greatest"
