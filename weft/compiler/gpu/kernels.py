"""From loops to Triton: the source of one fused kernel, to be read by people too.

A program takes `ROWS` places of the outer loops. Each phase walks through its own loops in strips of `WIDTH`: values are tiles of
ROWS x WIDTH, or columns and rows that broadcast. A reduction keeps a tile of partial results and combines it at the end, always in the
same order. A kernel without inner loops works on plain rows of elements, or on lines of them where values are read once a column.
Long loops for few rows are cut into parts: see parts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from ...dtypes import bool_
from ..ir.nest import ReadyNest, ReadyPhase, ReadyReduction, ReadyStore
from . import scalars as scalar
from .lines import power
from .source import KernelSource, Writer, decomposed
from .values import Values, combined, neutral

FLAT = 1024  # places a program takes when there are no inner loops: 16 bytes of memory a thread, and more
MOST_TILE = 4096  # elements of a tile: more would not fit into registers
FEW = 256  # programs: with no more than these a GPU has room left, and programs are made smaller to fill it
TALL = 128  # rows side by side, where neighbours in memory are
LEAST_FLAT, LEAST_TALL = 256, 32  # what is left of them when programs are made smaller: whole lines of memory
LEAST_LINE, LONG_LINE = 32, 256  # elements of a line that a program reads side by side
LINES = 32  # that a program takes; half of them where lines are long


@dataclass(frozen=True)
class Tile:
    """How much one program does: `rows` places of the outer loops, strips of `width` of the inner ones."""

    rows: int
    width: int
    warps: int


def tile_for(nest: ReadyNest) -> Tile:
    """Strips as long as the inner loops, up to a tile; the rows fill up the tile."""
    rows = prod(l.size for l in nest.outer)
    widest = max((prod(l.size for l in p.loops) for p in nest.phases), default=1)
    if widest <= 1:
        return Tile(_spread(rows, FLAT, LEAST_FLAT), 1, 4)
    crowded = any(len(p.reductions) > 2 for p in nest.phases)  # each keeps a tile in registers all the time
    if nest.vector is not None:  # neighbours lie along the outer loops: many rows side by side
        height = _spread(rows, TALL, LEAST_TALL)
        return Tile(height, max(1, min(power(widest), MOST_TILE // height // (4 if crowded else 2))), 4)
    width = min(power(widest), MOST_TILE // 2 if crowded else MOST_TILE)
    height = max(1, min(power(rows), MOST_TILE // width // 2))
    return Tile(height, width, 8 if width >= 2048 else 4)


def _spread(rows: int, most: int, least: int) -> int:
    """How many rows a program takes: fewer than the most where that keeps more of the GPU busy."""
    height = min(most, power(rows))
    while height > least and 2 * -(-rows // height) <= FEW:
        height //= 2
    return height


def write_kernel(name: str, nest: ReadyNest, tile: Tile | None = None) -> KernelSource:
    """The source of a nest."""
    if tile is None:
        nest, tile = in_lines(nest) or (nest, tile_for(nest))
    return Loops(name, nest, tile).source()


# --- lines ------------------------------------------------------------------------------------------------------------------------


def in_lines(nest: ReadyNest) -> tuple[ReadyNest, Tile] | None:
    """Plain elements of which each line reads the same values, such as batch norm's for each channel, as tiles of lines.

    A program then reads those once for all of its lines, and not for every element. None where there is nothing of the kind, or
    where it is not worth while.
    """
    inner = nest.vector
    if inner is None or len(nest.phases) != 1 or nest.phases[0].loops or nest.phases[0].reductions:
        return None
    [phase], others = nest.phases, tuple(l for l in nest.outer if l is not inner)
    if not any(s.kind == "load" and set(s.indices[0].loops) == {inner} for s in phase.steps):
        return None
    width = min(power(inner.size), LONG_LINE)
    rows = LINES if width < LONG_LINE else LINES // 2
    if inner.size < LEAST_LINE or 4 * inner.size < 3 * width or prod(l.size for l in others) < 2 * FEW * rows:
        return None
    return ReadyNest(others, [phase.replaced({}, (inner,))], None), Tile(rows, width, 4)


class Loops(Writer):
    """Writes the kernel of a nest."""

    def __init__(self, name: str, nest: ReadyNest, tile: Tile) -> None:
        super().__init__(name)
        self.nest, self.tile = nest, tile
        self.flat = all(not p.loops for p in nest.phases)
        self.count = prod(l.size for l in nest.outer)
        self.whole = False  # whether all places of all tiles exist

    def source(self) -> KernelSource:
        self.begin_rows("tl.program_id(0)")
        for number, phase in enumerate(self.nest.phases):
            self._phase(phase, self.nest.phases[number + 1 :])
        return self.finished(-(-self.count // self.tile.rows), self.tile.warps)

    def begin_rows(self, number: str) -> None:
        """Which places of the outer loops this program has: the tile of this number."""
        rows = self.tile.rows
        places = f"tl.arange(0, {rows})" if self.flat else f"tl.arange(0, {rows})[:, None]"
        self.line(f"row = {number} * {rows} + {places}")
        self.line(f"inside_rows = row < {self.count}")
        self.at |= decomposed(self.nest.outer, "row")
        self.masks |= dict.fromkeys(self.nest.outer, "inside_rows")

    def _phase(self, phase: ReadyPhase, later: Sequence[ReadyPhase]) -> None:
        self.about(phase)
        totals = [Total(self, r, self.tile.width) for r in phase.reductions]
        length = prod(l.size for l in phase.loops)
        values = self.strips(phase, totals, "0", str(length), length)
        for total in totals:
            self.rows[total.reduced.node] = total.end()
        if not phase.loops:
            self.keep(phase, values, later)
        elif _read_again(phase, later):
            self.line("tl.debug_barrier()")  # another thread may be the one that reads it

    def strips(self, phase: ReadyPhase, totals: Sequence[Total], begin: str, end: str, length: int) -> Values:
        """Walk through a phase's loops from one place to another, `length` of them at most; add to totals, and store."""
        looped = length > self.tile.width
        if phase.loops:
            self.line(f"for start in range({begin}, {end}, {self.tile.width}):" if looped else f"start = {begin}")
            self.depth += looped
            self.line(f"place = start + tl.arange(0, {self.tile.width})[None, :]")
            self.line(f"inside_strip = place < {end}")
            self.at |= decomposed(phase.loops, "place")
            self.masks |= dict.fromkeys(phase.loops, "inside_strip")
        self.inside = "inside_rows & inside_strip" if phase.loops else "inside_rows"
        values = Values(self, phase)
        for total in totals:
            total.add(values)
        values.store_all()
        self.depth -= bool(phase.loops and looped)
        return values

    def keep(self, phase: ReadyPhase, values: Values, later: Sequence[ReadyPhase]) -> None:
        """What a phase without loops stores is at hand for later phases, as it would be read from memory."""
        for written in _read_again(phase, later):
            held = scalar.to_storage(values.names[written.step], written.node.dtype)
            self.rows[written.node] = self.let("kept", scalar.from_storage(held, written.node.dtype))

    def about(self, phase: ReadyPhase) -> None:
        self.line(f"# {', '.join(_about(phase))}")


def _read_again(phase: ReadyPhase, later: Sequence[ReadyPhase]) -> list[ReadyStore]:
    """What a phase stores and later ones read."""
    nodes = {s.node for p in later for s in p.steps if s.kind == "load"}
    return [w for w in phase.stores if w.node in nodes]


def _about(phase: ReadyPhase) -> Iterable[str]:
    for reduced in phase.reductions:
        yield f"{reduced.node.op.name} over {' x '.join(str(l.size) for l in phase.loops) or 1}"
    for written in phase.stores:
        yield f"{written.node.dtype.name}[{', '.join(map(str, written.node.shape))}]"


# --- reductions ---------------------------------------------------------------------------------------------------------------

_COMBINE = {"sum": "add", "prod": "mul", "max": "greater", "min": "less", "window_sum": "add", "window_max": "greater"}


class Total:
    """The running state of a reduction: a tile of values so far, and for argmax where they were found."""

    def __init__(self, writer: Loops, reduced: ReadyReduction, width: int) -> None:
        self.writer, self.reduced, self.width = writer, reduced, width
        self.kind, self.dtype = reduced.node.op.name, reduced.dtype
        self.finds = reduced.finds
        self.neutral = neutral(self.kind, self.dtype)
        self.shape = f"({writer.tile.rows},)" if writer.flat else f"({writer.tile.rows}, {width})"
        self.state = [writer.let("t", scalar.filled(self.dtype, self.neutral, self.shape))]
        if self.finds:
            self.state.append(writer.let("t", f"tl.full({self.shape}, -1, tl.int64)"))

    def add(self, values: Values) -> None:
        new = self.factors(values)
        inside = values.all_of([self.writer.inside], self.reduced.conditions)
        if self.finds:
            self.take(new, f"tl.where({inside}, {values.index(self.reduced.positions[0])}, -1).to(tl.int64)")
        else:
            self.take(self.masked(inside, new))

    def factors(self, values: Values) -> str:
        """The product of what is reduced."""
        new = values.names[self.reduced.steps[0]]
        if self.kind == "window_spread":  # a window's value, if the tap that won in it is the one that is looked at
            value = values.names[self.reduced.steps[1]]
            zero = scalar.number(self.dtype, self.neutral)
            return self.writer.let(
                "v", f"tl.where({new} == {values.index(self.reduced.positions[0])}, {value}, {zero})"
            )
        for step in self.reduced.steps[1:]:
            new = self.writer.let("v", f"{new} * {values.names[step]}")
        return new

    def masked(self, inside: str, new: str) -> str:
        """What counts of new values: nothing where there is no place."""
        if self.writer.whole and inside == self.writer.inside:
            return new
        return f"tl.where({inside}, {new}, {scalar.number(self.dtype, self.neutral)})"

    def take(self, new: str, position: str = "") -> None:
        """Combine the state with a tile of new values (and, for argmax, where they are; -1: nowhere)."""
        if self.finds:
            both = ", ".join(self.state)
            self.writer.line(f"{both} = {self._finder()}({both}, {new}, {position})")
        else:
            self.writer.line(f"{self.state[0]} = {combined(self.kind, self.state[0], new, self.dtype)}")

    def results(self) -> list[str]:
        """The state of each row: a column for each tile of it."""
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
        if self.dtype is bool_ and self.kind == "min":  # all hold if there is none that does not
            return [write.let("r", f"tl.reduce({self.state[0]} == 0, 1, either, keep_dims=True) == 0")]
        combine = "either" if self.dtype is bool_ else _COMBINE.get(self.kind, "add")
        return [write.let("r", f"tl.reduce({self.state[0]}, 1, {combine}, keep_dims=True)")]

    def end(self) -> str:
        found = self.results()[-1]
        return self.writer.let("r", f"{found}.to(tl.int32)") if self.kind == "window_tap" else found

    def _finder(self) -> str:
        return "smallest" if self.kind == "argmin" else "greatest"
