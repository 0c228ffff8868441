"""Matrix products and convolutions as one Triton kernel: tiles of the result, accumulated over strips of the contracted loops.

All of them are a sum, over some loops, of an element of one operand times an element of the other, and both elements are formulas of the
loops (`loops.CONVOLUTIONS`). So one writer serves all: a strip of each operand is loaded where the formulas say, `tl.dot` multiplies the
strips, and the epilogue (bias, activation, residual, weight update) works on the tile before it is stored. Convolutions load their
patches in place (implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...dtypes import DType, float32, float64, int32
from ...graph.node import Node
from ...records import dataclass
from ..ir.index import IndexExpr, Inside, Loop, Place, fresh, strides, substituted
from ..ir.kernel import Kernel, View, anchor_place, anchor_shape
from ..ir.loops import CONVOLUTIONS, plain_loops
from ..ir.nest import ReadyPhase, ready_nest
from .anchors import LINES_OF_K, groups_of, is_convolution, is_filter_gradient, is_product, of_integers, sum_length
from .kernel_utils import element, scratch_tensor
from .kernels import FLAT
from .source import KernelSource, KernelWriter, decomposed
from .values import PhaseValues
from .vendor.specs import filter_order


@dataclass(frozen=True)
class ContractionTile:
    """The rows and columns of a tile of the result, how deep a strip is, and how many warps and stages work on it."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int = 3


FEW_CHANNELS, FEW_PIXELS = 8, 32  # shorter loops have no strips of their own
GROUP = 8  # tiles that share columns follow each other, so that their operands are still in the cache
SIDES = ((128, 128), (64, 128), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16))
BUSY = 264  # programs that keep a large GPU busy: two for each of its multiprocessors
LEAST_PART, FEWEST_PARTS, MOST_PARTS = (
    128,
    4,
    64,
)  # of a long sum: the number of terms that a program adds, and the number of parts
LONG_SUM = 8192  # terms that are split although smaller tiles would keep the GPU busy, too
FEWEST_ADDED, LOADED_AHEAD = 128, 16  # sums that a program adds up; parts of them that are loaded at the same time


def walked(loops: tuple[Loop, ...], filter_gradient: bool) -> int:
    """The number of terms that are traversed in strips."""
    few = FEW_PIXELS if filter_gradient else FEW_CHANNELS
    return prod(l.size for l in loops) if not loops or loops[-1].size < few else loops[-1].size


def arranged(batch: int, rows: int, columns: int, length: int) -> tuple[tuple[int, int], int]:
    """The sides of a tile, and into how many parts the sums are cut.

    Large tiles read less, small ones keep more of the GPU busy: the largest of which there are enough. If there are few tiles and sums are
    long, as in filter gradients, the sums are split, not the tiles: large tiles of parts read less than small ones of whole sums. Everything
    depends on the shape only, so that numbers are added in the same order on every GPU.
    """
    fitting = [(_side(rows, h), _side(columns, w)) for h, w in SIDES]
    counts = {sides: _count(batch, rows, columns, sides) for sides in fitting}
    for sides, count in counts.items():
        if count >= BUSY:
            return sides, 1
        if length >= LONG_SUM and (parts := _parts(sides, count, length)) and count * parts >= BUSY:
            return sides, parts
    for sides, count in counts.items():
        parts = _parts(sides, count, length)
        if parts and (count * parts >= BUSY or sides == fitting[-1]):
            return sides, parts
    return fitting[-1], 1


def _parts(sides: tuple[int, int], count: int, length: int) -> int:
    """Into how many parts sums of `length` terms are cut if there are `count` tiles; 0: they are not."""
    wanted = min(MOST_PARTS, length // LEAST_PART, 2 * BUSY // count)
    parts = 1 << (wanted.bit_length() - 1) if wanted > 0 else 1
    return parts if parts >= FEWEST_PARTS and sides[0] * sides[1] <= 64 * 64 else 0


def tile_for(sides: tuple[int, int], strip: int, itemsize: int = 4) -> ContractionTile:
    """A tile of these sides; `strip` is the number of terms traversed in strips, for elements of this many bytes."""
    height, width = sides
    if itemsize == 1:
        return _tile_of_bytes(height, width, strip)
    deep = min(_side(strip, 64), 64 if height * width <= 64 * 128 else 32)
    return ContractionTile(height, width, deep, 8 if height * width >= 128 * 128 else 4)


def _tile_of_bytes(height: int, width: int, strip: int) -> ContractionTile:
    """Tensor cores take 32 numbers of 8 bits at a time; deep strips are whole cache lines."""
    return ContractionTile(height, width, max(32, _side(strip, 128)), 4)


def parts_for(anchor: Node) -> int:
    """The number of parts into which the sums of a result are split."""
    batch, rows, columns = anchor_shape(anchor)
    return arranged(batch * groups_of(anchor), rows, columns // groups_of(anchor), sum_length(anchor))[1]


def _count(batch: int, rows: int, columns: int, sides: tuple[int, int]) -> int:
    return batch * -(-rows // sides[0]) * -(-columns // sides[1])


def _side(size: int, most: int) -> int:
    """A power of two from 16 on, the minimum for tensor cores."""
    return max(16, min(most, 1 << max(0, size - 1).bit_length()))


def write_contraction(
    name: str, kernel: Kernel, tile: ContractionTile | None = None, tf32: bool = False
) -> KernelSource:
    """The source of a product or convolution with its epilogue. `tf32`: operands in float32 are rounded to TF32."""
    return ContractionWriter(name, kernel, tile, tf32=tf32).source()


def workspace(kernel: Kernel, parts: int) -> Node:
    """The memory for the sums of all parts, as a tensor internal to these two kernels."""
    assert kernel.anchor is not None
    return scratch_tensor("parts", kernel.anchor, (parts, prod(kernel.anchor.shape)), _wide(kernel.anchor))


def write_parts(name: str, kernel: Kernel, parts: int, tf32: bool = False) -> KernelSource:
    """The first of two kernels for long sums: each part of the sums, into the workspace."""
    return ContractionWriter(name, kernel, None, parts, tf32).source()


def write_finish(name: str, kernel: Kernel, parts: int) -> KernelSource:
    """The second kernel: it adds the parts in order, and applies the epilogue."""
    return _Finish(name, kernel, parts).source()


@dataclass(frozen=True)
class Operand:
    """One factor: the tensor, the index that is read, and its conditions."""

    view: View
    position: IndexExpr
    conditions: tuple[Inside, ...]
    border: int = 0  # the value where a condition does not hold
    float8: str = ""  # the format of codes of 8-bit floats


class _Walk:
    """The traversal of the contracted loops, in steps. The last loop is traversed in strips, the others element by element, so the position
    of a convolution's tap is computed once per step, not for every number. If the last loop is too short, strips traverse all loops
    together.
    """

    def __init__(self, loops: tuple[Loop, ...], strip: int, width: int) -> None:
        self.loops, self.width = loops, width
        self.together = width == prod(l.size for l in loops)
        strips = -(-self.width // strip)
        self.steps = strips * (1 if self.together else prod(l.size for l in loops[:-1]))
        first = "step" if strips == self.steps else f"(step % {strips})"
        self.places = {
            "along": f"{first} * {strip} + tl.arange(0, {strip})[None, :]",
            "down": f"{first} * {strip} + tl.arange(0, {strip})[:, None]",
        }
        if not self.together and len(loops) > 1:
            self.places["tap"] = "step" if strips == 1 else f"step // {strips}"

    def at(self, along: str) -> dict[Loop, str]:
        """The value of each loop, from the position of the strip."""
        if self.together:
            return decomposed(self.loops, along)
        return decomposed(self.loops[:-1], "tap") | {self.loops[-1]: along}


class ContractionWriter(KernelWriter):
    """See the head of this file."""

    def __init__(
        self, name: str, kernel: Kernel, tile: ContractionTile | None, parts: int = 1, tf32: bool = False
    ) -> None:
        super().__init__(name)
        assert kernel.anchor is not None
        self.kernel, self.anchor, self.parts, self.tf32 = kernel, kernel.anchor, parts, tf32
        self.batch, self.height, self.width = anchor_shape(self.anchor)
        own = tuple(Loop(n) for n in (self.batch, self.height, self.width))
        self.loops = kernel.rows or own
        self.groups = groups_of(kernel.anchor)
        self.group, self.local = Loop(self.groups), Loop(self.width // self.groups)  # a column is one of its group
        self.depth_loops, self.left, self.right = self._sum()
        self.length = prod(l.size for l in self.depth_loops)
        shape = (self.batch * self.groups, self.height, self.local.size)
        sides, _ = arranged(*shape, self.length if parts > 1 else 0)
        itemsize = max(view.base.dtype.itemsize for view in kernel.views[:2])
        self.tile = tile or tile_for(sides, walked(self.depth_loops, is_filter_gradient(self.anchor)), itemsize)
        self.inside, self.zero = "inside_rows & inside_columns", "0 * (row + column)"

    def _sum(self) -> tuple[tuple[Loop, ...], Operand, Operand]:
        """The contracted loops and the two factors."""
        place, anchor = anchor_place(self.anchor, self.loops), self.anchor
        if is_product(anchor):
            b, m, n = place
            [k] = inner = fresh((anchor.inputs[0].shape[2],))
            right = (b, n, k) if anchor.op.name in LINES_OF_K else (b, k, n)
            factors: Sequence[tuple[Node, Place]] = ((anchor.inputs[0], (b, m, k)), (anchor.inputs[1], right))
            conditions: list[Inside] = []
        else:
            inner, factors, conditions = CONVOLUTIONS[anchor.op.name](anchor, place)
        first, second = (self._operand(number, there) for number, (_, there) in enumerate(factors))
        conditions = [Inside(self._grouped(c.inner), c.size, c.step) for c in conditions]
        mine = tuple(c for c in conditions if self.local not in c.inner.loops)
        rest = tuple(c for c in conditions if self.local in c.inner.loops)
        border = anchor.param("border") if "border" in anchor.op.params else 0
        formats = anchor.get_params("formats")[0] if "formats" in anchor.op.params else ("", "")
        left = Operand(first.view, first.position, mine, border, formats[0])
        other = Operand(second.view, second.position, rest, float8=formats[1])
        loops = plain_loops(inner)
        if is_convolution(anchor) and not is_filter_gradient(anchor):  # channels are neighbours in memory
            channels = inner[0].loops
            loops = (*(l for l in loops if l not in channels), *(l for l in loops if l in channels))
        return loops, left, other

    def _operand(self, number: int, place: Place) -> Operand:
        view = self.kernel.views[number]
        position = IndexExpr(view.offset)
        for index, stride in zip(place, view.strides, strict=True):
            position = position + index * stride
        return Operand(view, self._grouped(position), ())

    def _grouped(self, index: IndexExpr) -> IndexExpr:
        """An index in terms of the group and the column in it, which removes the division by the group size."""
        parts = ((self.group, self.local.size), (self.local, 1))
        column = IndexExpr(0, tuple((loop, step) for loop, step in parts if loop.size > 1))
        return substituted(index, {self.loops[2]: column})

    # --- the text -------------------------------------------------------------------------------------------------------------

    def source(self) -> KernelSource:
        programs = self._tiles()
        self._accumulate()
        if self.parts > 1:
            scratch = workspace(self.kernel, self.parts)
            PhaseValues(self, NOTHING).store(scratch, own_position(self.loops), "total", f"part * {scratch.shape[1]}")
        else:
            finish(self, self.kernel, self.loops, "total")
        t = self.tile
        numbers = t.stages * (t.rows + t.columns) * t.depth
        wide = max(operand.view.base.dtype.itemsize for operand in (self.left, self.right))
        return self.finished(programs * self.parts, t.warps, t.stages, numbers * wide)

    def _tiles(self) -> int:
        """The tile of the result that a program computes, and the number of programs."""
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
        walk = _Walk(self.depth_loops, t.depth, walked(self.depth_loops, is_filter_gradient(self.anchor)))
        begin, end = "0", str(walk.steps)
        if self.parts > 1:
            share = -(-walk.steps // self.parts)
            begin, end = f"part * {share}", self.let("end", f"tl.minimum({walk.steps}, (part + 1) * {share})")
        self.line(f"for step in range({begin}, {end}):")
        self.depth += 1
        for name, expression in walk.places.items():
            self.line(f"{name} = {expression}")
        even = walk.width % t.depth == 0
        rows, columns = self.height % t.rows == 0, self.local.size % t.columns == 0
        left = self._strip(
            self.left, walk.at("along"), self._masks(("inside_rows", rows), (f"(along < {walk.width})", even))
        )
        right = self._strip(
            self.right, walk.at("down"), self._masks((f"(down < {walk.width})", even), ("inside_columns", columns))
        )
        self.line(f"total = tl.dot({left}, {right}, total{self._precision()}, out_dtype=tl.{wide.name})")
        self.depth -= 1

    def _masks(self, *conditions: tuple[str, bool]) -> list[str]:
        """The conditions under which an element of a strip exists, each with whether it always holds.

        Strips of bytes are multiplied so fast that redundant conditions would cost time; for others, the shape of the code would vary with them.
        """
        of_bytes = self.left.view.base.dtype.itemsize == 1
        return [words for words, always in conditions if not (of_bytes and always)]

    def _strip(self, operand: Operand, places: dict[Loop, str], masks: list[str]) -> str:
        """A strip of an operand, read where its formula says; padding is zero."""
        before = dict(self.at)
        self.at |= places
        values = PhaseValues(self, NOTHING)
        where = f"{self.pointer(operand.view.base)} + ({values.index(operand.position)})"
        if not set(operand.position.loops) - {self.loops[0], self.group}:
            where += f" + 0 * {'along' if operand is self.left else 'down'}"  # one element is a strip too
        strip = self.let("strip", self._loaded(operand, where, values.all_of(masks, operand.conditions)))
        self.at = before
        common = self._common()
        return strip if operand.float8 or operand.view.base.dtype is common else f"{strip}.to(tl.{common.name})"

    def _loaded(self, operand: Operand, where: str, inside: str) -> str:
        """Elements of an operand. Values outside of the loops do not matter in one operand, since they are zero in the other."""
        read = f"tl.load({where})" if inside == "True" else f"tl.load({where}, mask={inside}, other={operand.border})"
        return f"{operand.float8}_numbers({read})" if operand.float8 else read

    def _precision(self) -> str:
        """Three TF32 products, on tensor cores, are as accurate as one float32 product. Of 8-bit floats, tensor cores sum a strip with
        fewer bits than float32; the strips are added in float32.
        """
        if self.left.float8:
            return f", max_num_imprecise_acc={self.tile.depth}"
        return f', input_precision="{"tf32" if self.tf32 else "tf32x3"}"' if self._wide() is float32 else ""

    def _common(self) -> DType:
        """The type in which strips are multiplied: their common type, else a wider one."""
        kinds = {self.left.view.base.dtype, self.right.view.base.dtype}
        return kinds.pop() if len(kinds) == 1 else self._wide()

    def _wide(self) -> DType:
        return _wide(self.anchor)


class _Finish(KernelWriter):
    """Adds the parts of long sums, element by element."""

    def __init__(self, name: str, kernel: Kernel, parts: int) -> None:
        super().__init__(name)
        assert kernel.anchor is not None
        self.kernel, self.anchor, self.parts = kernel, kernel.anchor, parts
        self.loops = kernel.rows or tuple(Loop(n) for n in anchor_shape(kernel.anchor))

    def source(self) -> KernelSource:
        scratch, count = workspace(self.kernel, self.parts), prod(self.anchor.shape)
        rows = max(FEWEST_ADDED, _side(count // BUSY, FLAT))
        self.line(f"row = tl.program_id(0) * {rows} + tl.arange(0, {rows})")
        self.line(f"inside_rows = row < {count}")
        self.at |= decomposed(self.loops, "row")
        self.masks |= dict.fromkeys(self.loops, "inside_rows")
        self.line(f"total = tl.zeros(({rows},), tl.{scratch.dtype.name})")
        place, ahead = f"(first + part) * {count} + row", min(LOADED_AHEAD, self.parts)
        self.line(f"for first in range(0, {self.parts}, {ahead}):")
        self.line(f"    for part in tl.static_range({ahead}):")
        self.line(f"        total += tl.load({self.pointer(scratch)} + {place}, mask=inside_rows, other=0)")
        finish(self, self.kernel, self.loops, "total")
        return self.finished(-(-count // rows), 4)


def write_after(name: str, kernel: Kernel, scratch: Node) -> KernelSource:
    """The epilogue of a result that a library has written to scratch memory, where filters are contiguous."""
    writer, anchor = KernelWriter(name), kernel.anchor
    assert anchor is not None
    loops = kernel.rows or tuple(Loop(n) for n in anchor_shape(anchor))
    count = prod(anchor.shape)
    rows = min(FLAT, _side(count, FLAT))
    writer.line(f"row = tl.program_id(0) * {rows} + tl.arange(0, {rows})")
    writer.line(f"inside_rows = row < {count}")
    there = (loops[0], loops[2], loops[1]) if is_filter_gradient(anchor) else loops
    writer.at |= decomposed(there, "row")
    writer.masks |= dict.fromkeys(loops, "inside_rows")
    writer.line(
        f"total = tl.load({writer.pointer(scratch)} + row, mask=inside_rows, other=0).to(tl.{_wide(anchor).name})"
    )
    finish(writer, kernel, loops, "total")
    return writer.finished(-(-count // rows), 4)


def write_copy(name: str, source: Node | None, target: Node) -> KernelSource:
    """A few numbers in another type."""
    assert source is not None
    writer, count = KernelWriter(name), prod(target.shape)
    rows = _side(count, FLAT)
    writer.line(f"row = tl.program_id(0) * {rows} + tl.arange(0, {rows})")
    value = writer.let("value", f"tl.load({writer.pointer(source)} + row, mask=row < {count}, other=0)")
    writer.line(f"tl.store({writer.pointer(target)} + row, {value}.to(tl.{target.dtype.name}), mask=row < {count})")
    writer.written.append(target)
    return writer.finished(-(-count // rows), 4)


def write_filter(name: str, kernel: Kernel, scratch: Node | None) -> KernelSource:
    """A copy of a filter in the order that libraries require."""
    anchor, view = kernel.anchor, kernel.views[1]
    assert anchor is not None
    assert scratch is not None
    shape = anchor.inputs[1].shape
    order = filter_order(len(shape))
    turned = replace(view, strides=tuple(view.strides[a] for a in order))
    writer, count = KernelWriter(name), prod(shape)
    rows = _side(count, FLAT)
    writer.line(f"row = tl.program_id(0) * {rows} + tl.arange(0, {rows})")
    place = element(writer, turned, tuple(shape[a] for a in order), "row")
    value = writer.let("value", f"tl.load({place}, mask=row < {count}, other=0)")
    writer.line(f"tl.store({writer.pointer(scratch)} + row, {value}, mask=row < {count})")
    writer.written.append(scratch)
    return writer.finished(-(-count // rows), 4)


def _wide(anchor: Node) -> DType:
    """The type of sums."""
    return int32 if of_integers(anchor) else float64 if anchor.dtype is float64 else float32


def finish(writer: KernelWriter, kernel: Kernel, loops: tuple[Loop, ...], total: str) -> None:
    """Store a result, or apply its epilogue."""
    anchor = kernel.anchor
    assert anchor is not None
    held = f"{total}.to(tl.{anchor.dtype.name}).to(tl.float32)" if anchor.dtype.is_half else total
    writer.rows[anchor] = writer.let("total", held)
    if kernel.nest is None or anchor in kernel.outputs:
        PhaseValues(writer, NOTHING).store(anchor, own_position(loops), writer.rows[anchor])
    if kernel.nest is not None:
        [phase] = ready_nest(kernel, 1).phases
        PhaseValues(writer, phase).store_all()


def own_position(loops: tuple[Loop, ...]) -> IndexExpr:
    """The offset of an element in the result, a batch of matrices."""
    position = IndexExpr()
    for loop, stride in zip(loops, strides(tuple(l.size for l in loops)), strict=True):
        position = position + IndexExpr(0, ((loop, stride),))
    return position


NOTHING = ReadyPhase((), (), {}, [], [])
