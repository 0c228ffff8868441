"""From loops to Triton: the source of one fused kernel, to be read by people too.

A program takes `ROWS` places of the outer loops. Each phase walks through its own loops in strips of `WIDTH`: values are tiles of
ROWS x WIDTH, or columns and rows that broadcast. A reduction keeps a tile of partial results and combines it at the end, always in the
same order. A kernel without inner loops works on plain rows of elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ..nest import ReadyNest, ReadyPhase, Reduced
from . import scalar
from .source import KernelSource, Writer, decomposed
from .values import Values, combined, neutral

FLAT = 1024  # places a program takes when there are no inner loops
MOST_TILE = 4096  # elements of a tile: more would not fit into registers


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
        return Tile(min(FLAT, _power(rows)), 1, 4)
    if nest.vector is not None:  # neighbours lie along the outer loops: many rows side by side
        height = min(_power(rows), 128)
        return Tile(height, max(1, min(_power(widest), MOST_TILE // height // 4)), 4)
    width = min(_power(widest), MOST_TILE)
    height = max(1, min(_power(rows), MOST_TILE // width // 2))
    return Tile(height, width, 8 if width >= 2048 else 4)


def _power(count: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, count - 1).bit_length()


def write_kernel(name: str, nest: ReadyNest, tile: Tile | None = None) -> KernelSource:
    """The source of a nest."""
    return _Loops(name, nest, tile or tile_for(nest)).source()


class _Loops(Writer):
    """Writes the kernel of a nest."""

    def __init__(self, name: str, nest: ReadyNest, tile: Tile) -> None:
        super().__init__(name)
        self.nest, self.tile = nest, tile
        self.flat = all(not p.loops for p in nest.phases)

    def source(self) -> KernelSource:
        rows, count = self.tile.rows, prod(l.size for l in self.nest.outer)
        places = f"tl.arange(0, {rows})" if self.flat else f"tl.arange(0, {rows})[:, None]"
        self.line(f"row = tl.program_id(0) * {rows} + {places}")
        self.line(f"inside_rows = row < {count}")
        self.at |= decomposed(self.nest.outer, "row")
        self.masks |= dict.fromkeys(self.nest.outer, "inside_rows")
        for phase in self.nest.phases:
            self._phase(phase)
        return self.finished(-(-count // rows), self.tile.warps)

    def _phase(self, phase: ReadyPhase) -> None:
        count = prod(l.size for l in phase.loops)
        self.line(f"# {', '.join(_about(phase))}")
        totals = [_Total(self, r) for r in phase.reductions]
        looped = count > self.tile.width
        if phase.loops:
            self.line(f"for start in range(0, {count}, {self.tile.width}):" if looped else "start = 0")
            self.depth += looped
            self.line(f"place = start + tl.arange(0, {self.tile.width})[None, :]")
            self.line(f"inside_strip = place < {count}")
            self.at |= decomposed(phase.loops, "place")
            self.masks |= dict.fromkeys(phase.loops, "inside_strip")
        self.inside = "inside_rows & inside_strip" if phase.loops else "inside_rows"
        values = Values(self, phase)
        for total in totals:
            total.add(values)
        values.store_all()
        self.depth -= bool(phase.loops and looped)
        for total in totals:
            self.rows[total.reduced.node] = total.end()


def _about(phase: ReadyPhase) -> Iterable[str]:
    for reduced in phase.reductions:
        yield f"{reduced.node.op.name} over {' x '.join(str(l.size) for l in phase.loops) or 1}"
    for written in phase.stores:
        yield f"{written.node.dtype.name}[{', '.join(map(str, written.node.shape))}]"


# --- reductions ---------------------------------------------------------------------------------------------------------------

_COMBINE = {"sum": "add", "prod": "mul", "max": "greater", "min": "less", "window_sum": "add", "window_max": "greater"}


class _Total:
    """The running state of a reduction: a tile of values so far, and for argmax where they were found."""

    def __init__(self, writer: _Loops, reduced: Reduced) -> None:
        self.writer, self.reduced = writer, reduced
        self.kind, self.dtype = reduced.node.op.name, reduced.node.inputs[0].dtype
        self.finds = self.kind in ("argmax", "argmin", "window_argmax")
        self.neutral = neutral(self.kind, self.dtype)
        shape = f"({writer.tile.rows},)" if writer.flat else f"({writer.tile.rows}, {writer.tile.width})"
        self.state = [writer.let("t", scalar.filled(self.dtype, self.neutral, shape))]
        if self.finds:
            self.state.append(writer.let("t", f"tl.full({shape}, -1, tl.int64)"))

    def add(self, values: Values) -> None:
        write = self.writer
        new = values.names[self.reduced.steps[0]]
        for step in self.reduced.steps[1:]:
            new = write.let("v", f"{new} * {values.names[step]}")
        inside = values.all_of([write.inside], self.reduced.conditions)
        if self.finds:
            position = f"tl.where({inside}, {values.index(self.reduced.positions[0])}, -1).to(tl.int64)"
            name = "smallest" if self.kind == "argmin" else "greatest"
            write.line(f"{', '.join(self.state)} = {name}({', '.join(self.state)}, {new}, {position})")
            return
        new = f"tl.where({inside}, {new}, {scalar.number(self.dtype, self.neutral)})"
        write.line(f"{self.state[0]} = {combined(self.kind, self.state[0], new, self.dtype)}")

    def end(self) -> str:
        write = self.writer
        if write.flat or write.tile.width == 1:
            return self.state[-1]
        if self.finds:
            name = "smallest" if self.kind == "argmin" else "greatest"
            return write.let("r", f"tl.reduce(({', '.join(self.state)}), 1, {name}, keep_dims=True)[1]")
        combine = "either" if self.dtype.name == "bool" else _COMBINE.get(self.kind, "add")
        return write.let("r", f"tl.reduce({self.state[0]}, 1, {combine}, keep_dims=True)")
