"""Products of few rows with a large matrix, as in the generation of a text token by token: a program sums whole columns, without tensor
cores. Such a product is bound by the bytes of the matrix. A program loads as much of some columns at once as its registers hold, multiplies
it by every row, and applies the
epilogue. So there is one launch. With tensor cores there would be few tiles, whose sums would be split into parts that a second launch adds.
"""

from __future__ import annotations

from math import prod

from ...records import dataclass
from ..ir.index import Loop
from ..ir.kernel import Kernel, anchor_shape
from .anchors import anchor_of
from .contraction import finish
from .kernel_utils import ceil_div, next_power_of_two
from .source import KernelSource, KernelWriter

FEW_ROWS = 4
SHORT = 64  # terms: shorter sums are left to other kernels
COLUMNS = (8, 4, 2)  # columns of a program: the first number that gives enough programs
ENOUGH = 128  # programs
NUMBERS = 16384  # of the matrix that a program loads at once; fewer if it multiplies them by several rows
COUNTABLE = 1 << 31  # elements: places are counted in 32 bits
MANY, MOST_WARPS, LEAST_WARPS = 8192, 8, 4  # sums in registers from which more warps are faster


@dataclass(frozen=True)
class FewRowsTile:
    """The columns of the result that a program computes, and how many terms of their sums it loads at once."""

    columns: int
    terms: int
    warps: int


def is_of_few_rows(kernel: Kernel) -> bool:
    """Whether it is a product of few rows with a matrix whose columns are contiguous in memory."""
    anchor = anchor_of(kernel)
    if anchor.op.name != "contract" or not all(
        v.base.dtype.is_float and v.base.dtype.itemsize <= 4 for v in kernel.views
    ):
        return False
    batch, rows, _ = anchor_shape(anchor)
    matrix = anchor.inputs[1].shape
    is_matrix = batch == 1 and rows <= FEW_ROWS and matrix[1] >= SHORT and prod(matrix) < COUNTABLE
    return is_matrix and kernel.views[1].strides[1] == 1


def tile_for(rows: int, columns: int, terms: int) -> FewRowsTile:
    """The tile depends on the shape only, so that numbers are added in the same order on every GPU."""
    wide = next((n for n in COLUMNS if columns >= n * ENOUGH), 1)
    at_once = min(next_power_of_two(terms), NUMBERS // next_power_of_two(rows) // wide)
    return FewRowsTile(wide, at_once, MOST_WARPS if rows * wide * at_once >= MANY else LEAST_WARPS)


def write_few_rows(name: str, kernel: Kernel) -> KernelSource:
    """The source of such a product, its epilogue included."""
    return FewRowsWriter(name, kernel).source()


class FewRowsWriter(KernelWriter):
    """See the head of this file."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        super().__init__(name)
        anchor = anchor_of(kernel)
        self.kernel, self.loops = kernel, kernel.rows or tuple(Loop(n) for n in anchor_shape(anchor))
        _, self.height, self.width = anchor_shape(anchor)
        self.terms = anchor.inputs[0].shape[2]
        self.tile = tile_for(self.height, self.width, self.terms)

    def source(self) -> KernelSource:
        t, programs = self.tile, ceil_div(self.width, self.tile.columns)
        self.line(f"# {self.height} x {self.width}, each a sum of {self.terms}")
        self.line(f"column = tl.program_id(0) * {t.columns} + tl.arange(0, {t.columns})")
        self.line(f"inside_columns = column < {self.width}")
        for row in range(self.height):
            self.line(f"acc_row{row} = tl.zeros(({t.columns}, {t.terms}), tl.float32)")
        self.line(f"for step in range(0, {ceil_div(self.terms, t.terms)}):")
        self.depth += 1
        self._add_terms()
        self.depth -= 1
        self.inside, self.zero = "inside_columns", "0 * column"
        self.masks |= {self.loops[2]: "inside_columns"}
        for row in range(self.height):
            self.at |= dict(zip(self.loops, ("0", str(row), "column"), strict=True))
            finish(self, self.kernel, self.loops, self.let("sum", f"tl.sum(acc_row{row}, 1)"))
        return self.finished(programs, t.warps, 1)

    def _add_terms(self) -> None:
        (_, row_step, step), (_, _, column_step) = (view.strides for view in self.kernel.views[:2])
        self.line(f"term = step * {self.tile.terms} + tl.arange(0, {self.tile.terms})")
        rest = f"(term < {self.terms})" if self.terms % self.tile.terms else ""
        masks = [
            f"{rest}[None, :]" if rest else "",
            "inside_columns[:, None]" if self.width % self.tile.columns else "",
        ]
        place = f"column[:, None] * {column_step} + term[None, :]"
        matrix = self.let("matrix", f"{self._loaded(1, place, ' & '.join(filter(None, masks)))}.to(tl.float32)")
        for row in range(self.height):
            x = self._loaded(0, f"{row * row_step} + term * {step}", rest)
            self.line(
                f"acc_row{row} = tl.fma({matrix}, tl.broadcast_to({x}.to(tl.float32)[None, :], {matrix}.shape), acc_row{row})"
            )

    def _loaded(self, operand: int, place: str, inside: str) -> str:
        view = self.kernel.views[operand]
        mask = f", mask={inside}, other=0.0" if inside else ""
        begin = f"{view.offset} + " if view.offset else ""
        return f"tl.load({self.pointer(view.base)} + ({begin}{place}){mask})"
