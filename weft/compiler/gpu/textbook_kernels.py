"""Textbook kernels of products and convolutions, to be read and to be compared with.

NAIVE (of a convolution: DIRECT) computes one element of the result per lane and loads all operands from memory for each element.
TILED reuses what it loads: a program computes a small square of the result from small squares of the operands, on the ordinary units.
GEMM first writes the patches of a convolution to memory (im2col), and is a plain product from then on. All of them end with the
same epilogue as the fast kernel.
"""

from __future__ import annotations

from math import prod

from ...dtypes import DType
from ...graph.node import Node
from ..ir.index import IndexExpr, Loop, strides
from ..ir.kernel import Kernel, View, anchor_shape
from .anchors import anchor_of, groups_of, is_filter_gradient, sum_length
from .contraction import NOTHING, ContractionTile, ContractionWriter, Operand, finish
from .kernel_utils import scratch_tensor
from .source import KernelSource, decomposed
from .values import PhaseValues

NAIVE_LANES = 256  # elements of the result that a program of the naive kernel takes
SQUARE = ContractionTile(32, 32, 32, 4, 1)  # the textbook's tile, as large as 1,024 threads can share
PATCH_LANES = 1024


def write_naive(name: str, kernel: Kernel) -> KernelSource:
    """One element of the result per lane, in a loop over all terms."""
    return _Naive(name, kernel, None).source()


def write_tiled(name: str, kernel: Kernel) -> KernelSource:
    """Small squares, multiplied without tensor cores."""
    return _Tiled(name, kernel, SQUARE).source()


def patches(kernel: Kernel) -> Node:
    """The memory for all patches, the left operand of the product, as a tensor internal to the kernels of GEMM."""
    anchor = anchor_of(kernel)
    count = groups_of(anchor) * anchor_shape(anchor)[1] * sum_length(anchor)
    return scratch_tensor("patches", anchor, (count,), kernel.views[0].base.dtype)


def write_patches(name: str, kernel: Kernel) -> KernelSource:
    """The first kernel of GEMM: every patch, padding included, into the workspace."""
    return _Patches(name, kernel, None).source()


def write_unfolded(name: str, kernel: Kernel, parts: int = 1, tf32: bool = False) -> KernelSource:
    """The second: the product of the patches with the other operand, or the parts of its long sums."""
    return _Unfolded(name, kernel, None, parts, tf32).source()


class FlatWriter(ContractionWriter):
    """A kernel that goes through elements one by one; `row` is the number of an element."""

    def _elements(self, count: int, lanes: int, loops: tuple[Loop, ...]) -> int:
        """The elements of a program, and the number of programs."""
        self.inside, self.zero = "inside_rows", "0 * row"
        self.line(f"row = tl.program_id(0) * {lanes} + tl.arange(0, {lanes})")
        self.line(f"inside_rows = row < {count}")
        self.at |= decomposed(loops, "row")
        self.masks |= dict.fromkeys(loops, self.inside)
        return -(-count // lanes)

    def _element(self, operand: Operand) -> str:
        """An operand's element for each lane, zero where there is padding."""
        values = PhaseValues(self, NOTHING)
        where = f"{self.pointer(operand.view.base)} + ({values.index(operand.position)} + {self.zero})"
        return self.let("element", self._loaded(operand, where, values.all_of([self.inside], operand.conditions)))


class _Naive(FlatWriter):
    def source(self) -> KernelSource:
        self.line(f"# {self.anchor.op.name}: one element a lane, a sum of {self.length}")
        programs = self._elements(prod(self.anchor.shape), NAIVE_LANES, self.loops)
        column, wide = self.at[self.loops[2]], self._wide().name
        self.at |= decomposed((self.group, self.local), column)
        self.line(f"total = tl.zeros(({NAIVE_LANES},), tl.{wide})")
        self.line(f"for step in range({self.length}):")
        self.depth += 1
        self.at |= decomposed(self.depth_loops, "step")
        left, right = (self._element(operand) for operand in (self.left, self.right))
        self.line(f"total += {left}.to(tl.{wide}) * {right}.to(tl.{wide})")
        self.depth -= 1
        finish(self, self.kernel, self.loops, "total")
        return self.finished(programs, NAIVE_LANES // 32)


class _Tiled(ContractionWriter):
    def _common(self) -> DType:
        return self._wide()  # 16-bit numbers would be multiplied by tensor cores

    def _precision(self) -> str:
        return ', input_precision="ieee"'


class _Patches(FlatWriter):
    def source(self) -> KernelSource:
        scratch = patches(self.kernel)
        self.line(f"# the patches of {self.anchor.op.name}: {self.groups} x {self.height} x {self.length}")
        programs = self._elements(scratch.shape[0], PATCH_LANES, _patch_loops(self, self.depth_loops))
        element = self._element(self.left)
        self.written.append(scratch)
        self.line(f"tl.store({self.pointer(scratch)} + row, {element}, mask={self.inside})")
        return self.finished(programs, 4)


class _Unfolded(ContractionWriter):
    def _sum(self) -> tuple[tuple[Loop, ...], Operand, Operand]:
        """The left factor is read from the patches, which include padding."""
        depth_loops, _, right = super()._sum()
        loops, position = _patch_loops(self, depth_loops), IndexExpr()
        for loop, stride in zip(loops, strides(tuple(l.size for l in loops)), strict=True):
            position = position + IndexExpr(0, ((loop, stride),) if loop.size > 1 else ())
        return depth_loops, Operand(View(patches(self.kernel), 0, ()), position, ()), right


def _patch_loops(contraction: ContractionWriter, depth_loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """The layout of patches: one after the other; for filter gradients pixel by pixel, like images."""
    rows = contraction.loops[1]
    if is_filter_gradient(contraction.anchor):
        return (contraction.group, *depth_loops, rows)
    return (contraction.group, rows, *depth_loops)
