"""Matrix products and convolutions as one Triton kernel: tiles of the result, summed over strips of what is contracted.

All of them are the sum, over some loops, of an element of one operand times an element of the other, and both elements are known as
formulas of the loops (`loops.CONVOLUTIONS`). So one kernel is written for them all: a strip of each operand is read where the formulas say,
`tl.dot` multiplies the strips, and the epilogue (bias, activation, residual, the update of a weight) works on the tile before it is
written. A convolution reads its patches in place: nothing is unfolded in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...dtypes import DType, float32, float64
from ...graph.node import Node
from ..index import Index, Inside, Loop, Place, fresh
from ..kernel import Kernel, View, anchor_place, anchor_shape
from ..loops import CONVOLUTIONS, plain_loops
from ..nest import ReadyPhase, ready
from .source import KernelSource, Writer, decomposed
from .values import Values


@dataclass(frozen=True)
class Tile:
    """The rows and columns of a tile of the result, how deep a strip is, and how many warps and stages work on it."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int = 3


GROUP = 8  # tiles that share columns follow each other, so that what they read is still in the cache


def tile_for(rows: int, columns: int, depth: int) -> Tile:
    """Large tiles read less, small ones keep more of the GPU busy."""
    height, width = _side(rows, 128), _side(columns, 128)
    deep = min(_side(depth, 64), 64 if height * width <= 64 * 128 else 32)
    return Tile(height, width, deep, 8 if height * width >= 128 * 128 else 4)


def _side(size: int, most: int) -> int:
    """A power of two from 16, which is the least that the matrix units take."""
    return max(16, min(most, 1 << max(0, size - 1).bit_length()))


def can_write(kernel: Kernel) -> bool:
    """Whether this kernel is one for the matrix units: floats, and no groups in a convolution."""
    anchor = kernel.anchor
    if anchor is None or not anchor.dtype.is_float:
        return False
    return anchor.op.name == "contract" or (anchor.op.name in CONVOLUTIONS and anchor.params[3] == 1)


def write_contraction(name: str, kernel: Kernel, tile: Tile | None = None, *, exact: bool = True) -> KernelSource:
    """The source of a product or convolution with its epilogue. `exact`: float32 is not rounded to TF32."""
    return _Contraction(name, kernel, tile, exact).source()


@dataclass(frozen=True)
class _Operand:
    """One factor: what is read, where, and under which conditions."""

    view: View
    position: Index
    conditions: tuple[Inside, ...]


class _Contraction(Writer):
    def __init__(self, name: str, kernel: Kernel, tile: Tile | None, exact: bool) -> None:
        super().__init__(name)
        assert kernel.anchor is not None
        self.kernel, self.anchor, self.exact = kernel, kernel.anchor, exact
        self.batch, self.height, self.width = anchor_shape(self.anchor)
        own = tuple(Loop(n) for n in (self.batch, self.height, self.width))
        self.loops = kernel.rows or own
        self.depth_loops, self.left, self.right = self._sum()
        self.length = prod(l.size for l in self.depth_loops)
        self.tile = tile or tile_for(self.height, self.width, self.length)
        self.inside, self.zero = "inside_rows & inside_columns", "0 * (row + column)"

    def _sum(self) -> tuple[tuple[Loop, ...], _Operand, _Operand]:
        """What is summed over, and the two factors."""
        place, anchor = anchor_place(self.anchor, self.loops), self.anchor
        if anchor.op.name == "contract":
            b, m, n = place
            [k] = inner = fresh((anchor.inputs[0].shape[2],))
            factors: Sequence[tuple[Node, Place]] = ((anchor.inputs[0], (b, m, k)), (anchor.inputs[1], (b, k, n)))
            conditions: list[Inside] = []
        else:
            inner, factors, conditions = CONVOLUTIONS[anchor.op.name](anchor, place)
        column = self.loops[2]
        first, second = (self._operand(number, there) for number, (_, there) in enumerate(factors))
        if column in first.position.loops:  # a data or filter gradient may name its factors the other way round
            first, second = second, first
        mine = tuple(c for c in conditions if column not in c.inner.loops)
        rest = tuple(c for c in conditions if column in c.inner.loops)
        left, right = _Operand(first.view, first.position, mine), _Operand(second.view, second.position, rest)
        return plain_loops(inner), left, right

    def _operand(self, number: int, place: Place) -> _Operand:
        view = self.kernel.views[number]
        position = Index(view.offset)
        for index, stride in zip(place, view.strides, strict=True):
            position = position + index * stride
        return _Operand(view, position, ())

    # --- the text -------------------------------------------------------------------------------------------------------------

    def source(self) -> KernelSource:
        programs = self._tiles()
        self._accumulate()
        self.rows[self.anchor] = self.let("total", self._in_register("total"))
        if self.kernel.nest is None or self.anchor in self.kernel.outputs:
            self._store_own()
        if self.kernel.nest is not None:
            [phase] = ready(self.kernel, 1).phases
            Values(self, phase).store_all()
        return self.finished(programs, self.tile.warps, self.tile.stages)

    def _tiles(self) -> int:
        """Which tile of the result this program makes; how many there are."""
        t = self.tile
        down, across = -(-self.height // t.rows), -(-self.width // t.columns)
        self.line(f"# {self.anchor.op.name}: {self.batch} x {self.height} x {self.width}, each a sum of {self.length}")
        self.line("program = tl.program_id(0)")
        self.line(f"tile = program % {down * across}")
        self.line(f"group = tile // {GROUP * across}")
        self.line(f"high = tl.minimum({down} - group * {GROUP}, {GROUP})")
        self.line(
            f"row = (group * {GROUP} + tile % {GROUP * across} % high) * {t.rows} + tl.arange(0, {t.rows})[:, None]"
        )
        self.line(f"column = (tile % {GROUP * across} // high) * {t.columns} + tl.arange(0, {t.columns})[None, :]")
        self.line(f"inside_rows = row < {self.height}")
        self.line(f"inside_columns = column < {self.width}")
        names = (f"(program // {down * across})", "row", "column")
        self.at |= dict(zip(self.loops, names, strict=True))
        self.masks |= {self.loops[1]: "inside_rows", self.loops[2]: "inside_columns"}
        return self.batch * down * across

    def _accumulate(self) -> None:
        t, wide = self.tile, self._wide()
        self.line(f"total = tl.zeros(({t.rows}, {t.columns}), tl.{wide.name})")
        self.line(f"for start in range(0, {self.length}, {t.depth}):")
        self.depth += 1
        self.line(f"along = start + tl.arange(0, {t.depth})[None, :]")
        self.line(f"down = start + tl.arange(0, {t.depth})[:, None]")
        left = self._strip(self.left, "along", f"inside_rows & (along < {self.length})")
        right = self._strip(self.right, "down", f"(down < {self.length}) & inside_columns")
        precision = ', input_precision="ieee"' if self.exact or wide is float64 else ""
        self.line(f"total = tl.dot({left}, {right}, total{precision}, out_dtype=tl.{wide.name})")
        self.depth -= 1

    def _strip(self, operand: _Operand, place: str, mask: str) -> str:
        """A strip of an operand, read where its formula says; padding is zero."""
        before = dict(self.at)
        self.at |= decomposed(self.depth_loops, place)
        values = Values(self, _NOTHING)
        where = f"{self.pointer(operand.view.base)} + ({values.index(operand.position)})"
        inside = values.all_of([mask], operand.conditions)
        strip = self.let("strip", f"tl.load({where}, mask={inside}, other=0)")
        self.at = before
        common = self._common()
        return strip if operand.view.base.dtype is common else f"{strip}.to(tl.{common.name})"

    def _common(self) -> DType:
        """The type in which strips meet: their own if they have the same, else a wider one."""
        kinds = {self.left.view.base.dtype, self.right.view.base.dtype}
        return kinds.pop() if len(kinds) == 1 else self._wide()

    def _wide(self) -> DType:
        return float64 if self.anchor.dtype is float64 else float32

    def _in_register(self, total: str) -> str:
        """The sum as the anchor's type holds it."""
        return f"{total}.to(tl.{self.anchor.dtype.name}).to(tl.float32)" if self.anchor.dtype.is_half else total

    def _store_own(self) -> None:
        position = Index()
        for loop, stride in zip(self.loops, (self.height * self.width, self.width, 1), strict=True):
            position = position + Index(0, ((loop, stride),))
        Values(self, _NOTHING).store(self.anchor, position, self.rows[self.anchor])


_NOTHING = ReadyPhase((), (), {}, [], [])
