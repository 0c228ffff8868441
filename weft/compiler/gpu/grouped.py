"""Products of few rows with a weight of 8 or 4 bits: codes are loaded, unpacked and scaled in registers.

Such a product is bound by the bytes of its weight, so a program reads many runs of 16 bytes of some columns (rows of the weight) at once. All weights of a run
are of one group and have one scale; of 4 bits the lower halves of its bytes stand for 16 neighbouring inputs, the higher ones for 16 others. With very few rows the
sums are made by the ordinary units. Otherwise the matrix units multiply strips: of the integers, if a strip lies in one group, whose scale its sums are multiplied by;
else of the weights, rounded to the type of the inputs.
"""

from __future__ import annotations

from ...records import dataclass
from ..ir.index import Loop
from ..ir.kernel import Kernel, anchor_shape
from ..passes.narrow_products import RUN
from .anchors import anchor_of
from .contraction import finish
from .kernel_utils import ceil_div, next_power_of_two
from .source import KernelSource, KernelWriter

FEW_ROWS = 4  # up to this many rows are summed by CUDA cores
LONG_STRIP, SHORT_STRIP = 256, 128  # bytes of a column: of a strip in one group, and the least of those; of others
EXPONENT = 0x4B000000  # the bits of 2^23 in float32: with a small integer in the last ones, 2^23 + that


@dataclass(frozen=True)
class GroupedTile:
    """The rows and columns of the result that a program computes, and the bytes of a column that it loads at once."""

    rows: int
    columns: int
    bytes: int
    warps: int
    stages: int = 2


def tile_for(rows: int, bits: int, column: int, group: int) -> GroupedTile:
    """Enough bytes in flight to keep memory busy, with few enough numbers for the registers.

    `column`, `group`: their bytes. All of it was measured on an H200.
    """
    if rows <= FEW_ROWS:
        return GroupedTile(1, 4, min(256 * bits, next_power_of_two(column)), 4)
    height, strip = max(16, next_power_of_two(rows)), min(LONG_STRIP, group & -group)
    return GroupedTile(height, 32, strip, 4, 4) if strip >= SHORT_STRIP else GroupedTile(height, 32, SHORT_STRIP, 2, 3)


def write_grouped(name: str, kernel: Kernel, tile: GroupedTile | None = None) -> KernelSource:
    """The source of such a product, its epilogue included."""
    return GroupedWriter(name, kernel, tile).source()


class GroupedWriter(KernelWriter):
    """Writes the kernel of such a product."""

    def __init__(self, name: str, kernel: Kernel, tile: GroupedTile | None) -> None:
        super().__init__(name)
        anchor = anchor_of(kernel)
        self.kernel, self.loops = kernel, kernel.rows or tuple(Loop(n) for n in anchor_shape(anchor))
        _, self.height, self.width = anchor_shape(anchor)
        self.bits, self.group = anchor.get_params("bits", "group")
        self.inputs = anchor.inputs[0].shape[2]
        self.bytes, self.of_group = self.inputs * self.bits // 8, self.group * self.bits // 8  # of a column, of a group
        self.tile = tile or tile_for(self.height, self.bits, self.bytes, self.of_group)

    def source(self) -> KernelSource:
        t = self.tile
        across = ceil_div(self.width, t.columns)
        self.line(f"# {self.height} x {self.width}, each a sum of {self.inputs}; weights of {self.bits} bits")
        self.line(f"first = (tl.program_id(0) % {across}) * {t.columns} + tl.arange(0, {t.columns})")
        if self.height <= FEW_ROWS:
            self._by_sums()
            return self.finished(across, t.warps, t.stages)
        self._by_dots(across)
        shared = t.stages * t.bytes * (t.columns + 4 * t.rows * 8 // self.bits)
        return self.finished(across * ceil_div(self.height, t.rows), t.warps, t.stages, shared)

    # --- very few rows: tiles are (column, run, byte) ---------------------------------------------------------------------------

    def _by_sums(self) -> None:
        t, runs, count = self.tile, self.tile.bytes // RUN, self.bytes // RUN
        for row in range(self.height):
            self.line(f"total{row} = tl.zeros(({t.columns}, {runs}), tl.float32)")
        self.line(f"for step in range(0, {ceil_div(count, runs)}):")
        self.depth += 1
        self.line(f"run = step * {runs} + tl.arange(0, {runs})")
        byte = f"tl.arange(0, {RUN})"
        inside = f"(run < {count})" if count % runs else ""
        columns = f"(first < {self.width})[:, None]" if self.width % t.columns else ""
        masks = " & ".join(filter(None, (columns, f"{inside}[None, :]" if inside else "")))
        place = f"first[:, None, None] * {self.bytes} + run[None, :, None] * {RUN} + {byte}[None, None, :]"
        codes = self._load(1, place, f"({masks})[:, :, None]" if masks else "")
        of_group = f"run[None, :] // {self.of_group // RUN}"
        scale = self._load(2, f"first[:, None] * {self.inputs // self.group} + {of_group}", masks)
        integers = self._integers(codes)
        for row in range(self.height):
            total = ""
            for half, integer in enumerate(integers):
                there = self._inputs(half, "run[:, None]", RUN, f"{byte}[None, :]")
                x = self._load(0, self._input(str(row), there), f"{inside}[:, None]" if inside else "")
                product = f"{integer}, {x}.to(tl.float32)[None, :, :]"
                total = f"tl.fma({product}, {total})" if total else product.replace(", ", " * ", 1)
            self.line(f"total{row} += tl.sum({total}, 2) * {scale}")
        self.depth -= 1
        self.line("column = first")
        self.line(f"inside_columns = column < {self.width}")
        self.inside, self.zero = "inside_columns", "0 * column"
        self.masks |= {self.loops[2]: "inside_columns"}
        for row in range(self.height):
            self.at |= dict(zip(self.loops, ("0", str(row), "column"), strict=True))
            finish(self, self.kernel, self.loops, self.let("sum", f"tl.sum(total{row}, 1)"))

    def _integers(self, codes: str) -> list[str]:
        """The integers as floats: those of 4 bits are put into the bits of a float, since conversions are slow."""
        if self.bits == 8:
            return [self.let("integer", f"{codes}.to(tl.float32)")]
        wide = self.let("wide", f"{codes}.to(tl.int32)")
        bits = (f"({wide} & 15) ^ {EXPONENT + 8}", f"({wide} >> 4) ^ {EXPONENT + 8}")
        return [self.let("integer", f"({b}).to(tl.float32, bitcast=True) - {2.0**23 + 8}") for b in bits]

    # --- more rows: the transposed product, strips of columns times strips of rows ----------------------------------------------

    def _by_dots(self, across: int) -> None:
        t = self.tile
        self.line(f"row = (tl.program_id(0) // {across}) * {t.rows} + tl.arange(0, {t.rows})[None, :]")
        self.line(f"inside_rows = row < {self.height}")
        self.line("column = first[:, None]")
        self.line(f"inside_columns = column < {self.width}")
        self.line(f"along, down = tl.arange(0, {t.bytes})[None, :], tl.arange(0, {t.bytes})[:, None]")
        self.line(f"total = tl.zeros(({t.columns}, {t.rows}), tl.float32)")
        self.line(f"for step in range(0, {ceil_div(self.bytes, t.bytes)}):")
        self.depth += 1
        in_one_group = self.of_group % t.bytes == 0
        if in_one_group:
            self._strip_of_integers()
        else:
            self._strip_of_weights()
        self.depth -= 1
        if in_one_group and self.group == self.inputs:
            self.line(f"total = total * {self._load(2, 'column', 'inside_columns')}")
        self.inside, self.zero = "inside_rows & inside_columns", "0 * (row + column)"
        self.at |= dict(zip(self.loops, ("0", "row", "column"), strict=True))
        self.masks |= {self.loops[1]: "inside_rows", self.loops[2]: "inside_columns"}
        finish(self, self.kernel, self.loops, "total")

    def _strip_of_integers(self) -> None:
        """Add the products of a strip, all of one group. If a column has one group, its scale comes at the end."""
        t, scaled = self.tile, self.group != self.inputs
        columns = "inside_columns" if self.width % t.columns else ""
        codes = self._load(1, f"column * {self.bytes} + step * {t.bytes} + along", columns)
        halves = (codes,) if self.bits == 8 else (f"(({codes} & 15) ^ 8).to(tl.int8) - 8", f"(({codes} >> 4) ^ 8).to(tl.int8) - 8")  # fmt: skip
        sum = f"tl.zeros(({t.columns}, {t.rows}), tl.float32)" if scaled else "total"
        for half, integers in enumerate(halves):
            sum = self._dot(f"({integers})", self._inputs(half, "step", t.bytes, "down"), "", sum)
        if scaled:
            place = f"column * {self.inputs // self.group} + step // {self.of_group // t.bytes}"
            self.line(f"total += {sum} * {self._load(2, place, columns)}")
        else:
            self.line(f"total = {sum}")

    def _strip_of_weights(self) -> None:
        """Add the products of a strip of several groups: runs are scaled, then multiplied."""
        t, runs, count = self.tile, self.tile.bytes // RUN, self.bytes // RUN
        self.line(f"run = step * {runs} + tl.arange(0, {runs})[None, :]")
        columns = "inside_columns" if self.width % t.columns else ""
        inside = _all(columns, f"run < {count}" if count % runs else "")
        place = f"(column * {self.bytes} + run * {RUN})[:, :, None] + tl.arange(0, {RUN})[None, None, :]"
        codes = self._load(1, place, f"({inside})[:, :, None]" if inside else "")
        scale = self._load(2, f"column * {self.inputs // self.group} + run // {self.of_group // RUN}", inside)
        for half, integers in enumerate(self._integers(codes)):
            weight = self.let("weight", f"tl.reshape({integers} * {scale}[:, :, None], ({t.columns}, {t.bytes}))")
            there = self._inputs(half, f"(step * {runs} + down // {RUN})", RUN, f"down % {RUN}")
            rest = f"step * {t.bytes} + down < {self.bytes}" if count % runs else ""
            self.line(f"total = {self._dot(weight, there, rest, 'total')}")

    def _dot(self, weight: str, inputs: str, inside: str, total: str) -> str:
        """A total plus the products of a strip of weights with inputs."""
        base = self.kernel.views[0].base.dtype
        type, precision = (base.name, "") if base.is_half else ("float32", ', input_precision="tf32x3"')
        rows = "inside_rows" if self.height % self.tile.rows else ""
        x = self._load(0, self._input("row", inputs), _all(rows, inside))
        return self.let("sum", f"tl.dot({weight}.to(tl.{type}), {x}, {total}{precision}, out_dtype=tl.float32)")

    # --- loads of both ---------------------------------------------------------------------------------------------------------

    def _inputs(self, half: int, strip: str, bytes: int, byte: str) -> str:
        """The numbers of the inputs that the lower or higher halves of a strip's bytes belong to."""
        if self.bits == 8:
            return f"{strip} * {bytes} + {byte}"
        each = self.of_group // bytes  # strips of a group
        begin = (
            f"{strip} * {self.group}" if each == 1 else f"{strip} // {each} * {self.group} + {strip} % {each} * {bytes}"
        )
        return f"{begin} + {half * self.group // 2} + {byte}"

    def _input(self, row: str, place: str) -> str:
        _, row_step, step = self.kernel.views[0].strides
        return f"{row} * {row_step} + ({place}) * {step}"

    def _load(self, operand: int, place: str, inside: str) -> str:
        view = self.kernel.views[operand]
        mask = f", mask={inside}, other=0" if inside else ""
        begin = f"{view.offset} + " if view.offset else ""
        return self.let("loaded", f"tl.load({self.pointer(view.base)} + ({begin}{place}){mask})")


def _all(*conditions: str) -> str:
    return " & ".join(f"({c})" for c in conditions if c)
