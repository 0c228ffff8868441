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
from ...graph.node import Node, Type, placeholder
from ..index import Index, Inside, Loop, Place, fresh, strides, substituted
from ..kernel import Kernel, View, anchor_place, anchor_shape
from ..loops import CONVOLUTIONS, plain_loops
from ..nest import ReadyPhase, ready
from .kernels import FLAT
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
SIDES = ((128, 128), (64, 128), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16))
BUSY = 132  # programs that keep a large GPU busy
LEAST_PART, MOST_PARTS = (
    512,
    64,
)  # of a long sum: how much one program adds up at least, and into how many it is cut at most


def tile_for(batch: int, rows: int, columns: int, length: int) -> Tile:
    """Large tiles read less, small ones keep more of the GPU busy: the largest of which there are enough."""
    fitting = [(_side(rows, h), _side(columns, w)) for h, w in SIDES]
    height, width = next((s for s in fitting if _count(batch, rows, columns, s) >= BUSY), fitting[-1])
    deep = min(_side(length, 64), 64 if height * width <= 64 * 128 else 32)
    return Tile(height, width, deep, 8 if height * width >= 128 * 128 else 4)


def parts_for(anchor: Node) -> int:
    """Into how many parts the sums of a result are cut that has few elements but long sums, as filter gradients do.

    It follows from the shape alone, so that the same numbers are added in the same order on every GPU.
    """
    batch, rows, columns = anchor_shape(anchor)
    batch, columns = batch * _groups(anchor), columns // _groups(anchor)
    length = _length(anchor)
    tile = tile_for(batch, rows, columns, length)
    count = _count(batch, rows, columns, (tile.rows, tile.columns))
    wanted = min(MOST_PARTS, length // LEAST_PART, 2 * BUSY // count)
    return 1 << (wanted.bit_length() - 1) if wanted > 1 else 1


def _length(anchor: Node) -> int:
    """How many products each element of the result is the sum of."""
    x, y = anchor.inputs
    if anchor.op.name == "contract":
        return x.shape[2]
    if anchor.op.name == "conv_filter_last":
        return prod(y.shape[:-1])
    taps = prod(y.shape[2:])
    return taps * (y.shape[1] if anchor.op.name == "conv_last" else y.shape[0] // _groups(anchor))


def _count(batch: int, rows: int, columns: int, sides: tuple[int, int]) -> int:
    return batch * -(-rows // sides[0]) * -(-columns // sides[1])


def _side(size: int, most: int) -> int:
    """A power of two from 16, which is the least that the matrix units take."""
    return max(16, min(most, 1 << max(0, size - 1).bit_length()))


def can_write(kernel: Kernel) -> bool:
    """Whether this kernel is one for the matrix units."""
    anchor = kernel.anchor
    return (
        anchor is not None
        and anchor.dtype.is_float
        and (anchor.op.name == "contract" or anchor.op.name in CONVOLUTIONS)
    )


def _groups(anchor: Node) -> int:
    """Into how many groups the columns of the result fall; those of one group read the same of the left operand."""
    return 1 if anchor.op.name == "contract" else int(anchor.params[3])


def write_contraction(name: str, kernel: Kernel, tile: Tile | None = None, *, exact: bool = True) -> KernelSource:
    """The source of a product or convolution with its epilogue. `exact`: float32 is not rounded to TF32."""
    return _Contraction(name, kernel, tile, exact).source()


def workspace(kernel: Kernel, parts: int) -> Node:
    """The memory for the sums of all parts, as a tensor that only these two kernels know."""
    assert kernel.anchor is not None
    wide = float64 if kernel.anchor.dtype is float64 else float32
    return placeholder(("parts", kernel.anchor), Type((parts, prod(kernel.anchor.shape)), wide))


def write_parts(name: str, kernel: Kernel, parts: int, *, exact: bool = True) -> KernelSource:
    """The first of two kernels for long sums: each part of the sums, into the workspace."""
    return _Contraction(name, kernel, None, exact, parts).source()


def write_finish(name: str, kernel: Kernel, parts: int) -> KernelSource:
    """The second: the parts are added in their order, and the epilogue does its work."""
    return _Finish(name, kernel, parts).source()


@dataclass(frozen=True)
class _Operand:
    """One factor: what is read, where, and under which conditions."""

    view: View
    position: Index
    conditions: tuple[Inside, ...]


class _Contraction(Writer):
    def __init__(self, name: str, kernel: Kernel, tile: Tile | None, exact: bool, parts: int = 1) -> None:
        super().__init__(name)
        assert kernel.anchor is not None
        self.kernel, self.anchor, self.exact, self.parts = kernel, kernel.anchor, exact, parts
        self.batch, self.height, self.width = anchor_shape(self.anchor)
        own = tuple(Loop(n) for n in (self.batch, self.height, self.width))
        self.loops = kernel.rows or own
        self.groups = _groups(kernel.anchor)
        self.group, self.local = Loop(self.groups), Loop(self.width // self.groups)  # a column is one of its group
        self.depth_loops, self.left, self.right = self._sum()
        self.length = prod(l.size for l in self.depth_loops)
        self.tile = tile or tile_for(self.batch * self.groups, self.height, self.local.size, self.length)
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
        first, second = (self._operand(number, there) for number, (_, there) in enumerate(factors))
        conditions = [Inside(self._grouped(c.inner), c.size, c.step) for c in conditions]
        mine = tuple(c for c in conditions if self.local not in c.inner.loops)
        rest = tuple(c for c in conditions if self.local in c.inner.loops)
        left, right = _Operand(first.view, first.position, mine), _Operand(second.view, second.position, rest)
        return plain_loops(inner), left, right

    def _operand(self, number: int, place: Place) -> _Operand:
        view = self.kernel.views[number]
        position = Index(view.offset)
        for index, stride in zip(place, view.strides, strict=True):
            position = position + index * stride
        return _Operand(view, self._grouped(position), ())

    def _grouped(self, index: Index) -> Index:
        """A place in terms of the group and the column in it: the division that finds the group goes away."""
        parts = ((self.group, self.local.size), (self.local, 1))
        column = Index(0, tuple((loop, step) for loop, step in parts if loop.size > 1))
        return substituted(index, {self.loops[2]: column})

    # --- the text -------------------------------------------------------------------------------------------------------------

    def source(self) -> KernelSource:
        programs = self._tiles()
        self._accumulate()
        if self.parts > 1:
            room = workspace(self.kernel, self.parts)
            Values(self, _NOTHING).store(room, own_position(self.loops), "total", f"part * {room.shape[1]}")
        else:
            finish(self, self.kernel, self.loops, "total")
        return self.finished(programs * self.parts, self.tile.warps, self.tile.stages)

    def _tiles(self) -> int:
        """Which tile of the result this program makes; how many there are."""
        t = self.tile
        down, each_group = -(-self.height // t.rows), -(-self.local.size // t.columns)
        across = self.groups * each_group
        self.line(f"# {self.anchor.op.name}: {self.batch} x {self.height} x {self.width}, each a sum of {self.length}")
        each = self.batch * down * across
        self.line("program = tl.program_id(0)" if self.parts == 1 else f"program = tl.program_id(0) % {each}")
        if self.parts > 1:
            self.line(f"part = tl.program_id(0) // {each}")
        self.line(f"tile = program % {down * across}")
        self.line(f"group = tile // {GROUP * across}")
        self.line(f"high = tl.minimum({down} - group * {GROUP}, {GROUP})")
        self.line(
            f"row = (group * {GROUP} + tile % {GROUP * across} % high) * {t.rows} + tl.arange(0, {t.rows})[:, None]"
        )
        self.line(f"strip = tile % {GROUP * across} // high")
        self.line(f"local = (strip % {each_group}) * {t.columns} + tl.arange(0, {t.columns})[None, :]")
        self.line(f"column = (strip // {each_group}) * {self.local.size} + local")
        self.line(f"inside_rows = row < {self.height}")
        self.line(f"inside_columns = local < {self.local.size}")
        names = (f"(program // {down * across})", "row", "column")
        self.at |= dict(zip(self.loops, names, strict=True)) | {
            self.group: f"(strip // {each_group})",
            self.local: "local",
        }
        self.masks |= {self.loops[1]: "inside_rows", self.loops[2]: "inside_columns"}
        return self.batch * down * across

    def _accumulate(self) -> None:
        t, wide = self.tile, self._wide()
        self.line(f"total = tl.zeros(({t.rows}, {t.columns}), tl.{wide.name})")
        begin, end = "0", str(self.length)
        if self.parts > 1:
            share = -(-self.length // (self.parts * t.depth)) * t.depth
            begin, end = f"part * {share}", self.let("end", f"tl.minimum({self.length}, (part + 1) * {share})")
        self.line(f"for start in range({begin}, {end}, {t.depth}):")
        self.depth += 1
        self.line(f"along = start + tl.arange(0, {t.depth})[None, :]")
        self.line(f"down = start + tl.arange(0, {t.depth})[:, None]")
        left = self._strip(self.left, "along", f"inside_rows & (along < {end})")
        right = self._strip(self.right, "down", f"(down < {end}) & inside_columns")
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


class _Finish(Writer):
    """Adds the parts of long sums, element by element."""

    def __init__(self, name: str, kernel: Kernel, parts: int) -> None:
        super().__init__(name)
        assert kernel.anchor is not None
        self.kernel, self.anchor, self.parts = kernel, kernel.anchor, parts
        self.loops = kernel.rows or tuple(Loop(n) for n in anchor_shape(kernel.anchor))

    def source(self) -> KernelSource:
        room, count = workspace(self.kernel, self.parts), prod(self.anchor.shape)
        rows = min(FLAT, _side(count, FLAT))
        self.line(f"row = tl.program_id(0) * {rows} + tl.arange(0, {rows})")
        self.line(f"inside_rows = row < {count}")
        self.at |= decomposed(self.loops, "row")
        self.masks |= dict.fromkeys(self.loops, "inside_rows")
        self.line(f"total = tl.zeros(({rows},), tl.{room.dtype.name})")
        self.line(f"for part in range({self.parts}):")
        self.line(f"    total += tl.load({self.pointer(room)} + part * {count} + row, mask=inside_rows, other=0)")
        finish(self, self.kernel, self.loops, "total")
        return self.finished(-(-count // rows), 4)


def finish(writer: Writer, kernel: Kernel, loops: tuple[Loop, ...], total: str) -> None:
    """Store a result, or do with it what its epilogue says."""
    anchor = kernel.anchor
    assert anchor is not None
    held = f"{total}.to(tl.{anchor.dtype.name}).to(tl.float32)" if anchor.dtype.is_half else total
    writer.rows[anchor] = writer.let("total", held)
    if kernel.nest is None or anchor in kernel.outputs:
        Values(writer, _NOTHING).store(anchor, own_position(loops), writer.rows[anchor])
    if kernel.nest is not None:
        [phase] = ready(kernel, 1).phases
        Values(writer, phase).store_all()


def own_position(loops: tuple[Loop, ...]) -> Index:
    """Where in the result, a batch of matrices, an element lies."""
    position = Index()
    for loop, stride in zip(loops, strides(tuple(l.size for l in loops)), strict=True):
        position = position + Index(0, ((loop, stride),))
    return position


_NOTHING = ReadyPhase((), (), {}, [], [])
